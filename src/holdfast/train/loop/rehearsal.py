"""Rehearsal: what a worker is given of a loop that has nothing for it to compute, and of which nothing counts.

The script goes on with what a loop leaves behind: `step`, the last batch, a loss that is printed. A worker that comes
late to a loop that is over takes one turn of it all the same, with one batch: no gradient is given to anybody,
`optimizer.step()` returns at once, an evaluation measures one batch, and what the turn has done to settings and to kept
state is replaced by what the crew has, where this worker comes to it.

In a loop by steps that goes on, an inner loop may be empty: in a server, and in a worker that comes to a turn whose
units are all done. One that has given this worker no batch so far gives it one, of which nothing counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from holdfast.data.randomness import compute_key, seed_everything
from holdfast.dataplane.reduce.work import StepWork
from holdfast.errors import UsageError
from holdfast.train.loop.step_batches import StepBatches

if TYPE_CHECKING:
    from holdfast.train.training import Training

__all__ = ["Rehearsal", "uncounted"]


def uncounted(training: Training, batches: StepBatches, at: int, step: int) -> Iterator[Any]:
    """One batch of the loop's turn `at`, with random numbers of this step. No gradient is taken of it."""
    counts = batches.counts(at)
    lane = next(number for number, count in enumerate(counts) if count)
    part = batches.parts(at, lane)[0]
    batch = batches.fetch(part, lambda: iter([part]))
    seed_everything(compute_key(training.seed, step, lane))
    training.unit = StepWork(step, (lane,), counts), lane, part[0]
    try:
        yield batch
    finally:
        training.unit = None
        for loader in training.loaders:
            loader.close()


class Rehearsal:
    """What the script holds as its step in such a turn."""

    in_units = whole = dropped = False
    phases = 1

    def __init__(self, training: Training, batches: StepBatches, first: int) -> None:
        """`first` is the first step of the loop, if those before it were not left early."""
        self._training, self._batches, self._first = training, batches, first
        self._loss = training.bound.board.step_facts(training.bound.version).loss

    @property
    def number(self) -> int:
        """Of the first step of the loop, in which what is done every few steps is mostly done."""
        return self._first

    @property
    def loss(self) -> float:
        """Of the newest step that is committed."""
        return self._loss

    def __iter__(self) -> Iterator[Any]:
        yield from uncounted(self._training, self._batches, 0, self._first)

    def skip(self) -> None:
        """There is nothing to leave out."""

    def end(self, caller: str, optimizer: int | None = None, *, drop: bool = False) -> None:
        """`optimizer.step()`: there is nothing to apply. In a plain loop the batch's code is through with it."""
        self._training.unit = None

    def leave(self) -> None:
        """The turn is over."""
        training = self._training
        for parameter in (*training.space.trainable, *training.space.fixed):
            parameter.grad = None
        training.bound.buffers.distrust()

    def check_over(self) -> None:
        """It may end anyhow."""

    def measured(self, compute: Callable[[int], tuple[int, Any]]) -> dict[str, float]:
        """What an evaluation gives in this turn: that of its first part."""
        if self._training.unit is not None:
            raise UsageError("run.evaluate or run.agree was called inside of the loop over the units of a step.")
        return dict(compute(0)[1])
