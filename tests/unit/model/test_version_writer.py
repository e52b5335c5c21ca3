"""Writing a version: killed, or without power, before or after each of its operations; would these tests notice?"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.checkpoint.disk import Disk
from holdfast.errors import ModelError, ModelFailed
from holdfast.model import version_writer
from holdfast.model.library import Version, resolve, version_at, versions
from holdfast.model.publishing import publish_weights
from holdfast.model.version_writer import write_version
from tests.unit.checkpoint.memory_disk import Killed, MemoryDisk, Operation
from tests.unit.model.nets import ROOT, draft

ENDS: dict[str, Callable[[MemoryDisk, random.Random], None]] = {
    "kill": lambda disk, chance: disk.restart(),
    "power": lambda disk, chance: disk.lose_power(),
    **{f"power, some reached the disk {n}": lambda disk, chance: disk.lose_power(chance) for n in range(3)},
}


def before() -> MemoryDisk:
    disk = MemoryDisk()
    write_version(ROOT, draft(1), disk=disk)
    disk.log.clear()
    return disk


def names(disk: MemoryDisk) -> list[str]:
    return [name for name in disk.names(ROOT) if name != ".lock"]


def holds(disk: MemoryDisk, numbers: set[int]) -> None:
    """Whatever bears a number is whole, and the newest is one of these."""
    for found in versions(ROOT, disk=disk):
        assert found.why == ""
        version_at(found.path, disk=disk).verify()
    version, passed_over = resolve(ROOT, disk=disk)
    assert version.manifest.version in numbers and passed_over == []
    assert bytes(version.read("weights.safetensors"))[-8:] == bytes([version.manifest.version] * 8)


def killed_everywhere(end: str) -> None:
    chance = random.Random(end)
    disk = before()
    write_version(ROOT, draft(2), disk=disk)
    count = len(disk.log)
    assert count > 20
    for number in range(count):
        for after in (False, True):
            disk = before()
            disk.kill_at(number, after=after)
            with pytest.raises(Killed):
                write_version(ROOT, draft(2), disk=disk)
            ENDS[end](disk, chance)
            holds(disk, {1, 2})
            there = resolve(ROOT, disk=disk)[0].manifest.version
            write_version(ROOT, draft(there + 1), disk=disk)
            holds(disk, {there + 1})
            assert names(disk) == [str(n) for n in range(1, there + 2)]  # nothing is left of the one that was killed
    disk = before()
    write_version(ROOT, draft(2), disk=disk)  # what has returned is there for good
    ENDS[end](disk, chance)
    holds(disk, {2})


def rots_everywhere() -> None:
    disk = before()
    disk.rots = lambda file: ".new-" in str(file)
    with pytest.raises(ModelFailed, match="was read back from the disk with other bytes than were written"):
        write_version(ROOT, draft(2), disk=disk)
    disk.lose_power()
    holds(disk, {1})
    assert names(disk) == ["1"]


@pytest.mark.parametrize("end", ENDS)
def test_a_kill_at_any_operation_leaves_a_whole_version(end: str) -> None:
    killed_everywhere(end)


def test_what_the_disk_has_changed_never_bears_a_number() -> None:
    rots_everywhere()


@pytest.mark.parametrize("call", ["sync", "sync_folder", "forget"])
def test_a_missing_call_is_noticed(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryDisk, call, lambda self, _: None)
    noticed = False
    try:
        rots_everywhere()
        for end in ENDS:
            killed_everywhere(end)
    except (AssertionError, ModelError, pytest.fail.Exception):
        noticed = True
    assert noticed


@pytest.mark.parametrize("end", ["kill", "power"])
def test_publishing_that_is_killed_at_any_operation(end: str, tmp_path: Path) -> None:
    """Weights come from a file on the real disk; all else from the one that is killed."""
    write_version(tmp_path / "other", draft(2))
    weights = tmp_path / "other/1/weights.safetensors"
    disk = before()
    publish_weights(ROOT, weights, disk=disk)
    for number in range(len(disk.log)):
        disk = before()
        disk.kill_at(number)
        with pytest.raises(Killed):
            publish_weights(ROOT, weights, disk=disk)
        ENDS[end](disk, random.Random(0))
        holds(disk, {1, 2})
        if resolve(ROOT, disk=disk)[0].manifest.version == 1:
            assert publish_weights(ROOT, weights, disk=disk) == ROOT / "2"
        holds(disk, {2})


def test_it_appears_when_it_was_tried() -> None:
    disk = before()
    seen = []

    def attempt(version: Version) -> None:
        seen.append((version.manifest.version, [name for name in names(disk) if name.isdigit()]))
        version.verify()

    assert write_version(ROOT, draft(2), attempt=attempt, disk=disk).path == ROOT / "2"
    assert seen == [(2, ["1"])]

    def fails(version: Version) -> None:
        raise KeyError("no")

    with pytest.raises(KeyError):
        write_version(ROOT, draft(3), attempt=fails, disk=disk)
    assert names(disk) == ["1", "2"]


def test_a_full_disk() -> None:
    disk = before()

    def full(number: int, operation: Operation) -> None:
        if operation == ("write", "program.json"):
            raise OSError(errno.ENOSPC, "No space left on device")

    disk.before = full
    with pytest.raises(ModelFailed) as told:
        write_version(ROOT, draft(2), disk=disk)
    assert str(told.value) == (
        f"No version of a model could be written to {ROOT}: no space left on device. The older ones are as they were. "
        "Make room there."
    )
    disk.restart()
    assert names(disk) == ["1"]


def test_two_at_once(tmp_path: Path) -> None:
    write_version(tmp_path, draft(1))
    lock = Disk().lock(tmp_path / ".lock")
    with pytest.raises(ModelFailed, match=r"another process is writing one there\. The older ones are as they were"):
        write_version(tmp_path, draft(2))
    Disk().unlock(lock)
    assert write_version(tmp_path, draft(2)).path.name == "2"


def test_a_number_is_never_used_twice(tmp_path: Path) -> None:
    write_version(tmp_path, draft(1))
    (tmp_path / "5").mkdir()  # something else, or a damaged one
    assert write_version(tmp_path, draft(2)).path.name == "6"


def test_what_json_cannot_say(tmp_path: Path) -> None:
    for more, told in (
        ({"build": {"a": float("nan")}}, "JSON cannot say how it is built"),
        ({"name": "a/b"}, "it does not fit together"),
    ):  # fmt: skip
        with pytest.raises(ModelFailed, match=told):
            write_version(tmp_path, draft(**more))  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_versions_of_what_it_was_made_with() -> None:
    told = version_writer.frameworks("torch", "no-such-package")
    assert set(told) >= {"python", "numpy", "torch"} and "no-such-package" not in told
