"""A save that is killed, or loses power, before or after each of its operations; and whether these tests would notice.

The oracle, after every end: some checkpoint can be read that was there before or was being written; whatever bears the
name of a checkpoint is whole; and the next save works and leaves nothing but checkpoints.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.checkpoint import stream
from holdfast.checkpoint.content import Content
from holdfast.checkpoint.reader import found, newest, open_checkpoint
from holdfast.checkpoint.writer import Save, write
from holdfast.errors import CheckpointFailed
from tests.unit.checkpoint.contents import content
from tests.unit.checkpoint.memory_disk import Killed, MemoryDisk

ROOT = Path("/data/checkpoints")

Scene = Callable[[], tuple[MemoryDisk, Content, set[int]]]


def _first() -> tuple[MemoryDisk, Content, set[int]]:
    """The first save of all."""
    return MemoryDisk(), content(1), set()


def _one_more() -> tuple[MemoryDisk, Content, set[int]]:
    """A save that makes another one superfluous."""
    disk = MemoryDisk()
    write(ROOT, content(1), keep=1, disk=disk)
    disk.log.clear()
    return disk, content(2), {1}


def _same_step() -> tuple[MemoryDisk, Content, set[int]]:
    """One that takes the place of another of the same step, the only one there is."""
    disk = MemoryDisk()
    write(ROOT, content(2, weights=77), keep=1, disk=disk)
    disk.log.clear()
    return disk, content(2), {2}


SCENES = [_first, _one_more, _same_step]
ENDS: dict[str, Callable[[MemoryDisk, random.Random], None]] = {
    "kill": lambda disk, chance: disk.restart(),
    "power": lambda disk, chance: disk.lose_power(),
    **{f"power, some reached the disk {n}": lambda disk, chance: disk.lose_power(chance) for n in range(4)},
}


def operations(scene: Scene) -> int:
    disk, new, _ = scene()
    write(ROOT, new, keep=1, disk=disk)
    return len(disk.log)


def holds(disk: MemoryDisk, before: set[int], new: Content) -> None:
    """The oracle."""
    best = newest(ROOT, disk=disk)
    assert best.passed_over == []
    if before:
        assert best.checkpoint is not None
        assert best.checkpoint.manifest.facts.step in before | {new.facts.step}
    for item in found(ROOT, disk=disk):
        open_checkpoint(item.path, disk=disk).verify()


def killed_everywhere(scene: Scene, end: str) -> None:
    chance = random.Random(end)
    count = operations(scene)
    assert count > 20
    for number in range(count):
        for after in (False, True):
            disk, new, before = scene()
            disk.kill_at(number, after=after)
            with pytest.raises(Killed):
                write(ROOT, new, keep=1, disk=disk)
            ENDS[end](disk, chance)
            holds(disk, before, new)
            write(ROOT, new, keep=1, disk=disk)
            holds(disk, {new.facts.step}, new)
            assert [name for name in disk.names(ROOT) if name != ".lock"] == [found(ROOT, disk=disk)[0].path.name]
    # A save that has returned is there for good.
    disk, new, _ = scene()
    path = write(ROOT, new, keep=1, disk=disk).path
    ENDS[end](disk, chance)
    best = newest(ROOT, disk=disk)
    assert best.checkpoint is not None and best.checkpoint.path == path
    assert best.checkpoint.read("parameters/float32") == stream.flat(new.tensors["parameters/float32"].data)


def rotting_everywhere(scene: Scene) -> None:
    """The disk changes a bit of each new file; killed at every operation of such a save, and at none."""
    count = operations(scene)
    for number in range(count + 1):
        disk, new, before = scene()
        disk.rots = lambda file: ".new-" in str(file)
        disk.kill_at(number)
        with pytest.raises((Killed, CheckpointFailed)):
            write(ROOT, new, keep=1, disk=disk)
        disk.lose_power()
        holds(disk, before, new)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("scene", SCENES)
def test_a_kill_at_any_operation_leaves_one_that_can_be_read(scene: Scene, end: str) -> None:
    killed_everywhere(scene, end)


@pytest.mark.parametrize("scene", SCENES)
def test_what_the_disk_has_changed_never_bears_a_good_name(scene: Scene) -> None:
    rotting_everywhere(scene)


def test_one_that_was_read_back_wrong_is_told() -> None:
    disk, new, _ = _one_more()
    disk.rots = lambda file: file.name == "state.safetensors"
    with pytest.raises(CheckpointFailed) as told:
        write(ROOT, new, keep=1, disk=disk)
    assert str(told.value) == (
        "No checkpoint could be written to /data/checkpoints: state.safetensors was read back from the disk with other "
        "bytes than were written. The older ones are as they were. The disk or the memory of this machine is failing: "
        "look at the kernel's log."
    )
    assert disk.names(ROOT) == [".lock", "step-000000000001"]


# ---- would these tests notice?


def _publish_first(self: Save) -> None:
    self.put()
    self.publish()
    self.read_back(self.path)
    self.retire()


def _retire_first(self: Save) -> None:
    self.put()
    self._keep = 0
    self.retire()
    self.read_back(self._new)
    self.publish()


def _retire_before_publish_is_synced(self: Save) -> None:
    self.put()
    self.read_back(self._new)
    self._disk.rename(self._new, self.path)
    self.retire()
    self._disk.sync_folder(self._root)


def _no_read_back(self: Save) -> None:
    self.put()
    self.publish()
    self.retire()


@pytest.mark.parametrize("mutant", [_publish_first, _retire_first, _retire_before_publish_is_synced, _no_read_back])
def test_steps_in_another_order_are_noticed(mutant: Callable[[Save], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Save, "run", mutant)
    assert noticed()


@pytest.mark.parametrize("call", ["sync", "sync_folder", "forget"])
def test_a_missing_call_is_noticed(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryDisk, call, lambda self, _: None)
    assert noticed()


def noticed() -> bool:
    """Whether one of the tests above fails."""
    try:
        for scene in SCENES:
            rotting_everywhere(scene)
            for end in ENDS:
                killed_everywhere(scene, end)
    except (AssertionError, CheckpointFailed, pytest.fail.Exception):
        return True
    return False
