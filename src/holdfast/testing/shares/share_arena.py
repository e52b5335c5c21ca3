"""The shared memory of one simulated host in a plain loop, where a unit is a worker's whole share of a step.

A share is shown as its first lane, like on the real board, which is followed here cell by cell: what shares were (steps
take turns), of which shares the step at hand consists, and the backlog (two copies). What a step is made of hangs on
who was there, so there is no golden chain. Instead every sum is checked against what the shares were by the facts that
are here, every commit against the commits of other hosts (`share_history`), and its samples against those there were.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from holdfast.core import tree
from holdfast.core.shares import LostPart, Share, left_over
from holdfast.core.tree import Node
from holdfast.testing.fake_arena import FakeArena, FakeSum
from holdfast.testing.model import Model, Violation, add
from holdfast.testing.shares.share_history import HostHistory

__all__ = ["FakeShare", "ShareArena"]

_BACKLOG = 16  # parts that can wait, for each lane, as on the real board


class FakeShare(NamedTuple):
    """What a worker has given for a step."""

    share: Share
    span: int  #: lanes of the tree that it counts for
    parts: tuple[LostPart, ...]  #: its samples
    clips: bool

    @property
    def node(self) -> Node:
        """Where it is in the tree."""
        return Node(self.share.first, self.span)


class ShareArena(FakeArena):
    """What workers of one host share, in a plain loop."""

    history: HostHistory  #: of the run, as this host writes it
    stayed = False  #: this host was in the generation before the one that begins, and has the newest state

    def __init__(self, model: Model, rows: int, plan: Callable[..., tree.Plan] = tree.plan) -> None:
        super().__init__(model, rows, plan)
        self._gave: tuple[dict[int, FakeShare], dict[int, FakeShare]] = ({}, {})  # steps take turns
        self._work: tuple[int, tuple[int, ...]] = (-1, ())
        self._seen: Sequence[int] | None = None  # what the worker that acts now takes for the lanes with work
        self._before: tuple[int, ...] = ()  # the state that the step at hand began with
        self._backlog: list[tuple[int, tuple[LostPart, ...]]] = [(0, ()), (0, ())]  # (version, what is left over)
        self._totals: dict[tuple[object, ...], int] = {}

    # ------------------------------------------------------------ what a step consists of

    @contextmanager
    def seen(self, lanes: Sequence[int]) -> Iterator[None]:
        """A worker acts that takes these for the lanes with work."""
        before, self._seen = self._seen, lanes
        try:
            yield
        finally:
            self._seen = before

    def lanes_at(self, step: int) -> Sequence[int]:
        if self._seen is not None:
            return self._seen
        return self.shown(step) or ()

    def shown(self, step: int) -> Sequence[int] | None:
        return self._work[1] if self._work[0] == step else None

    def put_work(self, step: int, lanes: Sequence[int]) -> None:
        """Show which lanes have work in a step; never of an older one."""
        if self._work[0] < step:
            self._work = step, tuple(lanes)

    def forget_work(self, step: int) -> None:
        """What was shown of a step does not count any more."""
        if self._work[0] == step:
            self._work = -1, ()

    def complete(self, step: int) -> bool:
        if step >= self.model.steps or any(at <= step for at in self.summed):
            return False
        return max(self.versions) > step or self._decided(step)

    def _decided(self, step: int) -> bool:
        work = self.shown(step)
        return work is not None and set(work) <= set(self.known(step))

    # ------------------------------------------------------------ shares

    def seed(self) -> None:
        super().seed()
        self._before = tuple(self.state)

    def give(self, step: int, share: FakeShare, *, whole: bool = True) -> None:
        """A worker's share is there; unless it is `whole`, its gradient is not."""
        if share.parts and any(version != step for version in self.versions):
            raise Violation(f"parameters changed ({self.versions}) under share {share} of step {step}")
        lane = share.share.first
        self._gave[step % 2][lane] = share
        self._known[step % 2][lane] = step + 1
        if whole:
            slots = self._slots.setdefault(step, {})
            slots[lane] = FakeSum(share.span, self._gradient(step, share), 1 << lane)
            self._nodes.pop(step, None)

    def _gradient(self, step: int, share: FakeShare) -> int:
        return hash((self._before, step, share))

    def share(self, step: int, lane: int) -> FakeShare | None:
        """What was given for a step under this lane, as far as it is known here."""
        return self._gave[step % 2].get(lane) if self._known[step % 2][lane] == step + 1 else None

    def given(self) -> list[int]:
        return self.given_at(self.level())

    def given_at(self, step: int) -> list[int]:
        """First lanes of the shares of a step that workers of this host have given."""
        return [node.lane for node in self.nodes(step) if self.share(step, node.lane)] if step >= 0 else []

    def facts(self, step: int, lanes: Sequence[int]) -> tuple[Any, ...]:
        return tuple(self._gave[step % 2][lane] for lane in lanes)

    def land_facts(self, step: int, lanes: Sequence[int], facts: Sequence[Any] = ()) -> None:
        for lane, share in zip(lanes, facts, strict=True):
            if self._known[step % 2][lane] < step + 1:
                self._gave[step % 2][lane] = share
                self._known[step % 2][lane] = step + 1

    def in_use(self, step: int, lane: int) -> bool:
        return any(node.lane == lane for at in range(min(self.versions), step) for node in self.nodes(at))

    def land_piece(self, step: int, slice_: int, lane: int, slot: FakeSum) -> None:
        if self.in_use(step, lane):
            raise Violation(f"a piece of step {step} comes where lane {lane} of the step before is needed still")
        if step >= min(self.versions) and self.pieces[slice_].get(lane, (step, slot))[0] > step:
            raise Violation(f"a piece of step {step} takes the place of one of the step after it, of lane {lane}")
        super().land_piece(step, slice_, lane, slot)

    def begin_generation(self, lanes: frozenset[int], given: frozenset[int] = frozenset()) -> None:
        step = min(self.versions)
        decided, came = self.level() > step, self.given_at(step)
        super().begin_generation(lanes, given)
        if decided:
            return
        if self.stayed and not given.issuperset(came):
            raise Violation(f"of step {step} shares {came} have come, and {sorted(given)} are to count")
        self.forget_shares(step, given)

    def forget_shares(self, step: int, but: Collection[int]) -> None:
        """What other lanes gave for a step, and the one after it, is of shares that will never come."""
        for lane in range(self.model.lanes):
            if lane not in but and self.share(step, lane):
                self._known[step % 2][lane] = 0
                self._slots.get(step, {}).pop(lane, None)
                self._nodes.pop(step, None)
            if self.share(step + 1, lane):
                self._known[(step + 1) % 2][lane] = 0

    # ------------------------------------------------------------ the step's end

    def backlog(self, version: int) -> tuple[LostPart, ...]:
        """What was left over when a version began."""
        return self._backlog[self._newest_copy(version)][1]

    def _newest_copy(self, version: int) -> int:
        there = [copy for copy in (0, 1) if self._backlog[copy][0] <= version]
        return max(there, key=lambda copy: self._backlog[copy][0], default=0)

    def whole(self, step: int) -> list[LostPart]:
        """All samples of a step's own."""
        return [LostPart(0, 0, step, lane) for lane in self.model.lanes_at(step)]

    def left(self, came: Sequence[FakeShare], step: int) -> tuple[LostPart, ...]:
        """What is left over when a step is made of these shares."""
        return left_over([share.share for share in came], self.backlog(step), self.whole(step), 0)

    def _came(self, step: int) -> list[FakeShare]:
        found = [self.share(step, lane) for lane in self.lanes_at(step)]
        if not all(found):
            raise Violation(f"step {step} is made of lanes {self.lanes_at(step)}, but {self.known(step)} are known")
        return [share for share in found if share]

    def settle(self, step: int) -> None:
        came = self._came(step)
        if {share.clips for share in came} != {came[0].clips}:
            raise Violation(f"step {step} is made of shares that are clipped, and others that are not")
        left = self.left(came, step)
        used = [part for share in came for part in share.parts]
        if sorted((*used, *left)) != sorted((*self.backlog(step), *self.whole(step))):
            raise Violation(f"step {step} uses {used} and leaves {left} of {self.backlog(step)} and its own samples")
        if len(left) > _BACKLOG * self.model.lanes:
            raise Violation(f"{len(left)} parts are left over at step {step}, for which there is no room")
        if left or self.backlog(step + 1):
            self._backlog[1 - self._newest_copy(step)] = step + 1, left

    def _sum_of(self, step: int) -> int:
        came = self._came(step)
        key = (step, self._before, *came)
        if key not in self._totals:
            values = {share.share.first: self._gradient(step, share) for share in came}
            plan = tree.plan([share.node for share in came], sorted(values), self.model.lanes)
            self._totals = {key: tree.fold(plan, values.__getitem__, add)}
        return self._totals[key]

    def _check_committed(self, step: int) -> None:
        self._before = tuple(self.state)
        self.history.commit(step, tuple(self._came(step)), self._before, self.backlog(step + 1))

    # ------------------------------------------------------------ the state of another host

    def image(self) -> tuple[Any, ...]:
        return (tuple(self.state), tuple(self._backlog))

    def land_state(self, generation: int, version: int, state: Sequence[Any]) -> None:
        super().land_state(generation, version, state)
        self.state, self._backlog, self._before = list(state[0]), list(state[1]), tuple(state[0])

    def _check_fetched(self, version: int, state: Sequence[Any]) -> None:
        newest = max((copy for copy in state[1] if copy[0] <= version), key=lambda copy: copy[0])
        self.history.fetch(version, state[0], newest[1])
