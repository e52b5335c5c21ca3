"""Copies elsewhere: complete or not there, hashed on both ways, and told when it does not work."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from holdfast.checkpoint import remote
from holdfast.checkpoint.reader import newest, open_checkpoint
from holdfast.checkpoint.writer import write
from holdfast.errors import CheckpointFailed, DamagedCheckpoint, NotACheckpoint, UnreadableCheckpoint, UsageError
from tests.unit.checkpoint.contents import content


@pytest.fixture
def memory(tmp_path: Path) -> str:
    """A URL of its own."""
    return f"memory://{tmp_path.name}/runs/with a späce"


@pytest.fixture
def saved(tmp_path: Path) -> dict[int, Path]:
    return {step: write(tmp_path / "checkpoints", content(step), keep=9).path for step in (1, 2, 3)}


def files(url: str) -> dict[str, bytes]:
    store, root = fsspec.core.url_to_fs(url)
    return {path[len(root) + 1 :]: store.cat_file(path) for path in store.find(root)}


def spoil(url: str, name: str) -> None:
    """Change a byte of a copy's data."""
    store, root = fsspec.core.url_to_fs(f"{url}/{name}/state.safetensors")
    data = store.cat_file(root)
    store.pipe_file(root, data[:-1] + bytes([data[-1] ^ 1]))


def there_and_back(url: str, saved: dict[int, Path], tmp_path: Path) -> None:
    sent = remote.upload(saved[2], url)
    assert sent.url == f"{url}/step-000000000002"
    assert sent.bytes == sum(item.stat().st_size for item in saved[2].iterdir())
    assert files(sent.url) == {item.name: item.read_bytes() for item in saved[2].iterdir()}
    assert remote.upload(saved[2], url)[:2] == (sent.url, 0)
    remote.upload(saved[3], url)
    assert [copy.url for copy in remote.found(url)] == [f"{url}/step-00000000000{step}" for step in (3, 2)]
    path = remote.download(url, tmp_path / "here" / "checkpoints")
    assert path == tmp_path / "here" / "checkpoints" / "step-000000000003"
    assert remote.download(f"{url}/step-000000000002/", path.parent).name == "step-000000000002"
    assert remote.download(url, path.parent) == path
    for name in ("step-000000000002", "step-000000000003"):
        assert open_checkpoint(path.parent / name).verify() == []
    best = newest(path.parent).checkpoint
    assert best is not None and best.path == path
    assert sorted(os.listdir(path.parent)) == [".lock", "step-000000000002", "step-000000000003"]


def test_there_and_back(memory: str, saved: dict[int, Path], tmp_path: Path) -> None:
    there_and_back(memory, saved, tmp_path)


def test_there_and_back_on_a_file_system(saved: dict[int, Path], tmp_path: Path) -> None:
    there_and_back((tmp_path / "share").as_uri(), saved, tmp_path)


def test_the_newest_stay(memory: str, saved: dict[int, Path]) -> None:
    for step in (1, 2, 3):
        remote.upload(saved[step], memory, keep=2)
    assert [copy.name for copy in remote.found(memory)] == ["step-000000000003", "step-000000000002"]
    assert len(files(memory)) == 4
    remote.upload(saved[1], memory, keep=1)  # an older one, on purpose
    assert [copy.name for copy in remote.found(memory)] == ["step-000000000003", "step-000000000001"]


def test_another_one_of_the_same_step_gets_a_name_of_its_own(
    memory: str, saved: dict[int, Path], tmp_path: Path
) -> None:
    remote.upload(saved[1], memory)
    other = write(tmp_path / "other", content(1, weights=9), keep=1).path
    assert remote.upload(other, memory).url == f"{memory}/step-000000000001-2"
    assert remote.upload(other, memory)[:2] == (f"{memory}/step-000000000001-2", 0)
    here = tmp_path / "here"
    assert remote.download(f"{memory}/step-000000000001-2", here).name == "step-000000000001"
    assert remote.download(f"{memory}/step-000000000001", here).name == "step-000000000001-2"


