"""Versions that are fetched: proven before they have their name, each once, and gone when nobody uses them."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest

from holdfast.errors import DamagedModel
from holdfast.model.library import version_at
from holdfast.model.manifest import ModelFile, ModelManifest, encode
from holdfast.model.signature import Signature, TensorSpec
from holdfast.serve.remote.version_files import VersionFiles

FILES = {"model.py": b"class Model: ...", "data.bin": b"0" * 100}
X = TensorSpec("x", "FP32", (-1, 4))


def manifest(version: int = 3, files: dict[str, bytes] = FILES) -> bytes:
    listed = {name: ModelFile(hashlib.sha256(data).hexdigest(), len(data)) for name, data in files.items()}
    return encode(ModelManifest(
        name="m", version=version, kind="python", platform="python", signature=Signature((X,), (X,)), files=listed,
        created=0.0,
    ))  # fmt: skip


class Sender:
    """Gives files in pieces of ten bytes, and counts what it was asked for."""

    def __init__(self, files: dict[str, bytes] = FILES) -> None:
        self.files, self.asked = files, []

    def __call__(self, name):
        self.asked.append(name)
        data = self.files[name]
        for begin in range(0, len(data), 10):
            yield data[begin : begin + 10]


def test_a_version_is_fetched_once_and_is_whole(tmp_path: Path):
    files, sender = VersionFiles(tmp_path), Sender()
    folder = files.obtain(manifest(), sender)
    version_at(folder).verify()
    assert folder.name == "3"
    assert files.obtain(manifest(), sender) == folder
    assert sender.asked == list(FILES)


@pytest.mark.parametrize("damaged", [b"1" * 100, b"0" * 99, b"0" * 101, b""])
def test_a_damaged_file_is_refused_leaves_nothing_and_is_fetched_again(tmp_path: Path, damaged: bytes):
    files = VersionFiles(tmp_path)
    with pytest.raises(DamagedModel, match=r"data.bin has other bytes than were written"):
        files.obtain(manifest(), Sender({**FILES, "data.bin": damaged}))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    version_at(files.obtain(manifest(), Sender())).verify()


@pytest.mark.parametrize("data", [b"", b"{}", manifest()[:-2] + b"x\n"])
def test_a_damaged_manifest_asks_for_nothing(tmp_path: Path, data: bytes):
    sender = Sender()
    with pytest.raises(DamagedModel):
        VersionFiles(tmp_path).obtain(data, sender)
    assert sender.asked == []


@pytest.mark.parametrize("name", ["../up", "/etc/passwd", "a/b", ".hidden", "model.json"])
def test_a_name_that_leads_out_of_the_folder_asks_for_nothing(tmp_path: Path, name: str):
    sender = Sender({name: b"x"})
    with pytest.raises(DamagedModel, match="cannot be the name of a file"):
        VersionFiles(tmp_path / "in").obtain(manifest(files={name: b"x"}), sender)
    assert sender.asked == []


def test_replicas_that_start_together_fetch_once(tmp_path: Path):
    files, sender, found = VersionFiles(tmp_path), Sender(), []
    threads = [threading.Thread(target=lambda: found.append(files.obtain(manifest(), sender))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6 and len(set(found)) == 1
    assert sender.asked == list(FILES)


def test_of_versions_that_nobody_uses_two_are_kept(tmp_path: Path):
    files = VersionFiles(tmp_path)
    used = files.obtain(manifest(1), Sender())
    for version in range(2, 7):
        files.release(files.obtain(manifest(version), Sender()))
    assert used.exists()
    left = sorted(int(path.name) for path in tmp_path.glob("*/*"))
    assert left == [1, 4, 5, 6], "the newest was fetched when two others were kept"
