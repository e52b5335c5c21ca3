"""Saves of a real process on a real disk: killed at any moment, and on disks that are full or read-only."""

from __future__ import annotations

import errno
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.checkpoint.content import Content, Tensor
from holdfast.checkpoint.reader import found, newest, open_checkpoint
from holdfast.checkpoint.writer import write
from holdfast.errors import CheckpointFailed
from tests.process.harness import environment
from tests.unit.checkpoint.contents import content

pytestmark = [pytest.mark.process, pytest.mark.sharing]

_SAVES = """
import sys
from pathlib import Path
from holdfast.checkpoint.writer import write
from tests.process.test_checkpoint_files import large
for step in range(int(sys.argv[2]), 10**6):
    write(Path(sys.argv[1]), large(step, 1 << 20), keep=2)
    print(step, flush=True)
"""


def large(step: int, size: int) -> Content:
    """A checkpoint of so many bytes."""
    weights = Tensor("int64", (size // 8,), step.to_bytes(8, "little") * (size // 8))
    return msgspec.structs.replace(content(step), state=[], tensors={"parameters/int64": weights})


def test_killed_at_any_moment(tmp_path: Path) -> None:
    """What a process has said to be saved is there after its kill, or something newer; nothing piles up."""
    chance, root, step = random.Random(3), tmp_path / "checkpoints", 1
    for _ in range(20):
        child = subprocess.Popen(
            [sys.executable, "-c", _SAVES, str(root), str(step)], env=environment(), stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        said = int(child.stdout.readline())
        until = time.monotonic() + chance.uniform(0, 0.1)
        while (left := until - time.monotonic()) > 0 and select.select([child.stdout], [], [], left)[0]:
            said = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        said = max([said, *map(int, child.communicate()[0].split())])
        best = newest(root)
        assert best.passed_over == [] and best.checkpoint is not None
        assert said <= best.checkpoint.manifest.facts.step <= said + 1
        for item in found(root):
            assert open_checkpoint(item.path).verify() == []
        step = best.checkpoint.manifest.facts.step + 1
    write(root, content(step), keep=2)
    assert len(os.listdir(root)) == 3  # two, and the lock


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    root = small_disk / "checkpoints"
    write(root, large(1, 1 << 20), keep=3)
    with pytest.raises(CheckpointFailed) as error:
        write(root, large(2, 8 << 20), keep=3)
    assert str(error.value) == (
        f"No checkpoint could be written to {root}: no space left on device. The older ones are as they were. Make "
        "room there; `--keep` says how many checkpoints stay."
    )
    assert sorted(os.listdir(root)) == [".lock", "step-000000000001"]
    assert newest(root).passed_over == []
    write(root, large(3, 1 << 20), keep=3)  # there is room again
    assert [item.step for item in found(root)] == [3, 1]


def test_a_disk_that_became_read_only(small_disk: Path) -> None:
    root = small_disk / "checkpoints"
    write(root, content(1), keep=3)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(CheckpointFailed, match=os.strerror(errno.EROFS).lower()):
        write(root, content(2), keep=3)
    best = newest(root)
    assert best.checkpoint is not None and best.checkpoint.manifest.facts.step == 1
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert write(root, content(2), keep=3).path.name == "step-000000000002"
