"""One worker's part in the exchange: carry out what `core.sync.exact` says, on the arena.

This is the thin acting half; every decision is `next_action`'s. The loop over units belongs to the
user's script, so the worker is driven from outside:

    member.next_lane(work)   acts and waits until a lane is mine to compute, or the step is complete
    member.fill(...)         takes the gradient of the unit that was computed
    member.show()            lets the others use it, once the unit's user code is through
    member.finish(...)       completes a step that has code of the script after its units (`StepWork.turn`): there,
                             `next_lane` ends when the whole gradient is here

In a plain loop a unit is a worker's whole share of the step (`StepWork.shares`), and the step is completed at once:

    member.give(...)         takes the gradient of my share, and shows it
    member.complete(...)     acts and waits until the step is complete

Whoever waits, waits on its doorbell and on the link to the coordinator together (`Controls`), so a
death elsewhere ends the wait at once with a new generation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from holdfast.core.roles import Assignment, Role
from holdfast.core.shares import LostPart
from holdfast.core.slices import owners
from holdfast.core.sync import exact as decide
from holdfast.core.tree import Node, contribution, uncovered
from holdfast.dataplane.memory import board as cells
from holdfast.dataplane.memory.board import BACKLOG, Board, ShareFacts, StepFacts
from holdfast.dataplane.memory.space import Space
from holdfast.dataplane.reduce.board_view import complete, look
from holdfast.dataplane.reduce.buffers import Buffers
from holdfast.dataplane.reduce.early import Early
from holdfast.dataplane.reduce.finite import finite
from holdfast.dataplane.reduce.gradients import LaneGradients
from holdfast.dataplane.reduce.optimizer import SliceOptimizer
from holdfast.dataplane.reduce.step_gradient import StepGradient
from holdfast.dataplane.reduce.turn_ends import TurnEnds
from holdfast.dataplane.reduce.work import StepWork, UnitResult
from holdfast.errors import NonFinite, NotExact, listed

__all__ = ["Controls", "Member", "clip_scale", "norm_of"]


class Controls(Protocol):
    """How a worker is steered: by the coordinator's link, or by nobody in a run of one process."""

    @property
    def pausing(self) -> bool:
        """The coordinator asked for quiet."""

    def look(self) -> None:
        """Read what the link has to say, without waiting."""

    def rest(self, step: int) -> None:
        """Say that this worker is quiet; return when the next generation is installed."""

    def wait(self, changed: Callable[[], bool]) -> None:
        """Wait until `changed()` or the link speaks."""

    def ring(self) -> None:
        """Wake the others: the board changed."""