def test_a_copy_is_none_before_its_manifest_is_there(
    memory: str, saved: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.upload(saved[1], memory)

    def killed(*_: object) -> None:
        raise ConnectionResetError(104, "Connection reset by peer")

    with monkeypatch.context() as patch:
        patch.setattr(remote._Store, "write", killed)
        with pytest.raises(CheckpointFailed) as error:
            remote.upload(saved[2], memory)
    assert str(error.value) == (
        f"No checkpoint could be written to {memory}: ConnectionResetError: Connection reset by peer. The older ones "
        "are as they were. Look at the address, its permissions and the network."
    )
    assert [copy.name for copy in remote.found(memory)] == ["step-000000000001"]
    remote.upload(saved[2], memory)
    assert [copy.name for copy in remote.found(memory)] == ["step-000000000002", "step-000000000001"]


def test_what_is_damaged_here_is_not_sent(memory: str, saved: dict[int, Path]) -> None:
    with open(saved[1] / "state.safetensors", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"?")
    with pytest.raises(DamagedCheckpoint, match=r"state\.safetensors has other bytes than were written"):
        remote.upload(saved[1], memory)
    assert remote.found(memory) == []


def test_what_was_sent_is_read_back(
    memory: str, saved: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = remote._Store.reading

    def reading(self: remote._Store, name: str, file: str, url: str) -> object:
        spoil(memory, name)
        return read(self, name, file, url)

    monkeypatch.setattr(remote._Store, "reading", reading)
    with pytest.raises(CheckpointFailed, match=r"state\.safetensors was read back with other bytes than were sent"):
        remote.upload(saved[1], memory)
    assert remote.found(memory) == []


def test_a_copy_that_has_changed_is_noticed_and_the_one_before_is_fetched(
    memory: str, saved: dict[int, Path], tmp_path: Path
) -> None:
    for step in (1, 2):
        remote.upload(saved[step], memory)
    spoil(memory, "step-000000000002")
    here = tmp_path / "here"
    assert remote.download(memory, here).name == "step-000000000001"
    with pytest.raises(DamagedCheckpoint) as error:
        remote.download(f"{memory}/step-000000000002", here)
    assert error.value.path == f"{memory}/step-000000000002"
    assert sorted(os.listdir(here)) == [".lock", "step-000000000001"]


def test_where_there_is_none(memory: str, tmp_path: Path) -> None:
    assert remote.found(memory) == []
    for url in (memory, f"{memory}/step-000000000001"):
        with pytest.raises(NotACheckpoint) as error:
            remote.download(url, tmp_path)
        assert error.value.why == "there is no complete copy of one"


def test_a_disk_here_that_cannot_be_written_is_told(memory: str, saved: dict[int, Path], tmp_path: Path) -> None:
    remote.upload(saved[1], memory)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointFailed, match=r"file: not a directory\. The older ones"):
        remote.download(memory, tmp_path / "file")


def test_what_is_missing_is_told(saved: dict[int, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"^ftpp://host/x cannot be reached: Protocol not known: ftpp\.$"):
        remote.upload(saved[1], "ftpp://host/x")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(UsageError, match=r"^memory://x cannot be reached: .*\. pip install 'holdfast\[remote\]'\.$"):
        remote.found("memory://x")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket in an S3 of this process."""
    import s3fs
    from moto.server import ThreadedMotoServer

    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "ours", "AWS_SECRET_ACCESS_KEY": "ours",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        bucket = f"bucket-{secrets.token_hex(4)}"
        s3fs.S3FileSystem().mkdir(bucket)
        yield f"s3://{bucket}/runs/mine"
    finally:
        server.stop()
        s3fs.S3FileSystem.clear_instance_cache()


def test_s3(bucket: str, saved: dict[int, Path], tmp_path: Path) -> None:
    there_and_back(bucket, saved, tmp_path)
    remote.upload(saved[1], bucket)
    shutil.rmtree(tmp_path / "here")
    spoil(bucket, "step-000000000003")
    assert remote.download(bucket, tmp_path / "here").name == "step-000000000002"
    write(tmp_path / "checkpoints", content(4), keep=9)
    remote.upload(tmp_path / "checkpoints" / "step-000000000004", bucket, keep=1)
    assert [copy.name for copy in remote.found(bucket)] == ["step-000000000004"]
    with pytest.raises(CheckpointFailed, match=r"^No checkpoint .* to s3://nobodys/x: .* Look at the address"):
        remote.upload(saved[1], "s3://nobodys/x")
    assert remote.found("s3://nobodys/x") == []


def test_an_s3_that_does_not_answer_is_told(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(UnreadableCheckpoint, match=f"^{bucket} cannot be read: EndpointConnectionError"):
        remote.found(bucket)
