"""The turns of a plain loop: one step each, in which a worker's unit is its whole share as one batch. Mode `exact`.

    for x, y in loader:               a turn begins: what a late worker needs to enter here is written down
        loss_of(model(x), y).backward()
        optimizer.step()              gives the gradient; the parameters have moved when it returns
        optimizer.zero_grad()         the script's code, once a step in every worker

A step commits with the shares that came. What a lost worker owed is in the backlog then, and joins the next step. So no
turn is repeated, and nobody waits for a worker that takes its place. That one enters the newest turn that was begun,
with the settings of its top and what the script keeps. A worker that has no share in a step (it came late to it, or
there are fewer samples than workers) goes through a turn with samples of others, and gives nothing: its `backward()`
makes zeros.

Where a turn ends without `optimizer.step()`, the next one adds to the same gradient, and the step that ends them all is
made of the shares of all these turns.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.core.shares import LostPart, Share, left_over, shares
from holdfast.core.tree import maximal_nodes
from holdfast.data.batches import Batches, UnitRequest
from holdfast.data.randomness import compute_key, data_key, seed_everything, turn_key
from holdfast.dataplane.memory import board as cells
from holdfast.dataplane.memory.board import ShareFacts
from holdfast.dataplane.reduce.work import StepWork, UnitResult
from holdfast.errors import NotExact, UsageError

if TYPE_CHECKING:
    from holdfast.train.training import Training

__all__ = ["Alongside", "ShareTurns"]

_LOADER, _AGAIN = 48, 40  #: bits of an order: a loader that goes along has others than the one that it goes along with


class Alongside:
    """Another loader that is asked in the turns of a loop, as with `zip`: this worker's shares of its batches."""

    def __init__(self, turns: ShareTurns, batches: Batches, loader: int, order: int, at: int) -> None:
        """`order` is that of its data, `at` the batch with which this worker begins."""
        self._turns, self.batches, self.loader, self.order, self.at = turns, batches, loader, order, at
        self.begin = at  #: the first batch of the step at hand

    def next(self) -> Any:
        """Its next batch."""
        if self.at >= self.batches.steps:
            raise StopIteration
        ids, seed = self._turns.ids_along(self), self._turns.seed
        request = UnitRequest(ids, data_key(seed, self.order, self.at, self.loader), self.at, self.loader)
        self.at += 1
        return self.batches.fetch(request, lambda: iter([request]))


