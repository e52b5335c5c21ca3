"""Trainings: which of its script's trainings a worker is at. Each is one `hf.join() ... run.close()`.

A run goes from one training of its script to the next as if it were resumed: its workers end, and new ones run the
script from its top. What is over they go through again in private memory, as a worker that comes late to a training in
which all is done: loops give it no steps, evaluations return what they returned then, models and what is kept become
what they ended as. That is checked at the end of each, and what the script has in plain variables before the next. The
first training that is not over they make together. What they print until then was printed when it was made.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.checkpoint.ended_trainings import EndedTraining, open_ended
from holdfast.config.worker_spec import WorkerSpec
from holdfast.control.protocol.messages import Finished
from holdfast.errors import NotKept, UsageError
from holdfast.train.control_link import ControlLink
from holdfast.train.loop.variables import between_trainings

__all__ = ["Trainings"]


class Trainings:
    """Those of one worker's script."""

    def __init__(self, spec: WorkerSpec, steered: ControlLink) -> None:
        self._spec, self._steered = spec, steered
        self._closed = 0  # that the script is through with
        self._left: dict[str, str] = {}  # what the script had in its variables where it closed the newest one
        self._single = spec.single  # why it can have one only
        self._past: EndedTraining | None = None  # the newest one that this worker has gone through
        self.result: dict[str, Any] | None = None  #: of the one at hand, once the script has closed it
        self._muted: list[int] = []  # descriptors of its output, while nothing of it is to be seen
        if spec.training:
            self._mute()

    def begin(self) -> EndedTraining | None:
        """The script joins: what it joins, if that is over, else None. Where a later one is to begin, this worker ends.

        Raises:
            UsageError: there cannot be another training.
            NotKept: the script does not stand here as it did in the workers that made the training before.
        """
        if self._closed > self._spec.training:
            self._hand_over()
        if self._closed == self._spec.training:
            self.unmute()
        if self._past is not None:
            between_trainings.compare(self._now(), self._past.end.variables, self._closed)
            between_trainings.forget(self._closed)
        self._past = None
        if self._closed < self._spec.training:
            self._past = open_ended(Path(self._spec.dir), self._closed + 1)
        return self._past

    def note_store(self) -> None:
        """The script uses a store."""
        self._single = "the script uses run.store, and what a store holds does not outlive its training"

    def close(self, result: dict[str, Any] | None, *, begun: bool) -> None:
        """The script is through with a run, which has `begun` a training or not; without `result`, by an exception."""
        if not begun:
            self._past, self.result = None, self.result or result
            return
        self._closed += 1
        self._left = between_trainings.left()
        if self._past is None:
            self.result = result
        elif result is not None:
            _check_same(self._past, result)
        if result is None:
            self._single = "a training was left by an exception, so nobody knows what it ended with"

    def check_come(self) -> None:
        """The script has come to its end: refuse one that has not come to the training at hand. Raises NotKept."""
        missing = self._closed < self._spec.training or self.result is None
        if self._spec.training and missing:
            what = f"the script comes to its end before training {self._spec.training + 1}, which others had begun"
            raise NotKept.apart(max(self._closed, 1), what)

    def unmute(self) -> None:
        """What the script prints is to be seen from now on. May be called twice."""
        if self._muted:
            _flush()
            for number, kept in zip((1, 2), self._muted, strict=True):
                os.dup2(kept, number)
                os.close(kept)
            self._muted = []

    def _mute(self) -> None:
        _flush()
        self._muted = [os.dup(1), os.dup(2)]
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        for number in (1, 2):
            os.dup2(nowhere, number)
        os.close(nowhere)

    def _now(self) -> dict[str, str]:
        """What the script had when it closed the newest training, and has now that it joins again."""
        return {**self._left, **between_trainings.left()}

    def _hand_over(self) -> None:
        """Say that the training is over and another one follows, for which other workers run the script."""
        if self._single:
            raise UsageError(
                f"hf.join() was called again after run.close(), and here a run can be one training only: "
                f"{self._single}. Start one run for each, with its number as an argument of the script (`holdfast run "
                "--dir runs/fold-0 train.py 0`), or use plain python, where a script may join as often as it closes."
            )
        spec, steered = self._spec, self._steered
        result = {"joined": True, **(self.result or {})}
        steered.send(Finished(spec.worker, steered.generation, result, self._now()))
        steered.leave("another training follows")


def _check_same(past: EndedTraining, result: Mapping[str, Any]) -> None:
    """A training that is over has ended in this worker as it did in those that made it. Raises NotKept."""
    for name in ("steps", "samples", "weights_sha256"):
        mine, theirs = str(result.get(name)), str(past.end.result.get(name))
        if mine != theirs:
            raise NotKept.apart(past.number, f"it ends with {name} = {mine}, and ended with {theirs}")


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
