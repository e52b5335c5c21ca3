"""Purity: looks whether a unit follows from parameters, samples and seed, and from nothing else.

Of a chosen unit (`core.verify`) all that it gave is hashed when the script asks for its next batch, before its gradient
is used. Then it is computed once more: by a forked copy of this process (`forked`), which gives the script's loop the
same unit again, fetched again, and ends when the loop asks for the next one. The script has gone on by one unit then,
so whatever it carries from batch to batch is another than before; what earlier phases of the turn have left behind is
made another (`carried`). This worker waits for the copy's report.

A mismatch is tried twice more, from one and the same state. If these differ, an operation is not deterministic; if not,
it is state that is kept. Where earlier phases have left something behind, it is first tried without a change to that.

In the steps that have such a unit, each worker also looks whether parameters are written to by hand, and compares with
all others what must be the same in them: parameters, settings, and what `run.keep` holds. So it does in a plain loop,
where a unit is a share, and not computed twice. Numbers that schedulers were stepped with are compared at the next turn
in any case: one that only this worker knows moves them here alone.

Where a fork is not safe (torch has threads of its own, or a device other than the CPU), the unit is computed twice in
this process, which the script sees, and in the run's first steps only.
"""

from __future__ import annotations

import math
import time
import warnings
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy
import torch

from holdfast.config.limits import WORKER
from holdfast.core import verify
from holdfast.dataplane.reduce.work import StepWork
from holdfast.errors import Impure, listed
from holdfast.train.loop.carried import Carried, Found, disturbed
from holdfast.train.loop.digests import Digests, differing, digest, few, of_all, of_batch
from holdfast.train.loop.forked import Forked, Report

if TYPE_CHECKING:
    from holdfast.train.training import Training

__all__ = ["Purity"]

BATCH = "the batch"
NUMBER = "the number that "
LEFT = "the loop over the units was left, by an exception or otherwise"
ALONE = 16  #: so many variables are tried one by one
PARAMETERS, SETTINGS = "what the parameters are", "what optimizer and schedulers are set to"


Copied = Callable[[Iterable[Any]], Generator[Any, None, Report]]


