"""When slices move between servers for the sake of speed alone. Pure functions over a frozen `SliceBalance`.

The rules are those of `hysteresis`; besides:

* a server is as fast as it was of late: bytes that it applied, over the seconds that it took for them. Older news
  count for less, half as much after `settle` seconds (or a few, where that is long);
* other owners (`core.placement.replaced`) must save `gain` of what a version takes its servers, and `worth` of all
  the time: where servers have little to do there is nothing to gain, and a change costs a pause.

What is owned here are bundles of slices, see `core.placement`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from holdfast.config.limits import CONTROL
from holdfast.control.hysteresis import Hysteresis
from holdfast.control.membership.roster import CrewLimits
from holdfast.core import placement

__all__ = ["Applied", "OwnerChange", "SliceBalance", "installed", "measured", "owners_for", "runs", "shares"]


@dataclass(frozen=True, slots=True)
class OwnerChange:
    """Other owners among the same servers, and why."""

    owners: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Applied:
    """What a server has applied: in all, and of late."""

    total: tuple[int, float]  #: (bytes, seconds), since it began
    at: float  #: when that was shown
    bytes: float = 0.0
    seconds: float = 0.0
    elapsed: float = 0.0  #: in which it was

    @property
    def rate(self) -> float:
        """Bytes that it applies in a second; 0 where that is not known yet."""
        return self.bytes / self.seconds if self.seconds > 0.0 else 0.0

    @property
    def busy(self) -> float:
        """The part of its time in which it applied something."""
        return self.seconds / self.elapsed if self.elapsed > 0.0 else 0.0

    def then(self, total: tuple[int, float], now: float, half_life: float) -> Applied:
        """With what it shows now. While nothing is applied nothing is learnt, and nothing forgotten."""
        if total[0] <= self.total[0]:
            return self
        old = 0.5 ** ((now - self.at) / half_life)
        return Applied(
            total, now, self.bytes * old + total[0] - self.total[0], self.seconds * old + total[1] - self.total[1],
            self.elapsed * old + now - self.at,
        )


@dataclass(frozen=True, slots=True)
class SliceBalance(Hysteresis):
    """What is known about servers, and what was tried."""

    shown: Mapping[int, Applied] = field(default_factory=dict)

    def rates(self) -> dict[int, float]:
        """Server -> bytes that it applies in a second, where that is known."""
        return {server: shown.rate for server, shown in self.shown.items() if shown.rate > 0.0}


def owners_for(owning: SliceBalance, servers: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """Owners where the servers have changed: the best that the known rates give. Without sizes nobody can say."""
    return placement.place(sizes, servers, owning.rates()) if servers and sizes else ()


def installed(
    owning: SliceBalance, now: float, owners: Sequence[int], servers: Sequence[int], limits: CrewLimits
) -> SliceBalance:
    """Note that a generation with these owners has begun."""
    shown = {server: owning.shown[server] for server in servers if server in owning.shown}
    known = [server for server in servers if server in shown]  # who was never seen at work was not found too slow
    return SliceBalance(shown, probes=owning.probes_after(now, owners, known, limits.crew))


def measured(
    owning: SliceBalance, now: float, since: float, owners: Sequence[int], sizes: Sequence[int], servers: Sequence[int],
    applied: Mapping[int, tuple[int, float]], limits: CrewLimits,
) -> tuple[SliceBalance, OwnerChange | None]:  # fmt: skip
    """Take in one report of what servers have applied; propose other owners when it is time for that.

    `since` is when the last generation began.
    """
    shown, half_life = dict(owning.shown), min(max(limits.crew.settle, CONTROL.least_half_life), CONTROL.most_half_life)
    for server in servers:
        if server in applied:
            before = shown.get(server)
            shown[server] = before.then(applied[server], now, half_life) if before else Applied(applied[server], now)
    owning = replace(owning, shown=shown)
    better = placement.replaced(owners, sizes, servers, owning.rates(), gain=limits.crew.gain)
    if better is not None and _saved(owning, owners, better[0], sizes) < limits.crew.worth:
        better = None
    change = None if better is None else OwnerChange(better[0], f"slices move: {better[1]}")
    return owning.judged(
        change, owners, lambda after: _probe(after, now, owners, sizes), settled=now - since >= limits.crew.settle
    )


def runs(owners: Sequence[int]) -> list[tuple[int, int]]:
    """Owners as runs: (server, how many), in order.

    >>> runs((2, 2, 3))
    [(2, 2), (3, 1)]
    """
    return [(owner, len(list(run))) for owner, run in groupby(owners)]


def shares(owners: Sequence[int], sizes: Sequence[int]) -> dict[int, float]:
    """Server -> the part of all bytes that it owns.

    >>> shares((2, 2, 3), (1, 2, 1))
    {2: 0.75, 3: 0.25}
    """
    held: Counter[int] = Counter()
    for owner, size in zip(owners, sizes, strict=True):
        held[owner] += size
    return {owner: size / max(1, sum(sizes)) for owner, size in held.items()}


def _saved(owning: SliceBalance, before: Sequence[int], after: Sequence[int], sizes: Sequence[int]) -> float:
    """The part of all the time that other owners would save: others wait while the slowest server is busy."""
    rates = owning.rates()
    busy = max((owning.shown[server].busy for server in set(before) if server in owning.shown), default=0.0)
    return busy * (1 - placement.seconds(after, sizes, rates) / placement.seconds(before, sizes, rates))


def _probe(owning: SliceBalance, now: float, owners: Sequence[int], sizes: Sequence[int]) -> OwnerChange | None:
    """A server that owns nothing gets a little of what the slowest one has, if its time has come."""
    due = owning.due(now, owners)
    rates, held = owning.rates(), shares(owners, sizes)
    givers = [server for server, number in Counter(owners).items() if number > 1]
    if not due or not givers:
        return None
    giver = max(givers, key=lambda server: (held[server] / rates.get(server, 1.0), -server))
    last = max(at for at, owner in enumerate(owners) if owner == giver)
    tried = tuple(due[0] if at == last else owner for at, owner in enumerate(owners))
    return OwnerChange(tried, f"server {due[0]} owns nothing; it is tried with a little to see how fast it is now")
