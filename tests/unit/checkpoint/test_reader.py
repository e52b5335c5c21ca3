"""Reading: what is given is what was written, and whatever is wrong is noticed and told."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint import stream
from holdfast.checkpoint.content import Content, Tensor
from holdfast.checkpoint.dtypes import DTYPES, nbytes
from holdfast.checkpoint.reader import found, newest, open_checkpoint
from holdfast.checkpoint.writer import write
from holdfast.errors import (
    CheckpointError,
    DamagedCheckpoint,
    NewerCheckpoint,
    NotACheckpoint,
    UnreadableCheckpoint,
    UsageError,
)
from tests.unit.checkpoint.contents import content
from tests.unit.checkpoint.memory_disk import MemoryDisk, Operation
from tests.unit.checkpoint.test_manifest import sealed

ROOT = Path("/data/checkpoints")


def test_what_is_read_is_what_was_written() -> None:
    disk, given = MemoryDisk(), content(3)
    checkpoint = open_checkpoint(write(ROOT, given, keep=1, disk=disk).path, disk=disk)
    manifest = checkpoint.manifest
    assert (manifest.facts, manifest.script, manifest.config, manifest.control, manifest.state) == (
        given.facts, given.script, given.config, given.control, given.state,
    )  # fmt: skip
    assert manifest.number == 1 and manifest.format == 1
    for name, tensor in given.tensors.items():
        assert checkpoint.read(name) == stream.flat(tensor.data)
        assert (manifest.tensors[name].dtype, manifest.tensors[name].shape) == (tensor.dtype, tensor.shape)
    into = memoryview(bytearray(24)).cast("f")
    checkpoint.read_into("parameters/float32", into)
    assert into.tobytes() == given.tensors["parameters/float32"].data


TENSORS = st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 5), max_size=3)).flatmap(
    lambda kind: st.binary(min_size=nbytes(*kind), max_size=nbytes(*kind)).map(
        lambda data: Tensor(kind[0], tuple(kind[1]), data)
    )
)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), TENSORS, max_size=5))
def test_any_sections_survive(tensors: dict[str, Tensor]) -> None:
    base, disk = content(3), MemoryDisk()
    given = Content(
        facts=base.facts, script=base.script, config={}, control={}, state=[], tensors=tensors
    )
    checkpoint = open_checkpoint(write(ROOT, given, keep=1, disk=disk).path, disk=disk)
    assert checkpoint.verify() == []
    assert {
        name: Tensor(record.dtype, record.shape, bytes(checkpoint.read(name)))
        for name, record in checkpoint.manifest.tensors.items()
    } == tensors


def test_a_byte_that_has_changed_anywhere_is_noticed_and_the_one_before_is_chosen() -> None:
    """1,000 bytes, spread over all files: another value, and the one before is the newest."""
    disk, chance = MemoryDisk(), random.Random(1)
    for step in (1, 2):
        path = write(ROOT, content(step), keep=2, disk=disk).path
    files = [disk.file(path / name) for name in disk.names(path)]
    places = [(file, at) for file in files for at in range(len(file.data))]
    for file, at in [places[0], places[-1], *chance.sample(places, 998)]:
        before = file.data[at]
        file.data[at] ^= chance.randrange(1, 256)
        file.durable = bytes(file.data)
        best = newest(ROOT, disk=disk)
        assert best.checkpoint is not None and best.checkpoint.path == ROOT / "step-000000000001"
        assert len(best.passed_over) == 1 and "step-000000000002 is damaged: " in best.passed_over[0]
        file.data[at] = before
        file.durable = bytes(file.data)
    best = newest(ROOT, disk=disk)
    assert best.checkpoint is not None and best.checkpoint.path == path and best.passed_over == []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    for step in (1, 2):
        written = write(tmp_path, content(step), keep=2)
    return written.path


def damaged(path: Path) -> str:
    """What is said of it; the one before is chosen."""
    best = newest(path.parent)
    assert best.checkpoint is not None and best.checkpoint.path.name == "step-000000000001"
    (told,) = best.passed_over
    told = told.removeprefix(f"The checkpoint {path} is damaged: ")
    return told.removesuffix(
        ". Use another one; `holdfast checkpoint verify DIR` says which are whole, and look at the disk: what was "
        "written here was read back and was right."
    )


def test_truncated_missing_and_empty_files(path: Path) -> None:
    data = path / "state.safetensors"
    size = data.stat().st_size
    os.truncate(data, size - 1)
    assert damaged(path) == f"state.safetensors has {size - 1} bytes, and {size} were written"
    os.truncate(data, 0)
    assert damaged(path) == f"state.safetensors has 0 bytes, and {size} were written"
    data.unlink()
    assert damaged(path) == "state.safetensors is missing"
    data.mkdir()
    (told,) = newest(path.parent).passed_over
    assert "state.safetensors cannot be read: Is a directory. Look at its permissions" in told
    os.truncate(path / "manifest.json", 100)
    assert damaged(path) == "manifest.json is cut off after 100 bytes, or something else"
    os.truncate(path / "manifest.json", 0)
    assert damaged(path) == "manifest.json is cut off after 0 bytes, or something else"
    (path / "manifest.json").unlink()
    assert "step-000000000002 is no checkpoint: it has no manifest.json. Give" in newest(path.parent).passed_over[0]


def test_an_old_manifest_beside_new_data(path: Path) -> None:
    shutil.copy(path.parent / "step-000000000001" / "manifest.json", path)
    assert damaged(path).endswith("has other bytes than were written")


def test_the_damaged_tensor_is_named(path: Path) -> None:
    record = open_checkpoint(path).manifest.tensors["state/exp_avg/float32"]
    with open(path / "state.safetensors", "r+b") as file:
        file.seek(record.begin + 2)
        file.write(b"?")
    told = "state.safetensors, tensor state/exp_avg/float32, has other bytes than were written"
    assert damaged(path) == told
    checkpoint = open_checkpoint(path)
    with pytest.raises(DamagedCheckpoint) as error:
        checkpoint.read("state/exp_avg/float32")
    assert error.value.tensor == "state/exp_avg/float32"
    checkpoint.read("parameters/float32")  # the others can be read
    with open(path / "state.safetensors", "r+b") as file:
        file.truncate(record.begin + 3)
    with pytest.raises(DamagedCheckpoint, match=r"state/exp_avg/float32, ends 21 bytes too early\."):
        checkpoint.read("state/exp_avg/float32")


def test_a_header_that_has_changed_is_told(path: Path) -> None:
    with open(path / "state.safetensors", "r+b") as file:
        file.seek(12)
        file.write(b"?")
    assert damaged(path) == "state.safetensors has other bytes than were written, in its header"


def test_a_file_too_many_is_told_and_does_no_harm(path: Path) -> None:
    (path / "notes.txt").write_text("mine")
    assert open_checkpoint(path).verify() == [
        f"{path} has a file that is not part of it and is not read: notes.txt."
    ]
    best = newest(path.parent)
    assert best.checkpoint is not None and best.checkpoint.path == path


def test_one_of_a_later_version_is_passed_over(path: Path) -> None:
    (path / "manifest.json").write_bytes(sealed('{\n  "holdfast": "9.0", "format": 2\n}'))
    with pytest.raises(NewerCheckpoint):
        open_checkpoint(path)
    best = newest(path.parent)
    assert best.checkpoint is not None and best.checkpoint.path.name == "step-000000000001"
    assert "has format 2" in best.passed_over[0]
    write(path.parent, content(3), keep=1)  # what we do not know, we do not remove
    assert path.exists()


def test_what_is_no_checkpoint(path: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for where, why in [
        (tmp_path / "none", "there is nothing"), (tmp_path / "empty", "it has no manifest.json"),
        (path / "manifest.json", "it is a file"),
    ]:  # fmt: skip
        with pytest.raises(NotACheckpoint) as error:
            open_checkpoint(where)
        assert error.value.why == why
    assert found(tmp_path / "none") == []
    assert newest(tmp_path / "none") == (None, [])
    with pytest.raises(NotACheckpoint, match="is no checkpoint: it is a file"):
        found(path / "manifest.json")


def test_wrong_names_and_sizes_are_told(path: Path) -> None:
    checkpoint = open_checkpoint(path)
    with pytest.raises(UsageError, match=r"has no tensor 'w'; it has none, parameters"):
        checkpoint.read("w")
    with pytest.raises(UsageError, match=r"half of .* has 4 bytes, and there is room for 3\."):
        checkpoint.read_into("half", memoryview(bytearray(3)))


def test_no_permission_is_told() -> None:
    disk = MemoryDisk()
    path = write(ROOT, content(1), keep=1, disk=disk).path
    checkpoint = open_checkpoint(path, disk=disk)

    def refuse(now: int, operation: Operation) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    disk.before = refuse
    for act, told in [
        (lambda: open_checkpoint(path, disk=disk), f"{path}/manifest.json cannot be read: Permission denied. Look at"),
        (lambda: found(ROOT, disk=disk), "/data/checkpoints cannot be read: Permission denied. Look at"),
        (lambda: checkpoint.read("half"), f"{path}/state.safetensors cannot be read: Permission denied. Look at"),
        (checkpoint.verify, f"{path}/state.safetensors cannot be read: Permission denied. Look at"),
    ]:
        with pytest.raises(UnreadableCheckpoint) as error:
            act()
        assert str(error.value).startswith(told)


def test_the_order_where_some_cannot_be_used(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        write(tmp_path, content(step), keep=9)
    for step in (20, 40):
        (tmp_path / f"step-{step:012d}" / "manifest.json").write_text("{}")
    listed = found(tmp_path)
    assert [(item.step, item.manifest is not None) for item in listed] == [
        (40, False), (30, True), (20, False), (10, True),
    ]  # fmt: skip
    assert isinstance(listed[0].error, CheckpointError) and "is cut off after 2 bytes" in listed[0].why
    assert listed[1].why == ""
