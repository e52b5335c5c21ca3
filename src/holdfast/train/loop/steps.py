"""The loop by steps: one turn of `for step in run.steps(loader)` is one step, on every crew and through every kill.

    for step in run.steps(loader):        a turn begins: what a newcomer needs to enter here is written down
        for x, y in step:                 units of my lanes; ends when the whole gradient is here
            loss_of(model(x), y).backward()
        ...                               the script's code: `.grad` is the gradient of the whole batch, private
        optimizer.step()                  ends the step: the parameters have moved when it returns
        ...                               the script's code, once a step in every worker

A turn lasts until the next one begins, or the loop is left. A worker that comes late enters the newest turn that was
begun, with the settings of its top. Where the crew has made that step already, its units are nobody's any more: the
inner loop is empty, `.grad` is what it was for the others, `optimizer.step()` returns at once, and the code around them
runs.

A step that is given up (`step.skip()`, or a loop that is left before `optimizer.step()`) takes a version, as all
workers must know that its units are not those of the next step; parameters stay as they are.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.data.batches import Batches, UnitRequest
from holdfast.data.randomness import data_key
from holdfast.dataplane.reduce.work import StepWork
from holdfast.errors import NotExact, UsageError

if TYPE_CHECKING:
    from holdfast.train.loop.turns import Turns

__all__ = ["Stage", "Step", "Steps"]


class Stage(enum.Enum):
    """How far a turn has come."""

    TOP = "before its units"
    UNITS = "in its units"
    WHOLE = "with its gradient"
    OVER = "after its end"


class Step:
    """One turn. Iterating it gives the batches of this worker's lanes."""

    def __init__(self, turns: Turns, batches: Batches, order: int, work: StepWork, at: int) -> None:
        self._turns, self._batches, self._order, self._work, self._at = turns, batches, order, work, at
        self._training = turns.training
        self._stage = Stage.TOP
        self.dropped = False  #: the loop was left before the step's end
        self._loss = float("nan")

    @property
    def number(self) -> int:
        """Of this step, counted from the beginning of the run."""
        return self._work.step

    @property
    def loss(self) -> float:
        """The mean loss over the whole batch, the same in every worker; known after the units."""
        return self._loss

    @property
    def in_units(self) -> bool:
        """Is the script going through the units?"""
        return self._stage is Stage.UNITS

    @property
    def whole(self) -> bool:
        """Are the units through, and the step not over?"""
        return self._stage is Stage.WHOLE

    def __iter__(self) -> Iterator[Any]:
        if self._turns.turn is not self:
            raise UsageError(f"Step {self.number} is over: iterate over the step of the turn at hand.")
        if self._stage is not Stage.TOP:
            raise UsageError(
                f"Step {self.number} was iterated over twice ({self._stage.value}). Go through its batches once a "
                "turn; what needs them again belongs into the same pass through them."
            )
        self._turns.begin_units()
        self._stage = Stage.UNITS
        return self._units()

    def _units(self) -> Iterator[Any]:
        training, work = self._training, self._work
        while (lane := training.bound.member.next_lane(work)) is not None:
            request = self._request(lane)
            training.open_unit(work, lane, request)
            batch = self._batches.fetch(request, partial(self._ahead, lane))
            self._turns.purity.begin_unit(work, lane, batch)
            training.begin_unit(work, lane)
            yield batch
            yield from self._turns.purity.again(work, lane, self._batches, request)
            training.take_unit()
        self._loss = self._turns.end_units(work)
        self._stage = Stage.WHOLE

    def skip(self) -> None:
        """End the step without an update: its batch is used up, parameters stay as they are."""
        self.end("step.skip()", drop=True)

    def end(self, caller: str, *, drop: bool = False, extra: bool = False) -> None:
        """Complete the version: with an update, or as a step without one, or as none."""
        if self._turns.turn is not self:
            raise UsageError(f"{caller} was called for step {self.number}, which is over.")
        match self._stage:
            case Stage.TOP:
                raise UsageError(
                    f"{caller} was called in step {self.number} before its units. Go through them first: "
                    "`for batch in step: loss_of(model, batch).backward()`."
                )
            case Stage.UNITS:
                raise UsageError(
                    f"{caller} was called before the end of the loop over the units of step {self.number}. Call it "
                    "once, after that loop has come to its end by itself."
                )
            case Stage.OVER:
                raise UsageError(
                    f"{caller} was called in step {self.number} after the step had ended. A turn ends once: by "
                    "optimizer.step() or by step.skip()."
                )
        self._turns.end_turn(self._work, drop=drop, extra=extra)
        self._stage = Stage.OVER

    def leave(self) -> None:
        """The turn is over: the next one begins, or the loop was left."""
        if self._stage is Stage.UNITS:
            raise UsageError(
                f"The loop over the units of step {self.number} was left before its end, so the gradient of the step "
                "is not whole. Let it run to its end, and leave the loop over steps instead."
            )
        if self._stage is Stage.WHOLE:
            self._turns.write_exit(self._work.version + 1)  # before the version is there, by which it counts
            self.end("leaving the loop", drop=True, extra=True)
            self.dropped = True

    def check_over(self) -> None:
        """Refuse to begin another turn while this one's step has not ended."""
        if self._stage in (Stage.TOP, Stage.WHOLE):
            before = "its units and " if self._stage is Stage.TOP else ""
            raise NotExact(
                f"the turn of step {self.number} ended without {before}optimizer.step()",
                "Call it once a turn, after the loop over the step's units; step.skip() ends a step without an update.",
            )

    def _request(self, lane: int) -> UnitRequest:
        step = self._work.step
        return _request(self._batches, self._training.seed, self._order, step - self._at, step, lane)

    def _ahead(self, lane: int) -> Iterator[UnitRequest]:
        """This unit, and those this worker will be given if nothing changes."""
        mine, at, step = self._training.bound.member.driven(), self._at, self._work.step
        while at < self._batches.steps:
            counts = self._batches.counts(at)
            for other in mine:
                if other >= lane and counts[other]:
                    yield _request(self._batches, self._training.seed, self._order, step - at, step, other)
            at, step, lane = at + 1, step + 1, 0


