"""A simulated worker whose script has a plain loop: a turn of it as `train.loop.plain.share_turns` plays it.

* Between two turns it goes quiet when it is asked to. Then a turn begins, the script's body takes its time, and after
  it the share is given and the step completed, of what the shares were as the turn began.
* A worker that comes late enters the newest turn that was begun, which may be that of the step before the one at hand.
* Of a step that has shares from before its generation, or that its host completes alone, it has none to give.
* When another generation begins while it completes a step, it asks once more of what the step consists, and gives the
  empty share where it would have to give one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.control.protocol.messages import Install
from holdfast.core.shares import LostPart, Share, shares
from holdfast.core.sync.exact import Finish, Gather, Sum
from holdfast.core.tree import maximal_nodes
from holdfast.testing.fake_view import FakeView
from holdfast.testing.fake_worker import FakeWorker
from holdfast.testing.faults import At
from holdfast.testing.model import Violation
from holdfast.testing.shares.share_arena import FakeShare, ShareArena

if TYPE_CHECKING:
    from holdfast.testing.cluster import SimCluster
    from holdfast.testing.fake_host import FakeHost

__all__ = ["ShareView", "ShareWorker"]


class ShareView(FakeView):
    """What a worker sees in one generation, and of which shares it takes the step at hand to consist."""

    def __init__(self, arena: ShareArena, worker: int, install: Install) -> None:
        super().__init__(arena, worker, install)
        self._shares, self._worker, self.following = arena, worker, self._at.following
        version = arena.step()
        if version not in (self._at.carried, self._at.alone):  # it may be of other shares now
            arena.forget_work(version)
            if lanes := self.expected(version):
                arena.put_work(version, lanes)

    def expected(self, version: int) -> tuple[int, ...] | None:
        """The shares that a step consists of, if that was settled before this generation: the first lanes of each."""
        if self._at.following:
            return ()  # others settle it, maybe those of a newer generation
        if self._at.begun(version):
            return tuple(sorted(self._at.given))
        if version in (self._at.carried, self._at.alone):
            return tuple(self._shares.shown(version) or ())
        return None

    def mine(self, step: int) -> Share | None:
        """My share of a step: none of one that was made, or begun by those of another generation."""
        if self._shares.step() > step or self.expected(step) is not None or self._at.following:
            return None
        return self._plan(step).get(self._worker)

    def planned(self, step: int) -> tuple[int, ...]:
        """The first lanes of all shares of a step that have samples."""
        known = self.expected(step)
        if known is not None:
            return known
        found = [share for share in self._plan(step).values() if self.samples(step, share)]
        return tuple(sorted(share.first for share in found))

    def samples(self, step: int, share: Share) -> tuple[LostPart, ...]:
        """What a share consists of."""
        own = [part for part in self._shares.whole(step) if share.first <= part.lane < share.last]
        return (*own, *self._shares.backlog(step)[share.begin : share.end])

    def _plan(self, step: int) -> dict[int, Share]:
        return shares(self._at.driver, len(self._shares.backlog(step)))


class ShareWorker(FakeWorker):
    """One worker in a plain loop."""

    arena: ShareArena
    _board_view: ShareView | None

    def __init__(self, cluster: SimCluster, host: FakeHost, number: int, row: int, faults: list[At]) -> None:
        super().__init__(cluster, host, number, row, faults)
        self.turns: list[int] = []  #: steps of which its script's body ran
        self._begun = False  # a turn is at hand
        self._lanes: tuple[int, ...] = ()  # of which that consists
        self._share: FakeShare | None = None  # mine, of that
        self._renews = False  # there is another generation, and this turn was through

    def torn(self, part: float) -> None:
        if self.unit is not None and self._share is not None and part > 0.8 and self.hung_since is None:
            self.arena.give(self.step, self._share, whole=part > 0.9)
        if 0 in self._finishing and part * len(self._finishing) < 1:  # the first slice is not finished
            with self.arena.seen(self._lanes):
                self.arena.settle(self.step)
        super().torn(0.0 if self.unit is not None else part)

    def _stand_in(self, install: Install) -> FakeView:
        self._renews = self._begun
        return ShareView(self.arena, self.number, install)

    def _install(self, install: Install) -> bool:
        joins = self.step < 0
        if not joins and self.arena.step() < self.step:
            raise Violation(f"worker {self.number} is at step {self.step}, and its host at {self.arena.step()}")
        goes_on = super()._install(install)
        if joins and self.step > 0 and self.cluster.jitter(1.0) < 0.3:
            self.step -= 1  # nobody has begun a newer turn yet
        return goes_on

    def _act(self) -> bool:
        arena, model = self.arena, self.arena.model
        if not self._begun:
            if self.step >= model.steps or (self._stop and self.step >= self._stop):
                return self._end()
            return self._turn_begins()
        if self._renews:
            self._renew()
        step = self.step
        if self._board_view is not None and self._board_view.following and all(at > step for at in arena.summed):
            self._lanes = tuple(arena.known(step))  # on a host that follows a step consists of what came of it
            self._show_work()
        with arena.seen(self._lanes):
            goes_on = super()._act()
        if self.step > step:
            self._begun = False
        return goes_on

    def _turn_begins(self) -> bool:
        view, step = self._board_view, self.step
        assert view is not None
        if self.turns and self.turns[-1] + 1 != step:
            raise Violation(f"worker {self.number} runs the body of step {step} after those of {self.turns}")
        self.turns.append(step)
        self._begun, self._renews, share = True, False, view.mine(step)
        self._lanes = view.planned(step)
        self._share = self._of(share) if share is not None and share.first in self._lanes else None
        parts = self._share.parts if self._share is not None else ()
        pace = self.cluster.unit_seconds * self.pace()
        duration = pace * max(1, len(parts)) * (0.8 + self.cluster.jitter(0.4))
        if self._share is not None and share is not None:
            self.arena.begin(self.number, self.generation, step, "compute", tuple(range(share.first, share.last)))
        else:  # it goes through its turn with samples of others, and gives nothing
            self.arena.read(self.number, max(step, self.arena.step()))
        self._busy, self.unit = True, (step, share.first if share is not None else 0)
        self.struck("compute", duration)
        bad = [what for part in parts if (what := self.cluster.unit_faults.get((part.at, part.lane)))]
        if "hang" in bad:
            self.hung_since = self.cluster.clock.now
        elif "crash" in bad:
            self.later(duration / 2, self.cluster.died, self.number, "signal", 11)
        elif "raise" in bad:
            self.later(duration / 2, self._raise)
        else:
            self.later(duration, self._gives)
        return False

    def _end(self) -> bool:
        if self.turns and self.turns[-1] != self.step - 1:
            raise Violation(f"worker {self.number} ends before step {self.step}, having run those of {self.turns}")
        return super()._end()

    def _of(self, share: Share) -> FakeShare:
        assert self._board_view is not None
        model = self.arena.model
        span = maximal_nodes(share.first, max(share.last, share.first + 1), model.lanes)[0].span
        return FakeShare(share, span, self._board_view.samples(self.step, share), model.clip)

    def _gives(self) -> None:
        if self._share is not None:
            self.arena.give(self.step, self._share)
            self.measured = True
        self._show_work()
        self._acted()

    def _show_work(self) -> None:
        if self._lanes:
            self.arena.put_work(self.step, self._lanes)

    def _renew(self) -> None:
        """There is another generation while this worker completes a step: of what that consists now."""
        view, arena, step = self._board_view, self.arena, self.step
        assert view is not None
        self._renews = False
        if arena.step() <= step:
            self._lanes, mine = view.planned(step), view.mine(step)
            if mine is not None and mine.first in self._lanes and mine.first not in arena.given_at(step):
                arena.give(step, self._of(Share(mine.first, mine.first)))
                self.cluster.wake(self.number)
        self._show_work()

    def _compute(self, lane: int, others: Sequence[int] = ()) -> bool:
        raise Violation(f"worker {self.number} is to compute lane {lane} of step {self.step} after it gave its share")

    def _sliced(self, action: Gather | Sum | Finish, duration: float) -> None:
        with self.arena.seen(self._lanes):
            super()._sliced(action, duration)