class Member:
    """This worker as a member of the crew."""

    def __init__(
        self, space: Space, board: Board, gradients: LaneGradients, optimizer: SliceOptimizer, buffers: Buffers,
        controls: Controls,
    ) -> None:  # fmt: skip
        self.space, self.board, self.gradients, self.optimizer, self.buffers = (
            space,
            board,
            gradients,
            optimizer,
            buffers,
        )
        self._controls = controls
        self._early = Early(space, gradients, board, controls.ring)
        self.ends = TurnEnds(board)  #: how versions of turns were ended
        self.at = Role()  #: where this worker stands in the generation
        self._work = StepWork(-1, (), ())
        self.hyper: list[dict[str, Any]] = []  #: per parameter group, for the step at hand
        self.before_wait: Callable[[], None] = lambda: None  #: raises where waiting would be for ever
        #: Of what the step at hand consists, where there is another generation while this worker completes it.
        self.renewed: Callable[[], StepWork] = lambda: self._work
        #: What is left over of the data when the step at hand is made of these shares.
        self.settle_backlog: Callable[[Sequence[ShareFacts]], Sequence[LostPart]] = lambda came: ()
        self.finite = True  #: refuse NaN and infinities
        self.sums = False  #: losses are sums, and so are gradients of steps
        #: Raises where a gradient of the unit at hand is not finite, after a look at every number.
        self.suspect: Callable[[], None] = lambda: None
        self.scaled = False  #: but in turns, before their end, leave them to the script's gradient scaler
        self.samples_of: Callable[[int, int], Sequence[int]] = lambda step, lane: ()  #: of a unit
        self.guarded = True  #: copy a slice before it is changed; off only where nobody could ever take over
        self.facts = StepFacts(math.nan, 0, 0.0)  #: of the newest committed step
        self.whole: StepGradient | None = None  #: the script's view of a turn's gradient
        self._absent: frozenset[int] = frozenset()  # parameters without a gradient in the turn at hand
        self._moves: Collection[int] = ()  # the groups that the turn at hand makes a step of
        self._extra = False  # it ends with a version beyond those of steps
        self._applying = 0  # when the slice at hand was begun, in nanoseconds
        self._marks = b""  # of the board, from before it was last looked at in a wait
        self._seen: decide.BoardView | None = None
        self._news: decide.BoardView | None = None  # what ended a wait, and was not decided on yet
        self._next_lanes: list[int] = []  # that are mine to compute, after the one at hand

    # ------------------------------------------------------------ generations

    def install(self, worker: int, crew: Assignment) -> None:
        """Take my place in a new generation.

        Everybody was quiet when it was made. Others may have installed it before me and act already; they
        touch neither my lanes nor my slices.
        """
        share = partial(owners, self.space.layout)
        self.at = Role.of(worker, crew, share, self.board.versions(), complete=complete(self.board))
        self.board.put(cells.R_OWNED, self.at.slices)
        self._next_lanes = []
        self.gradients.install(self.at.driver, worker)
        self.optimizer.forget()
        # I may be given more lanes of the step at hand, and then run user code for it again.
        for mark in (cells.R_ARRIVED, cells.R_CLOSED):
            self.board.put(mark, min(self.board.cell(self.board.row, mark), self._work.version - 1))
        version = self.version
        if version not in (self.at.carried, self.at.alone):  # it may be of other shares now
            self.board.forget_work(version)
            if lanes := self.expected(version):
                self.board.put_work(version, lanes)
        self._mend()

    def _mend(self) -> None:
        """Put torn slices that are mine now back to the version they had before their owner died."""
        for row in range(self.board.num_rows):
            undo = self.board.undo(row)
            if undo is None or self.at.owner[undo.slice] != self.at.worker:
                continue
            if self.board.versions()[undo.slice] == undo.version:  # else the new version was out already
                self.optimizer.restore(undo.slice, row)
            self.board.clear_undo(row)
            self._controls.ring()

    # ------------------------------------------------------------ one step

    def next_lane(self, work: StepWork) -> int | None:
        """Act and wait until a lane is mine to compute; None when the step is complete, in a turn its gradient."""
        if self._next_lanes:
            self._controls.look()
            if not self._controls.pausing:
                return self._next_lanes.pop(0)
        return self._act(work, closing=not work.turn)

    def finish(
        self, work: StepWork, *, how: int, groups: Collection[int], absent: frozenset[int] = frozenset(),
        extra: bool = False,
    ) -> None:  # fmt: skip
        """The script's code of this turn is through: act and wait until the next version is complete.

        `how` it was ended, others are shown (`core.endings`). Of these parameter `groups` the optimizer makes a step;
        the others stay as they are. `absent` parameters have no gradient. With `extra`, the version is one beyond
        those of steps. Work without lanes goes on with the sums of the version before.
        """
        self._absent, self._moves, self._extra = absent, groups, extra
        if self.version <= work.version:  # else others have made it, and nothing hangs on how it was ended here
            self.ends.note(work, how)
        lane = self._act(work, closing=True)
        assert lane is None, f"lane {lane} of step {work.step} is to be computed after the step's sums were here"

    # ------------------------------------------------------------ one step of shares

    def expected(self, version: int) -> tuple[int, ...] | None:
        """The shares that a step consists of, if that was settled before this generation: the first lanes of each.

        Where this host follows, others settle it, maybe those of a newer generation: none, until the step is here.
        """
        if self.at.following:
            return ()
        if self.at.begun(version):
            return tuple(sorted(self.at.given))
        return tuple(self.board.work(version) or ()) if version in (self.at.carried, self.at.alone) else None

    def expect(self, work: StepWork) -> None:
        """A step of shares begins."""
        self._work = work

    def give(
        self, work: StepWork, facts: ShareFacts, span: int, gradients: Sequence[Tensor | None], result: UnitResult
    ) -> None:
        """Take the gradient of my share, and let the others use it. A share counts for `span` lanes of the tree."""
        self._work, lane = work, facts.share.first
        self.buffers.record(lane, work.version)
        self.board.put_result(
            lane, work.version, work.counts[lane], result.loss, result.clip_norm, result.clip_value
        )  # fmt: skip
        self.board.put_share(work.version, facts)
        self.gradients.fill(work.version, lane, gradients, work.weight(lane), span)
        self._early.end()
        self._glance()
        self.show(lane)

    def complete(self, work: StepWork) -> None:
        """Act and wait until the step is complete."""
        self._extra = False
        lane = self._act(work, closing=True)
        assert lane is None, f"lane {lane} of step {work.step} is to be computed after all shares were here"

    def _settle(self) -> StepWork:
        """The step at hand as it came about, once all shares of it are here."""
        work = self._work
        if work.shares and (came := self._came()):
            counts = [0] * self.board.num_lanes
            for lane in work.lanes:
                counts[lane] = self.board.result(lane, work.version)[0]
            self._work = work = replace(work, counts=tuple(counts), weighted=came[0].weighted)
        return work

    def _take_followed(self) -> None:
        """On a host that follows a step consists of what came of it, which is all before the last of its sums."""
        version = self._work.version
        if all(at > version for at in self.board.summed()):
            self._work = replace(self._work, lanes=tuple(self.board.known(version)))
            self._show_work()

    def _came(self) -> list[ShareFacts]:
        work = self._work
        found = [self.board.share(lane, work.version) for lane in work.lanes]
        return [facts for facts in found if facts is not None]

    # ------------------------------------------------------------ one turn

    def absent(self) -> frozenset[int]:
        """Parameters that got a gradient in no lane of the turn at hand."""
        return self.gradients.absent(self._work.version, self._work.lanes)

    def show_buffers(self) -> None:
        """Between the units of a turn and its end: let the model's buffers be those of all lanes."""
        work = self._work
        if self.version > work.version:
            self.buffers.advance(work.version)
        else:
            self.buffers.preview(work.version, work.lanes, dict(enumerate(work.counts)))

    @property
    def turn_loss(self) -> float:
        """The mean loss of the turn at hand, once its units are through; NaN where the crew is far beyond them."""
        step, version = self._work.version, self.version
        if version > step + 2:
            return math.nan
        return self.board.step_facts(step + 1).loss if version > step else self._loss()

    def _act(self, work: StepWork, *, closing: bool) -> int | None:
        work = replace(work, sums=True) if self.sums else work
        self._work, self._news, self._next_lanes = work, None, []
        self._show_work()
        self._controls.look()
        while True:
            # What is decided on is what a wait compares with: a change between the two cannot be missed.
            self._seen, self._news = self._news or self._look(), None
            action = decide.next_action(self.at.place(work.version, closing=closing), self._seen)
            match action:
                case decide.Compute((lane, *others)):
                    self._next_lanes = others
                    return lane
                case decide.Advance():
                    if work.turn:  # also of a step that others have made: the script reads its gradient
                        self.board.put(cells.R_CLOSED, work.version)
                    if closing:
                        self._advance()
                    return None
                case decide.Leave():
                    return None
                case decide.Arrive():
                    self.board.put(cells.R_ARRIVED, work.version)
                    self._controls.ring()
                case decide.Close():
                    self.board.put(cells.R_CLOSED, work.version)
                    self._controls.ring()
                case decide.Gather(slices):
                    self._gather(slices)
                    self._controls.ring()
                case decide.Sum(slices):
                    self._check_ends()
                    self._sum(slices)
                    self._controls.ring()
                case decide.Finish(slices):
                    if work.turn:
                        self.ends.check(self.at, self.at.on_host)
                    self._finish(slices)
                    self._controls.ring()
                case decide.Wait():
                    self._marks = b""  # what was decided on may be old by now: a wait begins with a look
                    self._await(action.workers[0] if action.workers else -1)
                    self._news = self._heeding(self._news)
                case decide.Quiesce():
                    self._controls.rest(work.step)
                    if work.shares:
                        self._work = work = self.renewed()
                    self._show_work()

    def _check_ends(self) -> None:
        """Raise where a worker of another host has ended a turn otherwise."""
        if self._work.turn and self.at.home is not None:
            self.ends.check(self.at, self.at.members)

    def _show_work(self) -> None:
        if self._work.lanes or not self._work.shares:  # else it is not known yet
            self.board.put_work(self._work.version, self._work.lanes)

    def _await(self, whom: int, why: int = 0) -> None:
        """Wait until something has moved, or the link speaks; show for whom, and why (a word of `HeldBack`)."""
        self._check_ends()
        self.before_wait()
        self.wait_for(whom, self.changed, why)

    def wait_for(self, whom: int, come: Callable[[], bool], why: int = 0) -> None:
        """Wait until something has come, or the link speaks; show for whom, and why."""
        start = time.perf_counter_ns()
        self.board.put(cells.R_WHY, why)
        self.board.put(cells.R_WAITING_FOR, whom)
        self._controls.wait(come)
        self.board.put(cells.R_WAITING_FOR, -1)
        self.board.put(cells.R_WHY, 0)
        self.board.add(cells.R_WAIT_NS, time.perf_counter_ns() - start)
        self._controls.look()

    def _heeding(self, news: decide.BoardView | None) -> decide.BoardView | None:
        """What ended a wait, with what the link has said since."""
        return news and news._replace(pausing=self._controls.pausing)

    @property
    def version(self) -> int:
        """The version that is published as a whole."""
        return min(self.board.versions())

    def rows(self) -> Sequence[tuple[int, int]]:
        """(member, its row on the board)."""
        return tuple(self.at.rows.items())

    def drives(self, lane: int) -> bool:
        """Is this lane mine in this generation?"""
        return self.at.driver[lane] == self.at.worker

    def driver(self, lane: int) -> int:
        """Who drives this lane in this generation."""
        return self.at.driver[lane]

    def driven(self) -> list[int]:
        """My lanes in this generation."""
        return [lane for lane, driver in enumerate(self.at.driver) if driver == self.at.worker]

    def changed(self) -> bool:
        """Has the board moved since this worker began to wait?"""
        marks = self._marked()
        if marks == self._marks:
            return self._news is not None
        self._marks = marks  # from before the look: what changes during it is seen next time
        news = self._look()
        self._news = news if news != self._seen else None
        return self._news is not None

    def begin(self, lane: int, span: int = 1) -> None:
        """The unit of `lane` begins. Is it the last one this host owes the others, its gradients go as they come."""
        at, work = self.at, self._work
        if at.home is None or len(at.on_host) > 1 or not at.sums(work.version) or at.following or all(at.home):
            return
        mine = [n for n in work.lanes if at.driver[n] == at.worker]
        if uncovered(mine, self.board.nodes(work.version)) == [lane]:
            wanted = [index for index, home in enumerate(at.home) if not home]
            self._early.begin(work.version, Node(lane, span), work.lanes, work.weight(lane), wanted)

    def came(self, entry: int) -> None:
        """Backward has made the gradient of a trainable parameter."""
        self._early.came(entry)

    def _marked(self) -> bytes:
        marks = self.board.marks()
        return marks if self.at.home is None else marks + self.gradients.pieces.marks()

    def _look(self) -> decide.BoardView:
        if self.at.following and self._work.shares:
            self._take_followed()
        return look(self.at, self._work, self.board, self.gradients.pieces, pausing=self._controls.pausing)

    def fill(self, lane: int, gradients: Sequence[Tensor | None], result: UnitResult) -> None:
        """Take what the unit of `lane` gave. Nobody uses it before `show`."""
        self.buffers.record(lane, self._work.version)
        count = self._work.counts[lane]
        self.board.put_result(lane, self._work.version, count, result.loss, result.clip_norm, result.clip_value)
        self.gradients.fill(self._work.version, lane, gradients, self._work.weight(lane))
        self._early.end()
        self._glance()

    def _glance(self) -> None:
        """Refuse a unit whose gradient is not finite, as far as a glance shows; `_finish` looks at every number."""
        if not self.finite or (self._work.turn and self.scaled) or self.gradients.clean():
            return
        try:
            self.suspect()
        except NonFinite:
            self.gradients.forget()
            raise

    def show(self, lane: int) -> None:
        """Let the others use the unit of `lane`, which was filled last."""
        self.board.close_facts(lane, self._work.version)
        self.gradients.show()
        self._early.close()

    def _loss(self) -> float:
        """The mean loss of the step at hand, weighted by samples, in lane order; their sum where losses are sums."""
        step = self._work.version
        if not self._work.lanes:
            return self.board.step_facts(step).loss
        if self.sums:
            return sum(self.board.result(lane, step)[1] for lane in self._work.lanes)
        total = sum(self.board.result(lane, step)[1] * self._work.counts[lane] for lane in self._work.lanes)
        samples = sum(self._work.counts)
        return total / samples if samples else math.nan

    def _gather(self, slices: Sequence[int]) -> None:
        work = self._work
        merged, parts, _ = contribution(self.board.nodes(work.version), self.board.num_lanes)
        assert merged is not None
        inside = [lane for lane in work.lanes if merged.lane <= lane < merged.lane + merged.span]
        for index in slices:
            piece = self.space.layout.slices[index]
            self.gradients.total(piece, parts, inside, 1.0, self.gradients.gathered(piece))
            self.board.publish_gathered(index, work.version + 1)

    def _sum(self, slices: Sequence[int]) -> None:
        work, nodes = self._settle(), self.board.nodes(self._work.version)
        clips = bool(work.lanes) and self.board.result(work.lanes[0], work.version)[2] > 0.0
        sums, pieces = self.at.sums(work.version), self.gradients.pieces
        self._begin_applying()
        for index in slices:
            if not work.lanes:  # what was summed last still lies there
                self.board.publish_norm(index, work.version + 1, 0.0)
                continue
            piece = self.space.layout.slices[index]
            total = self.gradients.sum_of(piece)
            partial = [*nodes, *pieces.nodes(work.version, index, but=nodes)] if sums else nodes
            # Where nobody looks at it before, the factor is applied where the sum is used: one way through memory less.
            self.gradients.total(piece, partial, work.lanes, work.factor if clips or work.turn else 1.0, total)
            if sums and self.finite and not (work.turn and self.scaled) and not finite(total):
                raise self._not_finite(index, partial)  # here lie the lanes apart, elsewhere only their sum
            self.board.publish_norm(index, work.version + 1, norm_of(total) if clips else 0.0)
            if self.at.summer:  # it is all that I do with it
                self.board.add(cells.R_APPLIED, 1)
                self.board.add(cells.R_APPLIED_BYTES, piece.nbytes)
            self._count_time()

    def _finish(self, slices: Sequence[int]) -> None:
        work, board, optimizer = self._settle(), self.board, self.optimizer
        nodes = board.nodes(work.version)
        empty = work.shares and not any(work.counts)
        absent = self._absent if work.turn else self.gradients.absent(work.version, work.lanes)
        clip_norm, clip_value = (0.0, 0.0) if work.turn else self._clipping()
        grad_norm = self._grad_norm() if clip_norm > 0.0 else 0.0
        self._begin_applying()
        for index in slices:
            piece = self.space.layout.slices[index]
            gradient = optimizer.scratch(piece)
            if work.turn:
                assert self.whole is not None
                gradient = self.whole.of(piece)
            elif clip_norm > 0.0:
                torch.mul(self.gradients.sum_of(piece), clip_scale(clip_norm, grad_norm), out=gradient)
            elif self.at.sums(work.version):
                torch.mul(self.gradients.sum_of(piece), work.factor, out=gradient)
            else:
                self.gradients.total(piece, nodes, work.lanes, work.factor, gradient)
            if clip_value > 0.0:
                gradient.clamp_(-clip_value, clip_value)
            moves = (not work.turn or piece.group in self._moves) and not empty
            if self.finite and moves and not finite(gradient):
                raise self._not_finite(index, nodes)
            if self.guarded and not self._undo_free():
                return
            self._begin_change(index, work.version)
            if index == 0:
                # A worker that gave no samples has left its buffers as they were.
                gave = [lane for lane in work.lanes if work.counts[lane]]
                self.buffers.merge(work.version, gave, dict(enumerate(work.counts)))
                before = board.step_facts(work.version)
                samples = before.samples + (0 if self._extra else sum(work.counts))
                facts = StepFacts(self._loss(), samples, grad_norm, before.extra + self._extra)
                board.put_step(work.version + 1, facts)
                if work.shares:
                    self._put_backlog(work.version + 1)
            if moves:
                optimizer.apply(index, self.hyper[piece.group], absent, gradient)
            self._end_change(index, work.version)

    def _grad_norm(self) -> float:
        """The norm of the whole gradient, from those of all slices."""
        return math.sqrt(math.fsum(norm * norm for norm in self.board.norms()))

    def _begin_change(self, index: int, version: int) -> None:
        """From here on a slice may be torn: keep it as it is."""
        if self.guarded:
            self.optimizer.guard(index, self.board.row)
            self.board.begin_undo(index, version)

    def _end_change(self, index: int, version: int) -> None:
        """The slice has its next version."""
        self.board.publish(index, version + 1)
        self.board.clear_undo(self.board.row)
        self.board.add(cells.R_APPLIED, 1)
        self.board.add(cells.R_APPLIED_BYTES, self.space.layout.slices[index].nbytes)
        self._count_time()

    def _begin_applying(self) -> None:
        """From here on time is what summing and updating slices takes, until it is counted."""
        self._applying = time.perf_counter_ns()

    def _count_time(self) -> None:
        """A slice is summed or updated: show how long that took. How fast an owner is follows from it."""
        now = time.perf_counter_ns()
        self.board.add(cells.R_APPLYING_NS, now - self._applying)
        self._applying = now

    def _clipping(self) -> tuple[float, float]:
        """(norm, value) that this step is clipped to: what its units asked for, all alike."""
        asked = {lane: self.board.result(lane, self._work.version)[2:] for lane in self._work.lanes}
        first = asked[self._work.lanes[0]]
        for lane, other in asked.items():
            if other != first:
                raise NotExact(
                    f"in step {self._work.step} lane {self._work.lanes[0]} asked for clipping to (norm, value) = "
                    f"{first} and lane {lane} to {other} (0: none)",
                    "Clip with the same number in every unit of a step, not by what one lane sees.",
                )
        return first

    def _put_backlog(self, version: int) -> None:
        left = self.settle_backlog(self._came())
        if len(left) > (most := BACKLOG * self.board.num_lanes):
            raise NotExact(
                f"at step {self._work.step} {len(left)} parts of steps are left over from workers that were lost, more "
                f"than the {most} that can be made up for",
                "Workers are lost faster than their samples can be used again: use fewer, on machines that stay.",
            )
        if left or self.board.backlog(version):
            self.board.put_backlog(version, left)

    def _undo_free(self) -> bool:
        """My undo section may still hold a torn slice of the row's last holder; its new owner clears it."""
        row = self.board.row
        while (undo := self.board.undo(row)) is not None:
            self._controls.look()
            if self._controls.pausing:
                return False
            self.board.put(cells.R_WAITING_FOR, self.at.owner[undo.slice])
            self._controls.wait(lambda: self.board.undo(row) is None)
            self.board.put(cells.R_WAITING_FOR, -1)
            self._begin_applying()  # that was waiting
        return True

    def _advance(self) -> None:
        self.buffers.advance(self._work.version)
        self.facts = self.board.step_facts(self._work.version + 1)
        self.board.put(cells.R_STEP, self._work.step + 1)

    def _not_finite(self, index: int, nodes: Sequence[Node]) -> NonFinite:
        piece = self.space.layout.slices[index]
        bad = self.gradients.culprits(piece, nodes)
        lanes = sorted({lane for node in bad for lane in range(node.lane, node.lane + node.span)})
        names = self.space.within(piece)
        samples = [f"of lane {lane} {listed(self.samples_of(self._work.step, lane))}" for lane in lanes[:4]]
        return NonFinite(
            f"Step {self._work.step}: the gradient of {names} is not finite (lanes {lanes or 'none alone'}; loss "
            f"{self._loss():.6g}). The step was not committed. {_told(samples)}Lower the learning rate, clip with "
            "run.clip_grad_norm_, or look at the step's data; hf.join(finite=False) lets such steps pass."
        )


def _told(samples: Sequence[str]) -> str:
    return f"The samples are, {'; '.join(samples)}. " if samples else ""


def norm_of(total: Tensor) -> float:
    """Of a slice's gradient; in single precision or better, for a sum of squares in bfloat16 says nothing."""
    return float(torch.linalg.vector_norm(total, dtype=torch.promote_types(total.dtype, torch.float32)))


def clip_scale(limit: float, norm: float) -> float:
    """What a gradient of this norm is multiplied by, as torch clips it."""
    return min(1.0, limit / (norm + 1e-6))
