"""When checkpoints are taken, and what is told of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.checkpoint import checkpointer as module
from holdfast.checkpoint.capture import Taken
from holdfast.checkpoint.checkpointer import Checkpointer, Place
from holdfast.checkpoint.content import Content
from holdfast.config.checkpoint_interval import parse
from holdfast.dataplane.memory.snapshot import SnapshotRoom
from holdfast.errors import CheckpointFailed
from tests.process.harness import until
from tests.unit.checkpoint.contents import content
from tests.unit.checkpoint.test_capture import captured, trained
from tests.unit.dataplane.memory.test_snapshot import view_of


class Source:
    """A state that is asked for; with `awaits`, one that waits for a version that comes only where all is still."""

    def __init__(self) -> None:
        self.taken, self.at, self.awaits = captured(view_of(trained(1))), 0, False
        self.asked: list[bool] = []
        self.waiting = threading.Event()

    def step(self) -> int:
        self.at += self.awaits and not self.waiting.is_set()
        return self.at

    def take(self, room: SnapshotRoom, stopped: Callable[[], bool], *, still: bool) -> Taken | None:
        self.asked.append(still)
        while self.awaits and not still:
            self.waiting.set()
            if stopped():
                return None
        return self.taken._replace(at=self.taken.at._replace(step=self.at))


@contextmanager
def checkpointing(root: Path, every: str, source: Source | None) -> Iterator[tuple[Checkpointer, list[str]]]:
    told: list[str] = []

    def describe(taken: Taken) -> Content:
        return content(taken.at.step)

    one = Checkpointer(
        parse(every), Place(root, 2), source=lambda: source, describe=describe, tell=lambda text, _: told.append(text)
    )
    try:
        yield one, told
    finally:
        one.close()


def test_one_is_taken_when_so_many_steps_were_made(tmp_path: Path) -> None:
    source = Source()
    with checkpointing(tmp_path, "3steps", source) as (one, told):
        for step in (1, 2, 3):
            source.at = step
        until(lambda: told, "the first")
        source.at = 7
        until(lambda: len(told) == 2, "the second")
    assert source.asked == [False, False]
    assert [text.partition(":")[0] for text in told] == ["checkpoint of step 3", "checkpoint of step 7"]
    assert one.newest is not None and one.newest.name == "step-000000000007"


def test_the_last_one_does_not_wait_for_a_version_that_will_not_come(tmp_path: Path) -> None:
    """One was being taken when the script ended everywhere."""
    source = Source()
    source.awaits = True
    with checkpointing(tmp_path, "1step", source) as (one, told):
        assert source.waiting.wait(5.0)
        assert one.request(5.0, still=True)
    assert source.asked[-1] is True and len(told) == 1


def test_without_a_state_nothing_is_taken_and_nobody_waits(tmp_path: Path) -> None:
    source = Source()
    source.at = -1
    for nothing in (source, None):
        with checkpointing(tmp_path, "1step", nothing) as (one, told):
            assert not one.request(5.0)
            assert not source.asked and not told


def test_trouble_is_told_once_and_its_end_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, write = Source(), module.writer.write
    with checkpointing(tmp_path, "off", source) as (one, told):
        with monkeypatch.context() as broken:

            def full(root: Path, *_: object, **__: object) -> None:
                raise CheckpointFailed(root, "no space left on device", "Make room there.")

            broken.setattr(module.writer, "write", full)
            assert not one.request(5.0) and not one.request(5.0)
        assert len(told) == 1 and "no space left on device" in told[0] and told[0].endswith("Training goes on.")
        assert module.writer.write is write
        source.at = 4
        assert one.request(5.0)
    assert told[1] == "checkpoints are written again: step 4"