class Purity:
    """Verifies units of one worker's loops by steps."""

    def __init__(self, training: Training, share: float | None) -> None:
        self._training, self._share = training, verify.SHARE if share is None else share
        self._thrifty = share is None  # to spend no more than a part of the time
        self._began, self._spent = time.monotonic(), 0.0  # when that began; what verifying has taken
        self._counting = False
        self._turn = 0.0, 0.0, 0.0  # of the newest turn: when it began, its last step, what was spent before it
        self._usual = math.inf  # how long a turn takes in which nothing is looked at
        self._here = not _may_fork()  # whether units are computed twice in this process
        self._parameters: tuple[int, Digests] | None = None  # (version, what they were when it was there)
        self._lane: int | None = None  # whose unit of the turn at hand is computed twice; None: nothing is looked at
        self._told = False  # others are told at the top of the turn at hand what must be the same
        self._past = False  # this worker has begun a turn, and misses nothing of the code between two
        self._phase = 0  # of the turn at hand
        self._phases = False  # this script goes through units several times
        self._carried = Carried(self._same_in_all)
        self._batch: Digests = {}  # of the unit that is computed twice
        self._taken = Found()  # what that could use of earlier phases
        self._copy: Forked | None = None  # the newest, if it may not be gone yet
        self._said: set[str] = set()
        self._given_up = ""  # why no unit can be computed twice

    def _chosen(self, step: int, work: StepWork) -> int | None:
        """Whose unit of this step is to be looked at; `work` is of the same loop."""
        if self._here and work.turn and step not in verify.FIRST:
            return None
        lanes = work.lanes if work.turn else (0,)  # a share has no lane of its own, and is not computed twice
        found = verify.chosen(self._training.seed, step, lanes, self._share)
        return found if found is None or self._affordable(step) else None

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """What is done here takes of the time that verifying may take."""
        if self._counting:
            yield
            return
        began, self._counting = time.perf_counter_ns(), True
        try:
            yield
        finally:
            self._spent += (time.perf_counter_ns() - began) / 1e9
            self._counting = False

    def _count_turn(self) -> None:
        """The newest turn is over. What it took longer than usual counts as well, at most as much again.

        After a fork each page that is written to is a fault, until the copy is gone.
        """
        began, ended, before = self._turn
        own = self._spent - before
        if not began:
            return
        if self._lane is None:
            self._usual = ended - began - own
        else:
            self._spent += min(own, max(0.0, ended - began - own - self._usual))

    # ------------------------------------------------------------ turns

    def begin_turn(self, work: StepWork) -> dict[str, str]:
        """A turn begins. Returns what must be the same in all workers, where that is to be compared."""
        training, settings = self._training, self._training.bound.settings
        self._reap(wait=False)
        self._count_turn()
        self._lane, self._phase = self._chosen(work.step, work), 0
        began = time.perf_counter()
        self._turn = began, began, self._spent
        looks = work.turn and self._lane is not None and (self._phases or work.step in verify.FIRST)
        self._carried.begin_turn(look=looks and not self._given_up)
        numbers = settings.take_measured()
        told = {f"{NUMBER}{name} was stepped with": found for name, found in numbers.items()}
        if self._share <= 0.0 or not self._past:
            told = {}
        self._past = True
        if self._lane is None:
            self._parameters = None
        else:
            with self._counted():
                found = self._look(work, f"before step {work.step}")
                told |= {SETTINGS: settings.digest(), **training.turns.keeping.digests()}
                if self._stands(work.version):
                    found = self._of_parameters() if found is None else found
                    self._parameters = work.version, found
                    told[PARAMETERS] = of_all(found)
        self._told = bool(told)
        return {name: f"{value:08x}" for name, value in told.items()}

    def end_turn(self, work: StepWork) -> None:
        """The script's code of a turn is through, and the step is not committed."""
        if self._lane is not None:
            with self._counted():
                self._look(work, f"{'after the units' if work.turn else 'in the turn'} of step {work.step}")
        if work.turn:  # in a plain loop others may not have come to this turn
            self._compare(work)

    def over(self, work: StepWork) -> None:
        """The step is committed."""
        if not work.turn:
            self._compare(work)
        version = self._training.bound.version
        following = self._chosen(work.step + 1, work) is not None
        with self._counted():
            self._parameters = (version, self._of_parameters()) if following and self._stands(version) else None
        began, _, before = self._turn
        self._turn = began, time.perf_counter(), before

    def end(self) -> None:
        """The loop has come to its end: no copy is left."""
        self._reap()

    def _look(self, work: StepWork, where: str) -> Digests | None:
        """Raise where parameters are not what they were when it was there. Returns what they are, if known."""
        if self._parameters is None or self._parameters[0] != work.version or not self._stands(work.version):
            return None
        found = self._of_parameters()
        if names := differing(self._parameters[1], found):
            raise Impure.written(self._worker, where, few(names), plain=not work.turn)
        return found

    def _stands(self, version: int) -> bool:
        """Is this version published, and no slice further on? A worker that comes late to a step may be behind."""
        return set(self._training.bound.board.versions()) == {version}

    def _compare(self, work: StepWork) -> None:
        if not self._told:
            return
        at = self._training.bound.member.at
        every = self._training.bound.settings.told(work.step, {at.rows[worker] for worker in at.on_host})
        told = {worker: every[row] for worker, row in at.rows.items() if row in every}
        for name in told.get(self._worker, {}):
            if name.isidentifier():
                continue  # a variable of the loop (`loop_variables`)
            groups: dict[str, list[int]] = {}
            for worker, values in told.items():
                if name in values:
                    groups.setdefault(values[name], []).append(worker)
            if len(groups) > 1:
                apart = sorted(map(sorted, groups.values()), key=lambda group: (-len(group), group))
                raise Impure.apart(work.step, name, apart, plain=not work.turn, measured=name.startswith(NUMBER))

    # ------------------------------------------------------------ units

    def begin_units(self, phase: int) -> None:
        """The units of a phase begin."""
        self._phase, self._phases = phase, self._phases or phase > 0
        if self._lane is not None:
            with self._counted():
                self._carried.begin_units(phase)

    def end_units(self) -> None:
        """They are through."""
        if self._lane is not None:
            with self._counted():
                self._carried.end_units()

    def begin_unit(self, lane: int) -> None:
        """A unit begins."""
        self._batch = {}
        if self._lane == lane:
            with self._counted():
                self._taken = self._carried.found()

    def end_unit(self) -> None:
        """The script is through with a unit."""
        if self._lane is not None:
            with self._counted():
                self._carried.end_unit()

    def see(self, lane: int, batch: Any) -> None:
        """A batch of a unit is about to be given to the script."""
        if self._lane == lane:
            with self._counted():
                self._batch = {BATCH: of_batch(batch, self._batch.get(BATCH, 0))}

    def chose(self, step: int, lane: int) -> bool:
        """Is the unit of this lane to be computed twice?"""
        return self._lane == lane and not self._given_up and self._affordable(step)

    def again(self, work: StepWork, lane: int, give: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """The script is through with a unit: see whether it gives the same once more. Raises Impure.

        In the copy, and in this process where it cannot be forked, its batches are given to the script again: `give`
        fetches them, and makes of the script's gradients what makes up the unit.
        """
        training = self._training
        began = time.perf_counter_ns()
        seconds = WORKER.second + WORKER.second_factor * (began - training._unit_started) / 1e9
        self._look(work, f"in unit (step {work.step}, lane {lane})")
        first, unit = self._outcome(), (work.step, lane)
        if self._here:
            yield from self._computed_here(unit, first, give)
        else:
            yield from self._computed_in_copies(unit, partial(self._copied, seconds, first, give))
        self._taken = Found()
        spent = time.perf_counter_ns() - began
        training._unit_started += spent  # it says nothing about how fast this worker is
        self._spent += spent / 1e9

    def _computed_here(self, unit: tuple[int, int], first: Digests, give: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        self._say(
            f"torch has {torch.get_num_threads()} threads in this process, or a device other than the CPU, so it "
            f"cannot be forked. In steps {listed(verify.FIRST)} a unit is computed twice in this process, and the "
            "loop over the units goes through it twice; units of later steps are not verified."
        )
        taken = self._taken
        with disturbed(taken.all()):
            self._anew()
            yield from give()
        names = second = differing(first, self._outcome())
        if names and taken:
            self._anew()
            yield from give()
            second = differing(first, self._outcome())
        if second:
            raise Impure.twice(self._worker, unit, few(second), again=None)
        if names:
            raise Impure.carried(self._worker, unit, self._phase, few(names), taken.phases, sure=len(taken.phases) == 1)

    def _computed_in_copies(self, unit: tuple[int, int], copied: Copied) -> Iterator[Any]:
        taken = self._taken
        report = yield from copied(taken.all())
        if taken and _is_other(report):
            as_it_is = yield from copied(())
            if not (as_it_is.differs or as_it_is.failure):
                yield from self._name(unit, report, copied)
            report = as_it_is
        reports = [report]
        while report.differs and len(reports) < 3 and not reports[-1].failure:
            reports.append((yield from copied(())))
        self._judge(unit, reports)

    def _name(self, unit: tuple[int, int], report: Report, copied: Copied) -> Iterator[Any]:
        """Something that earlier phases have left behind makes a difference: say what it is. Raises Impure."""
        taken, names = self._taken, []
        what = few(report.differs) or "an exception"
        for name, leaves in taken.leaves.items() if len(taken.leaves) <= ALONE else ():
            if _is_other((yield from copied(leaves))):
                names.append(name)
        if not names and not _is_other((yield from copied(taken.all()))):
            raise Impure.twice(self._worker, unit, what, again=False)
        phases = {name: phase for name, phase in taken.phases.items() if name in (names or taken.phases)}
        raise Impure.carried(self._worker, unit, self._phase, what, phases, sure=bool(names) or len(phases) == 1)

    def _copied(
        self, seconds: float, first: Digests, give: Callable[[], Iterator[Any]], others: Iterable[Any]
    ) -> Generator[Any, None, Report]:
        """What a copy finds that computes the unit, with other numbers in these `others`."""
        self._reap()
        try:
            copy = self._copy = Forked(self._training.bound.isolate)
        except OSError as error:  # short of memory or processes
            return Report([], 0, f"no process could be forked ({error.strerror})")
        if copy:
            yield from self._in_copy(copy, first, give, others)
        return copy.await_report(seconds)

    def _affordable(self, step: int) -> bool:
        if not self._thrifty or step in verify.FIRST:
            return True
        return self._spent <= WORKER.verifying * (time.monotonic() - self._began)

    def _reap(self, *, wait: bool = True) -> None:
        if self._copy is not None and self._copy.close(wait=wait):
            self._copy = None

    def _judge(self, unit: tuple[int, int], reports: Sequence[Report]) -> None:
        first, *others = reports
        if first.differs:
            tried = len(others) == 2 and not others[1].failure
            same = others[0].digest == others[1].digest if tried else None
            raise Impure.twice(self._worker, unit, few(first.differs), again=same)
        if first.failure:
            self._given_up = first.failure
            self._say(
                f"Unit (step {unit[0]}, lane {unit[1]}) could not be computed a second time: {first.failure}. Units of "
                f"worker {self._worker} are not verified any more."
            )

    def _in_copy(
        self, copy: Forked, first: Digests, give: Callable[[], Iterator[Any]], others: Iterable[Any]
    ) -> Iterator[Any]:
        """In the copy: have the script compute the unit, and report. Does not return."""
        try:
            with disturbed(others):
                self._anew()
                yield from give()
                second = self._outcome()
            copy.report(Report(differing(first, second)[:4], of_all(second)))
        except Exception as error:  # what the script raises does not come here
            copy.report(Report([], 0, f"its samples could not be fetched ({type(error).__name__}: {str(error)[:200]})"))
        finally:  # the script has left its loop
            copy.report(Report([], 0, LEFT))

    def _anew(self) -> None:
        """The same unit is about to begin once more."""
        self._batch = {}
        self._training.bound.buffers.distrust()

    def _outcome(self) -> Digests:
        """All that the unit at hand has given."""
        training, space = self._training, self._training.space
        found = dict(self._batch)
        found["the loss"] = zlib.crc32(numpy.float64(training.tap.value()).tobytes())
        for name, parameter in zip(space.names, space.trainable, strict=True):
            found[f"the gradient of {name}"] = 0 if parameter.grad is None else digest(parameter.grad)
        for name, buffer in training.bound.buffers.live():
            found[f"buffer {name}"] = digest(buffer)
        return found

    def _of_parameters(self) -> Digests:
        space = self._training.space
        return {space.name_of(parameter): digest(parameter) for parameter in space.still}

    def _same_in_all(self) -> Iterator[torch.Tensor]:
        """What is the same in every worker: parameters, gradients that are shown, buffers, kept modules."""
        for model in self._training._models:
            yield from model.parameters()
            yield from model.buffers()
        yield from (p.grad for p in self._training.space.trainable if p.grad is not None)

    @property
    def _worker(self) -> int:
        return self._training.bound.member.at.worker

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            warnings.warn(text, stacklevel=2)


def _is_other(report: Report) -> bool:
    """Has the unit come to something else, be it an exception?"""
    return bool(report.differs) or report.failure == LEFT


def _may_fork() -> bool:
    """Are there neither threads of torch nor a device whose threads and contexts a copy would lack?"""
    return torch.get_num_threads() == 1 and not torch.accelerator.is_available()
