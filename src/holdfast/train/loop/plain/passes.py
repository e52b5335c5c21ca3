"""A pass: one loop of the script over a prepared loader, and the ways out of it.

It is the iterator behind `for batch in loader`. Each `next` gives the worker's share of a step: in mode `exact` of the
next one (`share_turns`). In relaxed modes it ends the unit at hand and gives the batch of this worker's next one, which
is its share of the step where its lanes stand; with local steps, one lane's. A loop may end in four ways:

* it runs out of steps, or the run is asked to stop;
* `break` or `return`: in relaxed modes it is said why that cannot be;
* an exception in its body: the pass stays as it is, so that the unit can be told, until the script goes on;
* another operation begins while it is open: then going on with it is refused.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from inspect import CO_GENERATOR
from types import FrameType
from typing import TYPE_CHECKING, Any

from holdfast.core.shares import Share
from holdfast.data.batches import Batches, UnitRequest
from holdfast.data.randomness import data_key
from holdfast.dataplane.reduce.work import StepWork
from holdfast.dataplane.relaxed.relaxed_member import Boundary, Course, RelaxedMember
from holdfast.errors import UsageError
from holdfast.train.loop.plain.alone import AloneTurns
from holdfast.train.loop.plain.boundary import stand
from holdfast.train.loop.plain.counters import advance
from holdfast.train.loop.plain.share_turns import Alongside, ShareTurns
from holdfast.train.loop.step_batches import StepBatches

if TYPE_CHECKING:
    from holdfast.train.loop.rehearsal import Rehearsal
    from holdfast.train.training import Training

__all__ = ["Pass"]


class Pass:
    """One loop of the script over a prepared loader.

    It begins with its first batch. One that is first asked in a turn of another loop goes along with that, as with
    `zip`. When the script breaks out of the loop, Python drops the iterator at once, so what it does next is not in it.
    """

    def __init__(self, training: Training, batches: Batches) -> None:
        self._training, self._batches = training, batches
        self._started = self._going = self._displaced = self._gave = False
        self._along: Alongside | None = None  # this loop goes along with another one
        self.rehearsal: Rehearsal | None = None  #: the crew has made this loop without this worker
        self.passing = 0  #: how often it is still to give None, to those that only count (`counters`)

    def begin(self, order: int, going: bool, at: int) -> None:
        """The loop begins; `at` is the turn with which this worker does."""
        training, batches = self._training, self._batches
        self._order, self._going = order, going
        self._course = Course(training.op, batches.steps, batches.counts, training.step - training.first_step)
        self._at = self._missed = at
        self._rehearsed: Iterator[Any] = iter(())
        # Of this loop's units, whoever computes them. It must not hold the pass: a loop that is left drops it.
        seed, first = training.seed, training.first_step
        training.samples_of = partial(_request, batches, seed, order, first)

    def __iter__(self) -> Pass:
        return self

    def __next__(self) -> Any:
        if self.passing:
            self.passing -= 1
            return None
        if self._displaced:
            raise UsageError(
                "Inside of a loop over a prepared loader another one, or run.evaluate, was begun; that ended the first "
                f"at step {self._training.step}. Finish or leave (`break`) one before the next."
            )
        if not self._started:
            self._started = True
            self._along = self._training.start_pass(self, self._batches)
        if self._along is not None:
            return self._along.next()
        if not self._going:
            return self._rehearse()
        try:
            batch = self._next()
            if self._missed:
                advance(self, self._missed, self._training.step)
                self._missed = 0
            self._gave = True
            return batch
        except BaseException as error:
            if not isinstance(error, StopIteration):
                self.abandon()  # this worker is on its way out; the loop is not over for the others
            raise

    def rehearse_later(self, end: int) -> None:
        """The crew has made this loop, up to step `end`, without this worker: there is one turn of it all the same."""
        steps = StepBatches([self._batches], 1, self._training.seed)
        steps.number([self._order])
        self.rehearsal = self._training.turns.past(self, steps, end)

    def _rehearse(self) -> Any:
        turns = self._training.turns
        if self.rehearsal is None or turns.open_steps() is not self:
            raise StopIteration
        if turns.turn is not self.rehearsal:
            turns.rehearse(self.rehearsal)
            self._rehearsed = iter(self.rehearsal)
            return next(self._rehearsed)
        next(self._rehearsed, None)
        turns.end_rehearsal()
        raise StopIteration

    def __del__(self) -> None:
        if not self._going:
            return
        if not _by_break(sys._getframe(1)):
            # An exception is on its way. The unit is still the one at hand, for whoever reports it; should the
            # script catch the exception and go on, its next operation ends this loop.
            self._training._held = self
            return
        try:
            self.leave()
        except BaseException as error:
            self._training._left = error  # an exception from here would be swallowed

    def abandon(self) -> None:
        """This worker goes no further in this loop, and says nothing to the others."""
        self._going = False
        self._training._held = None
        self._batches.close()

    def _next(self) -> Any:
        training = self._training
        while True:
            relaxed = training.bound.relaxed
            if relaxed is None:
                found = self._next_exact()
            else:
                training.close_unit()
                found = self._next_relaxed(relaxed)
            if not isinstance(found, Boundary):
                return found
            self._course, self._at = replace(self._course, done=found.step), found.step
            stand(training)

    def _next_exact(self) -> Any:
        """The batch of the next turn; or a boundary, where the mode is to change."""
        training = self._training
        if training.shares is None:
            kind = ShareTurns if training.steered is not None else AloneTurns
            training.shares = kind(training, self._batches, self._order, self._at)
        shares = training.shares
        if shares.over():
            self._end(early=shares.at < self._batches.steps)
            raise StopIteration
        if shares.between and training.bound.due(training.step) and not shares.owes:
            training.shares = None
            if training.step:  # who comes late to the mode that follows has to find the settings it begins with
                training.bound.settings.write(training.step - 1, training.bound.member.hyper, training.step)
            return Boundary(shares.at)
        return shares.next()

    def _next_relaxed(self, relaxed: RelaxedMember) -> Any:
        """The same in relaxed modes: whichever unit of mine may be begun."""
        training, batches = self._training, self._batches
        found = relaxed.next_unit(self._course)
        if found is None:
            end = min(training.first_step + batches.steps, training.committed())
            training.complete_pass(end)
            self._end(early=training.bound.stopping(training.step))
            if not self._gave:  # as in a server
                self.rehearse_later(end)
            return self._rehearse()
        if isinstance(found, Boundary):
            training.settle(found.step)
            return found
        at, share = found
        training.turns.differ()
        training.turn_to(relaxed.pushes.base + at)
        counts = batches.counts(at)
        lanes = tuple(lane for lane, count in enumerate(counts) if count)
        work = StepWork(relaxed.pushes.base + at, lanes, counts)
        request = self._request(at, share)
        training.tap.muted = not request
        if not request:  # never an empty batch: what others' samples make is zeros
            request = _request(batches, training.seed, self._order, 0, at, 0)
        training.open_unit(work, share.first, request)
        batch = batches.fetch(request, partial(self._ahead, at, share))
        training.begin_unit(work, share.first)
        return batch

    def leave(self, *, displaced: bool = False) -> None:
        """The script broke out of the loop. In relaxed modes it is said why that cannot be."""
        if not self._going:
            return
        training = self._training
        if training.bound.relaxed is not None:
            raise UsageError(
                f"A loop over the loader was left early, and with sync = {training.bound.relaxed.mode.name} the lanes "
                "are at different steps: there is none at which all could leave it. Let it run to its end, or use "
                "--sync exact."
            )
        self._displaced = displaced
        self._end(early=True)

    def _end(self, *, early: bool) -> None:
        self._going = False
        training = self._training
        training.tap.muted = False
        training.bound.settings.leave_units()
        training._open = training._held = None
        training.idle = not self._gave
        self._batches.close()
        if early:
            training.bound.board.close_op(training.op)
        if training.bound.relaxed is None:
            if training.shares is not None:
                training.shares.leave()
            training.turns.write_exit(training.bound.version)
            training.reseed_after_loop()

    def _request(self, at: int, share: Share) -> UnitRequest:
        ids = self._batches.run(self._order, at, share.first, share.last)
        return UnitRequest(ids, data_key(self._training.seed, self._order, at, share.first), at, share.first)

    def _ahead(self, at: int, share: Share) -> Iterator[UnitRequest]:
        """This unit, and those this worker will be given if nothing changes."""
        training = self._training
        mine = [share]
        if training.bound.mode.rounds:
            mine = [Share(lane, lane + 1) for lane in training.bound.member.driven()]
        while at < self._batches.steps:
            for other in mine:
                if other >= share and (request := self._request(at, other)):
                    yield request
            at, share = at + 1, mine[0]


def _request(batches: Batches, seed: int, order: int, first: int, step: int, lane: int) -> UnitRequest:
    """The samples of a unit of a loop whose first step is `first`."""
    at = step - first
    return batches.request(data_key(seed, order, at, lane), order, at, lane)


def _by_break(frame: FrameType | None) -> bool:
    """Does this frame drop its loop's iterator because of `break` or `return`, and not of an exception?

    A finalizer is not told of an exception that is on its way, but the instruction at hand tells: only the
    orderly ways out of a loop pop the iterator. Generators around the loader (progress bars) are looked past.
    """
    while frame is not None:
        if dis.opname[frame.f_code.co_code[frame.f_lasti]] in ("POP_TOP", "POP_ITER"):
            return True
        frame = frame.f_back if frame.f_code.co_flags & CO_GENERATOR else None
    return False
