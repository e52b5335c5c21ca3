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
runs. In place of the first empty one there is one batch of which nothing counts (`rehearsal`).

**Phases.** A turn may go through the units several times, each time followed by the step of an optimizer. Each is a
*phase*, with the same samples, other random numbers and a version of its own. Several optimizers may also use one
gradient after the other: that makes versions without units. The first version of a turn counts as its step, the others
are extra ones.

A step that is given up (`step.skip()`, or a loop that is left before `optimizer.step()`) takes a version, as all
workers must know that its units are not those of the next step; parameters stay as they are.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.data.batches import UnitRequest
from holdfast.data.randomness import compute_key, seed_everything
from holdfast.dataplane.reduce.work import StepWork
from holdfast.errors import NotExact, UsageError
from holdfast.train.loop.plain.counters import advance
from holdfast.train.loop.step_batches import Part, PartsMean, StepBatches
from holdfast.train.loop.variables.script_values import script_line

if TYPE_CHECKING:
    from holdfast.train.loop.rehearsal import Rehearsal
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

    def __init__(self, turns: Turns, batches: StepBatches, work: StepWork, at: int) -> None:
        self._turns, self._batches, self._work, self._at = turns, batches, work, at
        self._training = turns.training
        self._stage = Stage.TOP
        self.dropped = False  #: the loop was left before the step's end
        self._lanes, self._phase = work.lanes, 0
        self._counted = False  # a version of this turn is its step
        self._used: set[int | None] = set()  # optimizers that have used the gradient of this phase; None: it is dropped
        self._loss = float("nan")

    @property
    def number(self) -> int:
        """Of this step, counted from the beginning of the run."""
        return self._work.step

    @property
    def loss(self) -> float:
        """The mean loss over the whole batch, the same in every worker; known after the units.

        With `reduction = "sum"` it is the sum.
        """
        return self._loss

    @property
    def phases(self) -> int:
        """How often the script has gone through the units so far."""
        return self._phase + 1

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
        if self._stage is Stage.UNITS or (self._stage is Stage.WHOLE and not self._turns.gradient.given_up):
            raise UsageError(
                f"Step {self.number} was iterated over again ({self._stage.value}). Use the gradient of the first time "
                "before: with optimizer.step(), or optimizer.zero_grad() or step.skip() to drop it."
            )
        if self._stage is Stage.WHOLE:
            self._complete(None)
        if self._stage is Stage.OVER:
            self._go_on(self._lanes)
            self._used.clear()
            self._phase += 1
        self._turns.begin_units(self._work, self._phase)
        self._stage = Stage.UNITS
        return self._units()

    def _units(self) -> Iterator[Any]:
        training, work, phase, purity = self._training, self._work, self._phase, self._turns.purity
        purity.begin_units(phase)
        nothing = True
        if not training.bound.member.driven() and self._turns.lacks_batch(phase):  # while others compute
            yield from self._turns.rehearse_units(work, phase, self._batches, self._at)
            nothing = False
        while (lane := training.bound.member.next_lane(work)) is not None:
            nothing = False
            parts = self._batches.parts(self._at, lane)
            training.open_unit(work, lane, _whole(parts))
            self._turns.give(phase)
            purity.begin_unit(lane)
            yield from self._unit(lane, parts)
            purity.end_unit()
            if purity.chose(work.step, lane):
                yield from purity.again(work, lane, partial(self._unit, lane, parts, again=True))
            training.take_unit()
        if nothing and self._turns.lacks_batch(phase):
            yield from self._turns.rehearse_units(work, phase, self._batches, self._at)
        purity.end_units()
        self._loss = self._turns.end_units(work)
        self._stage = Stage.WHOLE

    def _unit(self, lane: int, parts: list[Part], *, again: bool = False) -> Iterator[Any]:
        """The batches of one unit; `again` fetches them anew."""
        training, work = self._training, self._work
        mean = PartsMean(training.space.trainable, parts, sums=training.bound.member.sums)
        for number, part in enumerate(parts):
            if again:
                batch = self._batches.fetch_again(part)
            else:
                batch = self._batches.fetch(part, partial(self._ahead, (lane, number)))
            self._turns.purity.see(lane, batch)
            if number == 0:
                training.begin_unit(work, lane, parts=len(parts))
            if self._phase or number:
                seed_everything(compute_key(training.seed, work.step, lane, self._phase, number))
            yield batch
            training.end_part(mean.weight(number))
            mean.end_part(number)

    def skip(self) -> None:
        """End the step without an update: its batch is used up, parameters stay as they are."""
        self.end("step.skip()")

    def end(self, caller: str, optimizer: int | None = None, *, drop: bool = False) -> None:
        """Complete a version: with an update by this optimizer; without one, if there is none or it is to `drop` it."""
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
                if self._used & {None, optimizer} or optimizer is None:
                    raise UsageError(
                        f"{caller} was called in step {self.number} after the step had ended. A turn ends once: by "
                        "optimizer.step() or by step.skip()."
                    )
                self._go_on(())
        self._complete(optimizer, drop=drop)

    def _go_on(self, lanes: tuple[int, ...]) -> None:
        """Another version of this turn begins."""
        self._work = replace(self._work, lanes=lanes, ahead=self._work.ahead + 1)

    def _complete(self, optimizer: int | None, *, drop: bool = False, left: bool = False) -> None:
        """Complete the version at hand. It is the turn's step, unless that is there or the loop was `left`."""
        extra = left or self._counted
        self._turns.end_turn(self._work, optimizer=optimizer, drop=drop, left=left, extra=extra)
        self._counted = True
        self._used.add(optimizer)
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
            self._complete(None, left=True)
            self.dropped = True

    def check_over(self) -> None:
        """Refuse to begin another turn while this one's step has not ended."""
        if self._stage is Stage.WHOLE and self._counted and self._turns.gradient.given_up:
            self._complete(None)
        if self._stage in (Stage.TOP, Stage.WHOLE):
            before = "its units and " if self._stage is Stage.TOP else ""
            worker = f" in worker {self._training.steered.worker}" if self._training.steered is not None else ""
            raise NotExact(
                f"the turn of step {self.number} ended without {before}optimizer.step(){worker}, and the loop at line "
                f"{script_line()} of the script went on",
                "Call it once a turn, after the loop over the step's units; step.skip() ends a step without an update.",
            )

    def _ahead(self, first: tuple[int, int]) -> Iterator[Part]:
        """This part, the `first` as (lane, number), and those this worker will be given if nothing changes."""
        mine, at, phase = self._training.bound.member.driven(), self._at, self._phase
        while at < self._batches.steps:
            counts = self._batches.counts(at)
            for _ in range(phase, max(phase + 1, self._turns.phases)):
                for other in mine:
                    parts = self._batches.parts(at, other) if counts[other] else ()
                    yield from (part for number, part in enumerate(parts) if (other, number) >= first)
                first = 0, 0
            at, phase = at + 1, 0


