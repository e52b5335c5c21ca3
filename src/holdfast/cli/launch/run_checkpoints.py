"""The checkpoints of a run that this process launches: where they go, and what they say of it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from typing import Any, Protocol

import msgspec

from holdfast.checkpoint.capture import Taken, content
from holdfast.checkpoint.checkpointer import Checkpointer, Place, StateSource
from holdfast.checkpoint.content import Content, RunFacts, Script
from holdfast.checkpoint.ended_trainings import TrainingEnd, keep
from holdfast.cli.launch.resumption import hash_of
from holdfast.config.checkpoint_interval import parse
from holdfast.config.limits import CHECKPOINT
from holdfast.config.run_config import RunConfig
from holdfast.control.membership import blueprint
from holdfast.control.protocol.messages import Ready
from holdfast.control.shell.coordinator import Coordinator
from holdfast.dataplane.memory.snapshot import SnapshotRoom
from holdfast.errors import CheckpointError
from holdfast.hosts.admission import Admission
from holdfast.hosts.local_host import LocalHost
from holdfast.hosts.state_source import LocalState
from holdfast.observe.directory import CHECKPOINTS, RunDirectory

__all__ = ["RunCheckpoints"]


class _Note(Protocol):
    def __call__(self, sentence: str, *, aloud: bool) -> None:
        """A sentence for the story."""


class RunCheckpoints:
    """Takes them. Resources: `close` ends the thread that does."""

    def __init__(
        self, config: RunConfig, run: str, directory: RunDirectory, coordinator: Coordinator,
        hosts: tuple[LocalHost | None, Admission | None], note: _Note, training: int,
    ) -> None:  # fmt: skip
        """`training` is the number of the script's training that goes on, from 1."""
        self._config, self._run, self._coordinator, self._note = config, run, coordinator, note
        here, self._admission = hosts
        self._here = LocalState(here.view, here.ring) if here is not None else None
        self._loop = asyncio.get_running_loop()
        self._directory, self._training = directory, training
        self._ended = False  # the script has, everywhere
        self._holding: list[int] = []  # hosts that hold the state, as of a moment ago
        self._script = Script(config.script, config.args, hash_of(config.script))
        place = Place(directory.path / CHECKPOINTS, config.keep, config.checkpoint_to)
        self._interval = parse(config.checkpoint)
        self._checkpointer = Checkpointer(
            self._interval, place, source=self._source, describe=self._describe, tell=self._tell
        )

    def take_last(self, *, ended: bool = False) -> None:
        """The run is to end before its time, or the script has `ended`: take one of where it is. Blocks."""
        self._ended = ended
        if self._coordinator.resumable() is not None and not self._interval.off:
            self._checkpointer.request(CHECKPOINT.at_end, still=ended)

    def keep_training(self, end: TrainingEnd) -> None:
        """The training is over and another one follows: write down what it has ended with. Blocks.

        Raises CheckpointError: it could not be written.
        """
        self.close()  # a checkpoint at hand would have other plans with the state
        until = time.monotonic() + CHECKPOINT.at_end
        source = self._source()
        taken = source.take(SnapshotRoom(), lambda: time.monotonic() > until, still=True) if source else None
        content = self._describe(taken) if taken is not None else None
        if content is None:
            raise CheckpointError(
                f"What training {self._training} has ended with could not be copied within {CHECKPOINT.at_end:.0f} s, "
                "so the next one cannot begin. `holdfast run --resume` goes on from the newest checkpoint."
            )
        keep(self._directory.path, self._training, content, end)

    def close(self) -> None:
        """End it. May be called twice."""
        self._checkpointer.close()

    def _source(self) -> StateSource | None:
        """This machine, if it holds the state; else the first other one that does."""
        if self._here is not None and self._here.step() >= 0:
            return self._here
        if self._admission is None:
            return None
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._look)  # in time for the next call
        states = (self._admission.state_of(host) for host in self._holding)
        return next((state for state in states if state is not None and state.step() >= 0), None)

    def _look(self) -> None:
        self._holding = self._coordinator.holding()

    def _tell(self, sentence: str, aloud: bool) -> None:
        self._loop.call_soon_threadsafe(functools.partial(self._note, sentence, aloud=aloud))

    def _describe(self, taken: Taken) -> Content | None:
        snapshot, at = taken.snapshot, taken.at
        known = self._coordinator.resumable()
        if known is None or known.modes[-1].serial != at.serial:
            return None
        parts = dict(blueprint.unpack(known.first.parts))
        facts = RunFacts(
            run=self._run, step=at.step, version=snapshot.version, epoch=at.epoch, samples=at.samples, loss=at.loss,
            sync=known.modes[-1].sync, lanes=known.first.lanes, seed=int(parts.get("seed", self._config.seed or 0)),
            threads=_threads(known.first, self._config), training=self._training,
        )  # fmt: skip
        first = msgspec.structs.replace(known.first, worker=-1)
        resumed = msgspec.structs.replace(known, first=first, step=at.step, ended=self._ended)
        control: dict[str, Any] = msgspec.to_builtins(resumed)
        return content(taken, facts, self._script, msgspec.to_builtins(self._config), control)


def _threads(first: Ready, config: RunConfig) -> int:
    """How many threads each worker computes with: part of what decides the bits."""
    return int(first.numerics.get("threads", config.threads or 1))
