"""Purity: looks whether a unit follows from parameters, samples and seed, and from nothing else.

Of a chosen unit (`core.verify`) all that it gave is hashed when the script asks for its next batch, before its gradient
is used. Then it is computed once more (`twice`).

In the steps that have such a unit, each worker also looks whether parameters are written to by hand, and compares with
all others what must be the same in them: parameters, settings, and what `run.keep` holds. So it does in a plain loop,
where a unit is a share, and not computed twice. Numbers that schedulers were stepped with are compared at the next turn
in any case: one that only this worker knows moves them here alone.

Unless a share of the steps was asked for, all of it takes no more than a part of the time, but for the run's first
steps. Where a process cannot be forked, units are computed twice in these only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from holdfast.config.limits import WORKER
from holdfast.core import verify
from holdfast.dataplane.reduce.work import StepWork
from holdfast.errors import Impure
from holdfast.train.loop.verifying.digests import Digests, differing, digest, few, of_all
from holdfast.train.loop.verifying.twice import Twice

if TYPE_CHECKING:
    from holdfast.train.training import Training

__all__ = ["Purity"]

NUMBER = "the number that "
PARAMETERS, SETTINGS = "what the parameters are", "what optimizer and schedulers are set to"


class Purity:
    """Verifies units of one worker's loops by steps."""

    def __init__(self, training: Training, share: float | None) -> None:
        self._training, self._share = training, verify.SHARE if share is None else share
        self._thrifty = share is None  # to spend no more than a part of the time
        self._began, self._spent = time.monotonic(), 0.0  # when that began; what verifying has taken
        self._counting = False
        self._turn = 0.0, 0.0, 0.0  # of the newest turn: when it began, its last step, what was spent before it
        self._usual = math.inf  # how long a turn takes in which nothing is looked at
        self._twice = Twice(training)
        self._parameters: tuple[int, Digests] | None = None  # (version, what they were when it was there)
        self._lane: int | None = None  # whose unit of the turn at hand is computed twice; None: nothing is looked at
        self._told = False  # others are told at the top of the turn at hand what must be the same
        self._past = False  # this worker has begun a turn, and misses nothing of the code between two
        self._followed = False  # in the turn before, this worker's host was catching up
        self._phase = 0  # of the turn at hand
        self._phases = False  # this script goes through units several times

    def _chosen(self, step: int, work: StepWork) -> int | None:
        """Whose unit of this step is to be looked at; `work` is of the same loop."""
        if self._twice.here and work.turn and step not in verify.FIRST:
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
        self._twice.reap(wait=False)
        self._count_turn()
        self._lane, self._phase = self._chosen(work.step, work), 0
        began = time.perf_counter()
        self._turn = began, began, self._spent
        looks = work.turn and self._lane is not None and (self._phases or work.step in verify.FIRST)
        self._twice.carried.begin_turn(look=looks and not self._twice.given_up)
        numbers = settings.take_measured()
        told = {f"{NUMBER}{name} was stepped with": found for name, found in numbers.items()}
        # What follows from units that a host has missed, as it caught up in the turn before, is replaced by what others
        # have; the numbers of that turn are its own.
        if self._share <= 0.0 or not self._past or self._followed:
            told = {}
        self._past, self._followed = True, training.bound.member.at.following
        if self._lane is None:
            self._parameters = None
        else:
            with self._counted():
                found = self._look(work, f"before step {work.step}")
                if not training.turns.enters_phase:  # else it has what that phase begins with
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
        self._twice.reap()

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
                self._twice.carried.begin_units(phase)

    def end_units(self) -> None:
        """They are through."""
        if self._lane is not None:
            with self._counted():
                self._twice.carried.end_units()

    def begin_unit(self, lane: int) -> None:
        """A unit begins."""
        if self._lane == lane:
            with self._counted():
                self._twice.begin_unit(self._phase)

    def end_unit(self) -> None:
        """The script is through with a unit."""
        if self._lane is not None:
            with self._counted():
                self._twice.carried.end_unit()

    def see(self, lane: int, batch: Any) -> None:
        """A batch of a unit is about to be given to the script."""
        if self._lane == lane:
            with self._counted():
                self._twice.see(batch)

    def chose(self, step: int, lane: int) -> bool:
        """Is the unit of this lane to be computed twice?"""
        return self._lane == lane and not self._twice.given_up and self._affordable(step)

    def again(self, work: StepWork, lane: int, give: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """The script is through with a unit: see whether it gives the same once more (`twice`). Raises Impure."""
        training = self._training
        began = time.perf_counter_ns()
        seconds = WORKER.second + WORKER.second_factor * (began - training._unit_started) / 1e9
        self._look(work, f"in unit (step {work.step}, lane {lane})")
        yield from self._twice.again((work.step, lane), give, seconds)
        spent = time.perf_counter_ns() - began
        training._unit_started += spent  # it says nothing about how fast this worker is
        self._spent += spent / 1e9

    def _affordable(self, step: int) -> bool:
        if not self._thrifty or step in verify.FIRST:
            return True
        return self._spent <= WORKER.verifying * (time.monotonic() - self._began)

    def _of_parameters(self) -> Digests:
        space = self._training.space
        return {space.name_of(parameter): digest(parameter) for parameter in space.still}

    @property
    def _worker(self) -> int:
        return self._training.bound.member.at.worker