class Steps:
    """The iterator behind `for step in run.steps(loader)`. The loop was left when nobody holds it any more."""

    def __init__(self, turns: Turns, batches: StepBatches, *, entered: bool, going: bool) -> None:
        """`entered`: a late worker enters a turn that the crew has begun, perhaps ended."""
        self._turns, self._batches = turns, batches
        training = turns.training
        self._entered, self._going = entered, going
        self.rehearsal: Rehearsal | None = None  #: the crew has made this loop without this worker
        self.passing = 0  #: how often it is still to give None, to those that only count (`counters`)
        # Of this loop's units, whoever computes them.
        training.samples_of = partial(batches.samples, training.first_step)

    def __iter__(self) -> Steps:
        return self

    def __next__(self) -> Step | Rehearsal:
        if self.passing:
            self.passing -= 1
            return None  # type: ignore[return-value]  # what the script never sees
        turns, training = self._turns, self._turns.training
        if self._going and turns.open_steps() is not self:
            raise UsageError(
                "Another loop over a prepared loader was begun inside of this one; that ended it at step "
                f"{training.step}. Finish or leave (`break`) one before the next."
            )
        if self.rehearsal is not None and turns.turn is self.rehearsal:
            turns.end_rehearsal()
            raise StopIteration
        if turns.turn is not None:
            turns.turn.check_over()
            turns.turn.leave()
            turns.phases = turns.turn.phases
            turns.turn = None
        if not self._going:
            if self.rehearsal is None or turns.open_steps() is not self:
                raise StopIteration
            turns.rehearse(self.rehearsal)
            return self.rehearsal
        at, entered = training.step - training.first_step, self._entered
        if entered:
            advance(self, at, training.step)
        self._entered = False
        stopping = not entered and training.bound.stopping(training.step)
        if at >= self._batches.steps or stopping:
            self._going = False
            turns.end()
            raise StopIteration
        counts = self._batches.counts(at)
        lanes = tuple(lane for lane, count in enumerate(counts) if count)
        work = StepWork(training.step, lanes, counts, training.bound.ahead, turn=True)
        step = turns.turn = Step(turns, self._batches, work, at)
        turns.begin_turn(work)
        return step


def _whole(parts: list[Part]) -> UnitRequest:
    """All samples of a unit."""
    first = parts[0][0]
    if len(parts) == len(parts[0]) == 1:
        return first
    return UnitRequest([number for part in parts for one in part for number in one], first.seed, first.step, first.lane)
