"""Saving: what is done in which order, what stays, and what a bad disk does to it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest

from holdfast.checkpoint.content import StateEntry, Tensor
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.reader import found, newest, open_checkpoint
from holdfast.checkpoint.writer import write
from holdfast.errors import CheckpointFailed, NoAtomicRename, UsageError
from tests.unit.checkpoint.contents import content
from tests.unit.checkpoint.memory_disk import MemoryDisk, Operation

ROOT = Path("/data/checkpoints")


def names(disk: MemoryDisk) -> list[str]:
    return [name for name in disk.names(ROOT) if name != ".lock"]


def test_the_order_of_a_save() -> None:
    disk = MemoryDisk()
    write(ROOT, content(1), keep=1, disk=disk)
    disk.log.clear()
    written = write(ROOT, content(2), keep=1, disk=disk)
    did = [(what, name.rpartition("-")[0] if name.startswith(".") and what != "lock" else name)
           for what, name in disk.log if what in ("create", "sync", "sync_folder", "rename", "remove", "forget", "lock")
           and "probe" not in name and name != "file"]  # fmt: skip
    assert did == [
        ("lock", ".lock"),
        ("create", "state.safetensors"), ("sync", "state.safetensors"),
        ("create", "manifest.json"), ("sync", "manifest.json"),
        ("sync_folder", ".new-step-000000000002"),
        ("forget", "state.safetensors"), ("forget", "state.safetensors"),
        ("forget", "manifest.json"), ("forget", "manifest.json"),
        ("rename", "step-000000000002"), ("sync_folder", "checkpoints"),
        ("rename", ".old-step-000000000001"), ("sync_folder", "checkpoints"),
        ("remove", "manifest.json"), ("remove", "state.safetensors"),
    ]  # fmt: skip
    assert written.path == ROOT / "step-000000000002" and written.notes == ()
    assert written.bytes == sum(disk.size(written.path / name) for name in disk.names(written.path))


def test_the_newest_stay() -> None:
    disk = MemoryDisk()
    for step in range(1, 8):
        write(ROOT, content(step), keep=3, disk=disk)
        assert names(disk) == [f"step-{s:012d}" for s in range(max(1, step - 2), step + 1)]
    write(ROOT, content(8), keep=1, disk=disk)
    assert names(disk) == ["step-000000000008"]


def test_the_newest_is_the_last_that_was_written_whatever_its_step() -> None:
    disk = MemoryDisk()
    for step in (100, 200, 150):
        write(ROOT, content(step), keep=2, disk=disk)
    assert [item.step for item in found(ROOT, disk=disk)] == [150, 200]
    write(ROOT, content(160), keep=1, disk=disk)
    assert names(disk) == ["step-000000000160"]


def test_what_is_not_ours_stays() -> None:
    disk = MemoryDisk()
    write(ROOT, content(1), keep=1, disk=disk)
    for name in ("step-1", "notes", "step-000000000009.txt"):
        disk.make_folder(ROOT / name)
    write(ROOT, content(2), keep=1, disk=disk)
    assert names(disk) == ["notes", "step-000000000002", "step-000000000009.txt", "step-1"]


def test_the_same_step_with_the_same_weights_stays_as_it_is() -> None:
    disk = MemoryDisk()
    first = write(ROOT, content(5), keep=2, disk=disk)
    data = disk.file(first.path / "manifest.json").durable
    again = write(ROOT, content(5, loss=0.125), keep=2, disk=disk)
    assert again.path == first.path and again.bytes == 0
    assert disk.file(first.path / "manifest.json").durable == data


def test_the_same_step_with_other_weights_takes_its_place() -> None:
    disk = MemoryDisk()
    for weights, name in ((1, "step-000000000005"), (2, "step-000000000005-2"), (3, "step-000000000005-3")):
        written = write(ROOT, content(5, weights=weights), keep=3, disk=disk)
        assert written.path.name == name and names(disk) == [name]


def test_the_same_step_is_written_anew_where_the_one_there_is_damaged() -> None:
    for name in ("state.safetensors", "manifest.json"):
        disk = MemoryDisk()
        first = write(ROOT, content(5), keep=3, disk=disk)
        disk.file(first.path / name).data[50] ^= 1
        disk.file(first.path / name).durable = bytes(disk.file(first.path / name).data)
        assert write(ROOT, content(5), keep=3, disk=disk).path.name == "step-000000000005-2"
        assert names(disk) == ["step-000000000005-2"]


def test_a_step_that_was_written_before_a_later_one_is_written_anew() -> None:
    """A run that went back is where it is now, not where it was."""
    disk = MemoryDisk()
    for step in (5, 9, 5):
        write(ROOT, content(step), keep=3, disk=disk)
    best = newest(ROOT, disk=disk).checkpoint
    assert best is not None and best.manifest.facts.step == 5
    assert names(disk) == ["step-000000000005-2", "step-000000000009"]


def test_leftovers_are_swept_up() -> None:
    disk = MemoryDisk()
    write(ROOT, content(1), keep=1, disk=disk)
    for name in (".new-step-000000000002-ab", ".old-step-000000000001-cd"):
        disk.make_folder(ROOT / name)
        disk.close(disk.create(ROOT / name / "manifest.json"))
    write(ROOT, content(2), keep=1, disk=disk)
    assert names(disk) == ["step-000000000002"]


def test_two_at_once_are_refused() -> None:
    disk = MemoryDisk()
    write(ROOT, content(1), keep=1, disk=disk)
    disk.make_folder(ROOT / ".new-step-000000000002-ab")
    lock = disk.lock(ROOT / ".lock")
    with pytest.raises(CheckpointFailed) as told:
        write(ROOT, content(2), keep=1, disk=disk)
    assert str(told.value) == (
        "No checkpoint could be written to /data/checkpoints: another process is writing one there. The older ones are "
        "as they were. Wait until it is done, or give each run a directory."
    )
    assert ".new-step-000000000002-ab" in names(disk)
    disk.unlock(lock)
    write(ROOT, content(2), keep=1, disk=disk)
    assert names(disk) == ["step-000000000002"]


def test_where_there_are_no_locks_nobody_sweeps_up() -> None:
    class WithoutLocks(MemoryDisk):
        def lock(self, file: Path) -> int:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    disk = WithoutLocks()
    write(ROOT, content(1), keep=1, disk=disk)
    disk.make_folder(ROOT / ".new-step-000000000002-ab")
    write(ROOT, content(2), keep=1, disk=disk)
    assert names(disk) == [".new-step-000000000002-ab", "step-000000000002"]


def test_a_file_system_that_cannot_rename_folders_is_refused() -> None:
    class NoRename(MemoryDisk):
        def rename(self, old: Path, new: Path) -> None:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    disk = NoRename()
    with pytest.raises(NoAtomicRename) as told:
        write(ROOT, content(1), keep=1, disk=disk)
    assert str(told.value).startswith(
        "No checkpoint could be written to /data/checkpoints: its file system cannot rename a folder (Operation not "
        "supported). The older"
    )
    assert names(disk) == []


class Copies(MemoryDisk):
    """A file system that copies what it should rename; the copy may be wrong."""

    wrong = False

    def rename(self, old: Path, new: Path) -> None:
        self.make_folder(new)
        for name in self.names(old):
            source, target = self.file(old / name), self.create(new / name)
            data = bytearray(source.data)
            if self.wrong and "probe" not in new.name:
                data[-1] ^= 1
            self.write(target, memoryview(data + data))  # it takes a half
            self.sync(target)
            self.close(target)
            self.remove(old / name)
        self.remove_folder(old)


def test_a_file_system_that_copies_where_it_should_rename_is_told_and_read_twice() -> None:
    disk = Copies()
    write(ROOT, content(1), keep=1, disk=disk)
    written = write(ROOT, content(2), keep=1, disk=disk)
    assert written.notes == (
        "/data/checkpoints is on a file system that copies a folder where it should rename it. A kill in the middle of "
        "a save may leave half a checkpoint there; its hashes tell, and the one before is used.",
    )
    assert names(disk) == ["step-000000000002"]
    disk.wrong = True
    with pytest.raises(CheckpointFailed, match="was read back from the disk with other bytes"):
        write(ROOT, content(3), keep=1, disk=disk)
    best = newest(ROOT, disk=disk)
    assert best.checkpoint is not None and best.checkpoint.manifest.facts.step == 2 and len(best.passed_over) == 1


FAULTS = [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT, errno.EACCES]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda number: errno.errorcode[number])
def test_a_fault_at_any_operation_is_told_and_the_old_one_stays(fault: int) -> None:
    disk = MemoryDisk()
    write(ROOT, content(1), keep=1, disk=disk)
    disk.log.clear()
    write(ROOT, content(2), keep=1, disk=disk)
    count = len(disk.log)
    failed = 0
    for number in range(count):
        disk = MemoryDisk()
        write(ROOT, content(1), keep=1, disk=disk)
        disk.restart()

        def fail(now: int, operation: Operation, number: int = number) -> None:
            if now == number:
                raise OSError(fault, os.strerror(fault))

        disk.before = fail
        told, written = "", None
        try:
            written = write(ROOT, content(2), keep=1, disk=disk)
        except CheckpointFailed as error:
            failed, told = failed + 1, str(error)
        disk.restart()
        if written:  # the fault came while older ones were removed, which the next save does
            assert "step-000000000002" in names(disk)
        else:
            assert os.strerror(fault).lower() in told.lower()
            assert "step-000000000001" in names(disk)
        assert newest(ROOT, disk=disk).checkpoint is not None
        write(ROOT, content(3), keep=1, disk=disk)
        assert names(disk) == ["step-000000000003"]
    assert failed > 20


def test_a_disk_that_fails_for_good_leaves_what_it_must_and_the_next_save_sweeps_up() -> None:
    disk = MemoryDisk()
    write(ROOT, content(1), keep=1, disk=disk)
    disk.restart()

    def fail(now: int, operation: Operation) -> None:
        if now > 20:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk.before = fail
    with pytest.raises(CheckpointFailed) as told:
        write(ROOT, content(2), keep=1, disk=disk)
    assert str(told.value) == (
        "No checkpoint could be written to /data/checkpoints: input/output error. The older ones are as they were. "
        "Look at the disk: the kernel's log says more."
    )
    disk.restart()
    write(ROOT, content(2), keep=1, disk=disk)
    assert names(disk) == ["step-000000000002"]


@pytest.mark.parametrize(
    ("number", "fix"),
    [(errno.ENOSPC, "no space left on device. The older ones are as they were. Make room there; `--keep` says how many "
                    "checkpoints stay."),
     (errno.EROFS, "read-only file system. The older ones are as they were. Mount it so that it can be written."),
     (errno.EACCES, "permission denied. The older ones are as they were. Look at its permissions."),
     (errno.ENXIO, "no such device or address. The older ones are as they were. Look at the disk.")],
)  # fmt: skip
def test_what_to_do_follows_from_the_fault(number: int, fix: str) -> None:
    disk = MemoryDisk()

    def fail(now: int, operation: Operation) -> None:
        if operation[0] == "write":
            raise OSError(number, os.strerror(number))

    disk.before = fail
    with pytest.raises(CheckpointFailed) as told:
        write(ROOT, content(1), keep=1, disk=disk)
    assert str(told.value) == f"No checkpoint could be written to /data/checkpoints: {fix}"
    assert names(disk) == []


def test_what_could_not_be_read_again_is_not_written() -> None:
    for wrong, told in [
        ({"x": Tensor("float32", (2,), b"1234567")}, "tensor x of float32 and shape [2] was given as 7 bytes"),
        ({"x": Tensor("float33", (0,), b"")}, "tensor x of float33 and shape [0] was given as 0 bytes"),
    ]:
        with pytest.raises(CheckpointFailed) as error:
            write(ROOT, msgspec.structs.replace(content(), tensors=wrong, state=[]), keep=1, disk=MemoryDisk())
        assert str(error.value) == (
            f"No checkpoint could be written to /data/checkpoints: {told}. The older ones are as they were. This is a "
            "bug of Holdfast: please report it."
        )
    entry = StateEntry("w", "float32", (3,), "half", 0)
    for fields, told in [
        ({"state": [StateEntry("w", "float32", (1,), "nowhere", 0)]}, "the model lies in nowhere, which was not given"),
        ({"state": [entry]}, "it does not fit together: 'w' of the model is not where it shall be, in tensor 'half'"),
        ({"control": {"x": {1}}}, "it cannot be described: A set cannot be kept in the manifest of a checkpoint"),
    ]:
        disk = MemoryDisk()
        with pytest.raises(CheckpointFailed, match=told):
            write(ROOT, msgspec.structs.replace(content(), **fields), keep=1, disk=disk)
        assert names(disk) == []


def test_the_newest_is_never_removed() -> None:
    with pytest.raises(UsageError, match=r"keep = 0: the newest checkpoint is never removed\. Use 1 or more\."):
        write(ROOT, content(), keep=0, disk=MemoryDisk())


class Slow(Disk):
    """The real disk, which takes a byte at a time of large pieces."""

    def write(self, descriptor: int, data: memoryview) -> int:
        return super().write(descriptor, data[:97])


@pytest.mark.parametrize(
    "name", ["plain", "with a space", "Prüfstände/模型", b"caf\xe9".decode(errors="surrogateescape")]
)
def test_on_a_real_disk(tmp_path: Path, name: str) -> None:
    root = tmp_path / name / "checkpoints"
    for step in (1, 2, 3):
        written = write(root, content(step), keep=2, disk=Slow())
    assert sorted(os.listdir(root)) == [".lock", "step-000000000002", "step-000000000003"]
    best = newest(root)
    assert best.passed_over == [] and best.checkpoint is not None and best.checkpoint.path == written.path
    assert open_checkpoint(written.path).verify() == []


def test_a_root_that_is_a_file_or_not_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(CheckpointFailed, match=r"not a directory\. The older ones are as they were\."):
            write(root, content(), keep=1)
    if os.geteuid():
        closed = tmp_path / "closed"
        closed.mkdir(0o500)
        with pytest.raises(CheckpointFailed, match=r"permission denied\. The older ones .* Look at its permissions\."):
            write(closed / "checkpoints", content(), keep=1)
