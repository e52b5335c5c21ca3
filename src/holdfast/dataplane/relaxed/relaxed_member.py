"""One worker's part in the exchange in relaxed modes: carry out what `core.sync.modes` says, on the arena.

The loop over units belongs to the script, so the worker is driven from outside, as `member.Member` is:

    member.next_unit(course)   acts and waits until a unit is mine to compute, or the pass is complete
    member.fill(...)           takes the gradient of the unit that was computed
    member.show(lane)          lets the owners use it

A unit is the worker's share of a step: all its lanes that stand there (`core.sync.modes.next_share`). What it gave is
pushed once, as its first lane's. Where a step has no samples for a share, it pushes zeros that weigh nothing.

In between it does what an owner does: the owner of the first slice decides the next commit set
(`core.sync.modes.commit_set`), and every owner takes its slices from one version to the next, in order
(`relaxed_owner`).

Parameters change while others compute, so a worker computes with a copy of its own (`parameter_copy`), and takes over
what is published before each unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from holdfast.core.roles import Assignment
from holdfast.core.shares import Share
from holdfast.core.sync.mirroring import may_decide
from holdfast.core.sync.modes import Clocks, HeldBack, Mode, commit_set, next_share
from holdfast.core.sync.staleness import Staleness
from holdfast.dataplane.memory import board as cells
from holdfast.dataplane.reduce.work import UnitResult
from holdfast.dataplane.relaxed.parameter_copy import ParameterCopy
from holdfast.dataplane.relaxed.push_gradients import PushGradients
from holdfast.dataplane.relaxed.pushes import Pushes, PushRecord
from holdfast.dataplane.relaxed.relaxed_owner import RelaxedOwner

__all__ = ["Boundary", "Course", "RelaxedMember"]


@dataclass(frozen=True, slots=True)
class Boundary:
    """All lanes have made so many steps of the pass, all of it is applied, and nobody goes on: see `Paced.settle`."""

    step: int


@dataclass(frozen=True, slots=True)
class Course:
    """What a pass consists of."""

    op: int
    steps: int
    counts: Callable[[int], Sequence[int]]  #: step of the pass -> samples of every lane
    done: int = 0  #: steps that were made of it before it is begun here, in another mode


class RelaxedMember(RelaxedOwner):
    """This worker as a member of a crew of a relaxed mode."""

    mode_changing = False  #: the mode is to change at the next step boundary

    def set_pace(
        self, mode: Mode, staleness: Staleness, pushes: Pushes, push_gradients: PushGradients,
        applied: Callable[[int], list[dict[str, Any]]],
    ) -> None:  # fmt: skip
        """Keep step in this way. `applied` gives the settings that a step of the run was made with."""
        self.mode, self.staleness, self.pushes, self.push_gradients, self._applied = (
            mode, staleness, pushes, push_gradients, applied,
        )  # fmt: skip
        self._pulled = ParameterCopy(self.space, self.board, self.optimizer.parameters)
        self._limit: int | None = None  # steps of the pass, where it is to end sooner
        self._stopping = False
        self._course = Course(-1, 0, lambda step: ())
        self.share = Share(0, 0)  #: of the unit at hand

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The worker's own copy, flat per dtype: what its model looks at."""
        return self._pulled.flats

    @property
    def version(self) -> int:
        """The version that is published as a whole, and that the clocks are of."""
        mirrored = self.pushes.published
        return min(self.board.versions()) if mirrored is None else mirrored

    def committed(self) -> int:
        """Steps of the run of which every lane's push has been applied."""
        return self.pushes.committed(lambda: self.steps_of(min(self._clocks().applied)))

    def steps_of(self, pushes: int) -> int:
        """Steps of the pass that a lane has made with so many pushes."""
        return pushes

    def stop(self) -> None:
        """The run is to end: no lane goes beyond the furthest one. Everybody is quiet when this is called."""
        self._stopping = True
        self._limit = self.pushes.furthest()  # nobody has gone beyond it, and from now on nobody does

    def settle(self, mode_changing: bool, turn: int) -> None:
        """The mode is to change: the same, to the step boundary at which that can be. Or it is not to, any more.

        Here that is where the furthest lane is, whatever the `turn` is that was named.
        """
        self.mode_changing = mode_changing
        if not self._stopping:
            self._limit = self.pushes.furthest() if mode_changing else None

    # ------------------------------------------------------------ one pass

    def next_unit(self, course: Course) -> tuple[int, Share] | Boundary | None:
        """Act and wait until a unit (step of the pass, lanes) is mine to compute; None when the pass is complete."""
        self._course = course
        self._controls.look()
        while True:
            if self._controls.pausing:
                self._controls.rest(self.committed())
                continue
            self._marks = self._marked()  # before the look: what changes during it ends the wait
            if not self.pushes.settled:
                self._await(self.at.owner[0])
                continue
            if self.pushes.over(course.op):
                if self._complete():
                    return None
                continue
            begun = self.pushes.begun(course.op)  # before the clocks: else they may be those of the pass before
            if self.mode_changing and not begun:
                if self._held_back():
                    continue
                return Boundary(course.done)
            clocks = self._clocks()
            if self.pushes.over(course.op):  # nor may they be those of the next one
                continue
            if self._own_up(clocks):
                self._controls.ring()
                continue
            if not begun:
                if self._ends_before():
                    if self._complete():
                        return None
                    continue
                self._await(self.at.owner[0])
                continue
            found = self._choose(clocks)
            if isinstance(found, tuple) and not isinstance(found, HeldBack):
                self.share = found[1]
                if self._open(*found):
                    return found
                continue
            if found is None and min(clocks.applied) >= clocks.steps:
                if not self._complete():
                    continue
                done = self.steps_of(clocks.steps)
                if not self.mode_changing or self._stopping or done >= course.steps:
                    return None
                if not self._held_back():
                    return Boundary(done)
                continue
            self._await(self._whom(found, clocks), found.word if isinstance(found, HeldBack) else 0)

    def _held_back(self) -> bool:
        """Do replicas not hold the version at hand yet? Then wait: where everybody stands, nothing may be lost."""
        if self.pushes.held(self.version):
            return False
        self._await(self.at.owner[0])
        return True

    def _ends_before(self) -> bool:
        """Does the run end before a pass that nobody has begun? Else some would stop in it, and some before it."""
        return self._stopping and not self.pushes.beginning

    def _choose(self, clocks: Clocks) -> tuple[int, Share] | HeldBack | None:
        """The next unit (step of the pass, lanes) that is mine and may be begun."""
        share = next_share(self.mode, clocks, self.driven())
        return (clocks.pushed[share.first], share) if isinstance(share, Share) else share

    def _samples(self, step: int, share: Share) -> int:
        return sum(self.course_counts(step)[share.first : share.last])

    def _open(self, step: int, share: Share) -> bool:
        """The unit begins: with the newest parameters. False: it does not, see `pull`."""
        return self.pull()

    def _complete(self) -> bool:
        """The pass is over: show the model what it has led to. False: it cannot be shown yet, see `pull`."""
        if not self.pull():
            return False
        version = self.version
        self.buffers.advance(version - 1)
        self.facts = self.board.step_facts(version)
        self.board.put(cells.R_STEP, self.committed())
        return True

    def course_counts(self, step: int) -> Sequence[int]:
        """Samples of every lane in a step of the pass."""
        return self._course.counts(step)

    def _clocks(self) -> Clocks:
        left = self._course.steps - (self.pushes.resumed if self.mode.rounds else 0)
        steps = -(-left // self.mode.inner)
        if self._limit is not None:
            steps = min(steps, self._limit)
        while True:
            version = self.version
            found = self.pushes.clocks(version, steps)
            if (
                self.version == version
            ):  # else a commit set may have been replaced by a later one, which is not applied yet
                return found

    def _whom(self, held: HeldBack | None, clocks: Clocks) -> int:
        """For which worker, or owner, this one waits."""
        if held is not None and held.lanes:
            return self.at.driver[held.lanes[0]]
        late = [lane for lane, pushed in enumerate(clocks.pushed) if pushed < clocks.steps]
        drivers = [self.at.driver[lane] for lane in late if self.at.driver[lane] != self.at.worker]
        return drivers[0] if drivers and held is None else self.at.owner[0]

    def _marked(self) -> bytes:
        return self.board.marks() + self.pushes.marks()

    def changed(self) -> bool:
        """Has anything moved since this worker began to wait, or is it just about to?"""
        return self._marked() != self._marks or self.pushes.beginning

    def install(self, worker: int, crew: Assignment) -> None:
        """Take my place in a new generation."""
        super().install(worker, crew)
        self._pulled.distrust()

    # ------------------------------------------------------------ units

    def begin(self, lane: int, span: int = 1) -> None:
        """The unit of these lanes begins."""

    def came(self, entry: int) -> None:
        """Backward has made a gradient: nobody wants it before the unit ends."""

    def pull(self) -> bool:
        """Take over what is published: whole slices, the newest of each.

        False: this worker is asked for quiet while somebody is at a slice. That one may be dead, and then the slice is
        mended in the next generation only.
        """
        return self._pulled.pull(self._asked)

    def _asked(self) -> bool:
        self._controls.look()
        return self._controls.pausing

    @property
    def fresh(self) -> bool:
        """Does the unit at hand begin with what is published?"""
        return True

    @property
    def read(self) -> int:
        """The version that the unit at hand is computed from."""
        return self._pulled.version

    def fill(self, lane: int, gradients: Sequence[Tensor | None], result: UnitResult) -> None:
        """Take what the unit gave whose first lane this is. Nobody uses it before `show`."""
        if self.finite:
            self.suspect()  # always: a push that is taken cannot be given back
        self.buffers.record(lane, self.pushes.pushed(lane), self.read)
        self.push_gradients.fill(lane, gradients)
        if self.staleness.compensates:
            self.push_gradients.keep(lane, self.parameters)
        self._result = result

    def show(self, lane: int) -> None:
        """Let the owners use it."""
        step, result, share = self.pushes.pushed(lane), self._result, self.share
        self.pushes.push(lane, PushRecord(
            step, self.read, self._samples(step, share), result.loss, result.clip_norm, result.clip_value,
            share.last - share.first,
        ))  # fmt: skip
        self.board.put(cells.R_STEP, self.committed())
        self._controls.ring()

    # ------------------------------------------------------------ owning

    def _own_up(self, clocks: Clocks) -> bool:
        """Do what an owner has to do now. False: nothing."""
        version, pushes = self.version, self.pushes
        if self.at.owner[0] == self.at.worker:
            begun = pushes.begun(self._course.op)
            if not begun and not self._ends_before() and max(self.board.versions()) == version:
                course = self._course
                pushes.begin(course.op, course.steps, version, course.done, rounds=self.mode.rounds)
                return True
            versions, free = self.board.versions(), pushes.free(version)
            if self.board.held(version):
                return False
            if begun and may_decide(versions, decided=pushes.decided(version), free=free):
                found = commit_set(self.mode, clocks)
                if found is None:
                    return False
                pushes.decide(version, found)
                return True
        if not pushes.decided(version):
            return False
        mine = [s for s, at in enumerate(self.board.versions()) if at == version and self.at.owner[s] == self.at.worker]
        if not mine:
            return False
        return self._apply(version, mine)