class ShareTurns:
    """The turns of one loop, as one worker makes them."""

    def __init__(self, training: Training, batches: Batches, order: int, at: int) -> None:
        """`at` is the turn of the pass with which this worker begins."""
        self._training, self._batches, self._order = training, batches, order
        self._loader = training.loaders.index(batches)
        self.at = at  #: the next turn
        self._begin: int | None = None  # the first turn of the step at hand; None: it has not begun
        self._share: Share | None = None  # mine, of the step at hand
        self._work = StepWork(-1, (), ())
        self._count = 0  # samples of the step at hand that I have computed
        self._used: dict[int, list[int]] = {}  # order of the data -> samples that I have computed
        self._left_over: tuple[LostPart, ...] = ()  # of steps before, when the step at hand began
        self._along: list[Alongside] = []  # loaders that are asked in the turns, too
        self._started = 0
        self.left = False  #: the script has left the loop

    @property
    def between(self) -> bool:
        """Is no step at hand?"""
        return self._begin is None

    @property
    def seed(self) -> int:
        """Of the run."""
        return self._training.seed

    @property
    def owes(self) -> bool:
        """Is something of this loader left over of the steps that were made? Only steps in this mode make up for it."""
        training = self._training
        parts = training.bound.board.backlog(training.step + training.bound.ahead)
        return any(part.loader == self._loader for part in parts)

    # ------------------------------------------------------------ other loaders

    def takes_along(self, batches: Batches) -> bool:
        """Is a turn at hand, and this another loader?"""
        return not self.left and not self.between and batches is not self._batches

    def accompany(self, batches: Batches) -> Alongside:
        """Another loader is asked in a turn: from now on its batches are shared out like mine."""
        loader = self._training.loaders.index(batches)
        again = sum(one.batches is batches for one in self._along)  # it had come to its end, and is begun anew
        order = self._order + (1 + loader << _LOADER) + (again << _AGAIN)
        # A worker that comes late enters where all of them have been asked once a turn.
        along = Alongside(self, batches, loader, order, 0 if again else min(self.at - 1, batches.steps))
        self._along.append(along)
        return along

    def ids_along(self, along: Alongside) -> list[int]:
        """My samples of the next batch of another loader; those of somebody else's, where I have none."""
        share, ids = self._share, list[int]()
        if share is not None:
            ids = along.batches.run(along.order, along.at, share.first, share.last)
            late = self._backlog(along.loader)[share.begin : share.end] if along.at == along.begin else []
            for part in late:
                ids += along.batches.ids(part.order, part.at, part.lane)
        return ids or along.batches.ids(along.order, along.at, 0)

    # ------------------------------------------------------------ turns

    def over(self) -> bool:
        """Is there no further turn? Comes to rest where the crew is about to change."""
        training = self._training
        if self._begin is not None:
            return self.at >= self._batches.steps
        controls = training.bound.controls
        controls.look()
        while controls.pausing:
            controls.rest(training.step)
        return self.at >= self._batches.steps or training.bound.stopping(training.step)

    def next(self) -> Any:
        """The batch of the next turn."""
        if self._begin is None:
            self._begin_step()
        training, work, share = self._training, self._work, self._share
        first = self._begin == self.at
        ids = self._take(share, first) if share is not None else []
        lane = share.first if share is not None else 0
        training.tap.muted = not ids
        request = self._request(lane, ids or self._batches.ids(self._order, self.at, 0))
        training.unit = None
        if ids:
            training.open_unit(work, lane, request)
        batch = self._batches.fetch(request, partial(self._ahead, request))
        if first:
            self._enter()
        self._count += len(ids)
        self._started = time.perf_counter_ns()
        turn = self.at - (self._begin or 0)
        seed_everything(compute_key(training.seed, work.step, lane + turn * training.num_lanes))
        self.at += 1
        return batch

    def _enter(self) -> None:
        """The first turn of a step: buffers and the rest as they must be."""
        training, share = self._training, self._share
        training.bound.buffers.load(self._work.version)
        training.clip_norm = training.clip_value = 0.0
        training.tap.reset()
        if share is not None:
            training.bound.member.begin(share.first, self._span(share))

    def _begin_step(self) -> None:
        training = self._training
        had = self._count
        self._begin, self._count, self._used = self.at, 0, {}
        ahead = training.bound.ahead
        self._work = StepWork(training.step, (), (0,) * training.num_lanes, ahead, weighted=False)
        self._left_over = training.bound.board.backlog(self._work.version)
        training.turns.begin_turn(self._work, self.at, had)
        training.turns.keeping.modules.note()
        self._share = self._mine()
        member = training.bound.member
        member.settle_backlog, member.renewed = self._settle_backlog, self._renewed
        self._work = self._planned(self.at + 1)
        member.expect(self._work)

    def _mine(self) -> Share | None:
        """My share of the step at hand: none of one that was made, or begun by those of another generation."""
        bound, version = self._training.bound, self._work.version
        at = bound.member.at
        if bound.version > version or bound.member.expected(version) is not None or at.following:
            return None
        return self._plan().get(at.worker)

    def _plan(self) -> dict[int, Share]:
        return shares(self._training.bound.member.at.driver, len(self._backlog()))

    def _backlog(self, loader: int | None = None) -> list[LostPart]:
        """What is left over of steps before, of this loader or another one."""
        mine = self._loader if loader is None else loader
        return [part for part in self._left_over if part.loader == mine]

    def _planned(self, end: int) -> StepWork:
        """The step at hand, if it ends before turn `end`: the first lanes of all shares, with their samples."""
        training, backlog = self._training, self._backlog()
        assert self._begin is not None
        known = training.bound.member.expected(self._work.version)
        if known is not None:
            return StepWork(self._work.step, known, self._work.counts, self._work.ahead, weighted=self._work.weighted)
        counts = [0] * training.num_lanes
        for share in self._plan().values():
            own = sum(sum(self._batches.counts(at)[share.first : share.last]) for at in range(self._begin, end))
            counts[share.first] = own + sum(map(self._size, backlog[share.begin : share.end]))
        lanes = tuple(lane for lane, count in enumerate(counts) if count)
        sums = training.bound.member.sums
        weighted = len({counts[lane] for lane in lanes}) > 1 and not sums
        return StepWork(self._work.step, lanes, tuple(counts), self._work.ahead, weighted=weighted, sums=sums)

    # ------------------------------------------------------------ the step's end

    def end(self) -> None:
        """`optimizer.step()`: give my share, and complete the step."""
        self._check_turn()
        training = self._training
        member = training.bound.member
        training.check_written(f"before the end of step {self._work.step}")
        training.turns.keeping.modules.check(f"step {self._work.step}")
        training.turns.purity.end_turn(self._work)
        member.hyper = training.bound.settings.hyper()
        if self.at - (self._begin or 0) > 1:  # else it is as planned: nothing is installed in the middle of a turn
            self._work = self._planned(self.at)
        work = self._work
        if self._share is not None and work.counts[self._share.first]:
            self._give(self._share, work)
        self._show_pace()
        training.unit = None
        member.complete(work)
        training.note_facts()
        training.turns.purity.over(self._work)
        self._end_step()

    def _check_turn(self) -> None:
        if self._begin is None:
            raise NotExact(
                f"optimizer.step() was called twice for one batch, at step {self._training.step}",
                "Call it once a batch, or once for several whose gradients are to be added up.",
            )

    def _end_step(self) -> None:
        self._training.step += 1
        self._begin = None
        for along in self._along:
            along.begin = along.at
        seed_everything(turn_key(self._training.seed, self._work.version, 2))

    def _loss(self) -> float:
        """Of the step at hand. Raises where it could not be used."""
        training = self._training
        loss = training.tap.value()
        if training.bound.member.finite:
            training.check_loss(loss)
        return loss

    def _give(self, share: Share, work: StepWork) -> None:
        training = self._training
        if not training.tap.backwards:
            raise NotExact(
                f"optimizer.step() was called in step {work.step} without a backward()",
                "Call backward() on the loss of every batch; for a loop that only looks, use run.evaluate or a loader "
                "that was not prepared.",
            )
        loss = self._loss()
        for order, ids in self._used.items():
            training.audit(order, work.step, share.first, ids)
        gradients = [parameter.grad for parameter in training.space.trainable]
        self._offer(share, work, gradients, UnitResult(loss, training.clip_norm, training.clip_value))

    def _offer(self, share: Share, work: StepWork, gradients: Sequence[Any], result: UnitResult) -> None:
        assert self._begin is not None
        facts = ShareFacts(share, self._begin, self.at, bool(work.weighted))
        self._training.bound.member.give(work, facts, self._span(share), gradients, result)

    def _renewed(self) -> StepWork:
        """There is another generation while this worker completes the step: of what it consists now.

        Nothing of it may have come, and a part of it be this worker's now, which is past that: then it gives none of
        its samples, and they join the next step.
        """
        training = self._training
        if training.bound.version > self._work.version:
            return self._work
        work = self._work = self._planned(self.at)
        mine = self._mine()
        if mine is not None and mine.first in work.lanes and mine.first not in training.bound.board.given(work.version):
            training.bound.buffers.load(work.version)
            empty = Share(mine.first, mine.first)
            self._offer(empty, StepWork(work.step, work.lanes, (0,) * training.num_lanes, work.ahead, weighted=False),
                        [None] * len(training.space.trainable),
                        UnitResult(0.0, training.clip_norm, training.clip_value))  # fmt: skip
        return work

    def _settle_backlog(self, came: Sequence[ShareFacts]) -> tuple[LostPart, ...]:
        """What is left over when the step at hand is made of what came."""
        turns = {(facts.begin, facts.end) for facts in came}
        if len(turns) > 1:
            counts = sorted({end - begin for begin, end in turns})
            raise NotExact(
                f"workers ended step {self._work.step} after {' and '.join(map(str, counts))} batches, or at different "
                f"turns ({sorted(turns)})",
                "Call optimizer.step() in the same turns in every worker: not by what one share has shown, as a "
                "GradScaler does in a plain loop; in a loop by steps it decides on the whole gradient.",
            )
        whose = [facts.share.first for facts in came if facts.share.last > facts.share.first]
        self._training.audit_came(self._work.step, whose)
        shares = [facts.share for facts in came]
        left = self._left_over
        own = self._batches, self._loader, self._order, came[0].begin, came[0].end
        along = [(one.batches, one.loader, one.order, one.begin, one.at) for one in self._along if one.at > one.begin]
        gone = set(range(self._training.num_lanes)).difference(*(range(one.first, one.last) for one in shares))
        for batches, loader, order, begin, end in (own, *along):
            counted = [(at, lane) for at in range(begin, end) for lane in sorted(gone) if batches.counts(at)[lane]]
            whole = [LostPart(loader, order, at, lane) for at, lane in counted]
            left = left_over(shares, left, whole, loader)
        return left

    def _show_pace(self) -> None:
        """Show how long a lane's part of the step took, by which lanes are shared out."""
        training, board, share = self._training, self._training.bound.board, self._share
        board.put(cells.R_UNIT_STEP, -1)
        board.put(cells.R_UNIT_LANE, -1)
        board.add(cells.R_UNITS, 1)
        board.add(cells.R_SAMPLES, self._count)
        spent = time.perf_counter_ns() - self._started
        board.add(cells.R_BUSY_NS, spent)
        if share is not None and self._count and training.unequal:
            training.show_pace(spent, share.last - share.first)

    # ------------------------------------------------------------ samples

    def _span(self, share: Share) -> int:
        """A share is the sum of so many lanes, as the tree has them: those of a host's neighbours make up one node."""
        return maximal_nodes(share.first, max(share.last, share.first + 1), self._training.num_lanes)[0].span

    def _take(self, share: Share, first: bool) -> list[int]:
        """My samples of the next turn, noted as used; those of the backlog join the first turn of a step."""
        late = self._backlog()[share.begin : share.end] if first else []
        found = [(part.order, self._batches.ids(part.order, part.at, part.lane)) for part in late]
        own = self._batches.run(self._order, self.at, share.first, share.last)
        for order, ids in (*found, *([(self._order, own)] if own else [])):
            self._used.setdefault(order, []).extend(ids)
        return [*own, *(number for _, ids in found for number in ids)]

    def _size(self, part: LostPart) -> int:
        return self._batches.counts(part.at)[part.lane]

    def _request(self, lane: int, ids: Sequence[int], at: int | None = None) -> UnitRequest:
        at = self.at if at is None else at
        return UnitRequest(ids, data_key(self._training.seed, self._order, at, lane), at, lane)

    def _ahead(self, request: UnitRequest) -> Iterator[UnitRequest]:
        """This turn's samples, and those of the turns after it if nothing changes."""
        yield request
        share, at_hand = self._share, self._training.bound.member.at
        if share is None and at_hand.worker in at_hand.servers:  # which never have one
            share = Share(0, 1)
        for at in range(self.at + 1, self._batches.steps) if share is not None else ():
            assert share is not None
            ids = self._batches.run(self._order, at, share.first, share.last)
            yield self._request(share.first, ids, at)

    def leave(self) -> None:
        """The script has left the loop: a step at hand that has not ended is given up."""
        board = self._training.bound.board
        board.put(cells.R_UNIT_STEP, -1)
        board.put(cells.R_UNIT_LANE, -1)
        self._training.unit = None
        self._training.tap.muted = False
        self.left = True
        if self._begin is None:
            self._training.shares = None

    def refuse_inside(self, what: str) -> None:
        """Refuse what all workers do together where they are apart."""
        if self._begin is not None:
            raise UsageError(
                f"{what} was called in a turn of the loop over the loader, before the optimizer.step() of step "
                f"{self._work.step}. Call it after that."
            )