class Steps:
    """The iterator behind `for step in run.steps(loader)`. The loop was left when nobody holds it any more."""

    def __init__(self, turns: Turns, batches: Batches, order: int, *, entered: bool, going: bool) -> None:
        """`entered`: a late worker enters a turn that the crew has begun, perhaps ended."""
        self._turns, self._batches, self._order = turns, batches, order
        training = turns.training
        self._entered, self._going = entered, going
        # Of this loop's units, whoever computes them.
        training.samples_of = partial(_request, batches, training.seed, order, training.first_step)

    def __iter__(self) -> Steps:
        return self

    def __next__(self) -> Step:
        turns, training = self._turns, self._turns.training
        if self._going and turns.open_steps() is not self:
            raise UsageError(
                "Another loop over a prepared loader was begun inside of this one; that ended it at step "
                f"{training.step}. Finish or leave (`break`) one before the next."
            )
        if turns.turn is not None:
            turns.turn.check_over()
            turns.turn.leave()
            turns.turn = None
        if not self._going:
            raise StopIteration
        at, entered = training.step - training.first_step, self._entered
        self._entered = False
        stopping = not entered and training.bound.stopping(training.step)
        if at >= self._batches.steps or stopping:
            self._going = False
            turns.end()
            raise StopIteration
        counts = self._batches.counts(at)
        lanes = tuple(lane for lane, count in enumerate(counts) if count)
        work = StepWork(training.step, lanes, counts, training.bound.ahead, turn=True)
        turns.turn = Step(turns, self._batches, self._order, work, at)
        turns.begin_turn(work)
        return turns.turn


def _request(batches: Batches, seed: int, order: int, first: int, step: int, lane: int) -> UnitRequest:
    """The samples of a unit of a loop whose first step is `first`."""
    at = step - first
    return batches.request(data_key(seed, order, at, lane), order, at, lane)
