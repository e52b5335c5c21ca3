"""The hosts of a run: what each offers, how far its arena is, and where the next worker goes. Pure.

A *host* is one machine's share of a run: an arena, and the workers that look at it. Rules that live here:

* a host offers `slots`; its `share` of them is used. Scaling changes the shares of those who are there; who joins later
  brings its own; the share of one that goes passes to others that have room;
* workers are spread evenly over the hosts, each up to its share, all together up to the lanes. What is there stays
  where it is: a host for which no lane is left idles as a spare;
* a host with a lower level than the best of a generation gets the state from one of the best before it goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.control.protocol.messages import Install

__all__ = ["Hosts", "KnownHost", "spread"]


@dataclass(slots=True)
class KnownHost:
    """What the machine knows about one live host."""

    number: int
    name: str
    slots: int  #: workers it has room for, as it said when it joined
    share: int  #: workers it should have
    level: int = -1  #: the next step it has no need of others for; -1: it holds no state
    of: int = 0  #: the generation that its state is of
    given: tuple[int, ...] = ()  #: first lanes of the shares of the step at hand that are there, in a plain loop
    shares: bool = False  #: steps were made of shares there: made once more, they are others
    leaving: str = ""  #: why it goes; empty: it stays
    arena: bool = False  #: its arena was ordered
    refills: bool = True  #: a worker that is lost there can be replaced
    started: int = 0  #: workers that were ordered there; without `refills`, those whose processes are not gone
    donor: int = -1  #: the host it follows; -1: none
    told: Install | None = None  #: what its workers were told, if they follow, or did until their donor gave up
    followed: int = 0  #: the newest generation in which they were told
    failed: bool = False  #: following came to nothing
    caught_up: bool = False  #: it follows closely enough to be taken in
    waits: bool = False  #: its workers are not to be taken in yet: it follows, or is to

    @property
    def spent(self) -> bool:
        """No worker can be started there any more."""
        return not self.refills and self.started >= self.slots

    @property
    def holds(self) -> bool:
        """Whether the state of the run can be had from it."""
        return self.level >= 0

    def vacated(self) -> None:
        """A worker's process there is gone; where nobody can be started anew, so is its place."""
        if not self.refills:
            self.slots, self.started = self.slots - 1, self.started - 1
            self.share = min(self.share, self.slots)

    def taken_in(self) -> None:
        """It has members in a generation, so it follows nobody any more."""
        self.donor, self.told, self.failed, self.caught_up, self.waits = -1, None, False, False, False

    def left_alone(self) -> None:
        """It has no donor any more."""
        self.donor, self.failed, self.caught_up = -1, True, False


@dataclass(slots=True)
class Hosts:
    """The live hosts, by number."""

    live: dict[int, KnownHost] = field(default_factory=dict)
    ever: int = 0  #: how many have joined
    #: The generation since which every host makes the same of the state, so that further is newer. Where one host holds
    #: it that is the newest one: others may go on without what a lost primary had made, so later generations come
    #: first.
    fence: int = 0

    def joined(self, number: int, name: str, slots: int, *, refills: bool = True) -> KnownHost:
        """A new one."""
        self.ever += 1
        self.live[number] = KnownHost(number, name, slots, slots, refills=refills)
        return self.live[number]

    def staying(self) -> list[KnownHost]:
        """Those that are not on their way out."""
        return [host for host in self.live.values() if not host.leaving]

    def several(self) -> bool:
        """Whether sentences have to say which host is meant."""
        return self.ever > 1

    def on(self, numbers: Iterable[int]) -> str:
        """Where something happens, for a sentence; empty while there was never more than one host.

        >>> hosts = Hosts()
        >>> hosts.joined(0, "a", 2).number, hosts.on([0])
        (0, '')
        >>> hosts.joined(1, "b", 2).number, hosts.on([0]), hosts.on([1, 0])
        (1, ' on host 0', ' on hosts 0 and 1')
        """
        some = sorted(set(numbers))
        if not self.several() or not some:
            return ""
        *most, last = map(str, some)
        return f" on hosts {', '.join(most)} and {last}" if most else f" on host {last}"

    def rescale(self, total: int) -> bool:
        """Share out this many workers; False if there is no room. Host 0 takes what nobody else has room for."""
        there = sorted(host.number for host in self.staying())
        offered = {number: self.live[number].slots for number in there}
        if 0 in offered and self.live[0].refills:
            offered[0] = max(offered[0], total - sum(slots for number, slots in offered.items() if number))
        if sum(offered.values()) < total:
            return False
        for number, share in spread(total, offered).items():
            self.live[number].share = share
        return True

    def bequeath(self, share: int) -> None:
        """A host that had this share is gone, or goes: let others take it over, as far as they have room."""
        there = self.staying()
        offered = {host.number: max(host.slots, host.share) for host in there}
        for number, given in spread(share + sum(host.share for host in there), offered).items():
            self.live[number].share = given

    def age(self, host: KnownHost) -> tuple[int, int]:
        """How new a host's state is: the generation that it was made in, as far as that matters; how far it is.

        >>> hosts, one = Hosts(fence=3), KnownHost(0, "", 1, 1, level=9, of=2)
        >>> other = KnownHost(1, "", 1, 1, level=7, of=4)
        >>> hosts.age(one), hosts.age(other)
        ((2, 9), (3, 7))
        """
        return (min(host.of, self.fence), host.level) if host.holds else (-1, -1)

    def sources(self, numbers: Collection[int]) -> dict[int, int]:
        """Which host each of these gets the state from, if it lags behind the best of them.

        >>> hosts = Hosts({n: KnownHost(n, "", 1, 1, level) for n, level in enumerate((4, 5, -1, 5))})
        >>> hosts.sources([0, 1, 2, 3])
        {0: 1, 2: 3}
        """
        ages = {number: self.age(self.live[number]) for number in sorted(numbers)}
        best = max(ages.values())
        sources = [number for number, age in ages.items() if age == best]
        behind = [number for number, age in ages.items() if age < best]
        return {number: sources[index % len(sources)] for index, number in enumerate(behind)}

    def given(self, numbers: Collection[int], before: Collection[int]) -> tuple[int, dict[int, int]]:
        """(version, first lane -> host) of the shares that hosts of these hold of the step that the newest is at.

        Only hosts that were there `before`, in the last generation, count: what others hold was given for a step that
        was shared out anew without them.

        >>> hosts = Hosts({n: KnownHost(n, "", 1, 1, level, given=(2 * n,)) for n, level in enumerate((4, 5, 5))})
        >>> hosts.given([0, 1, 2], [0, 1, 2]), hosts.given([0, 1, 2], [0, 1])
        ((5, {2: 1, 4: 2}), (5, {2: 1}))
        """
        newest = max((self.live[number].level for number in numbers), default=-1)
        there = [self.live[number] for number in sorted({*numbers} & {*before}) if self.live[number].level == newest]
        given = {lane: host.number for host in there for lane in host.given}
        return (newest if given else -1), given

    def abreast(self, primary: int, numbers: Collection[int]) -> tuple[int, ...]:
        """Which of these hold the same as `primary`, where one host holds the state and others may have copies.

        >>> hosts = Hosts({n: KnownHost(n, "", 1, 1, 5, of) for n, of in enumerate((3, 3, 2))}, fence=3)
        >>> hosts.abreast(0, [0, 1, 2])
        (1,)
        """
        live, newest = self.live, self.age(self.live[primary])
        return tuple(number for number in sorted(set(numbers) - {primary}) if self.age(live[number]) == newest)

    def replicas(self, primary: int, numbers: Collection[int], most: int) -> tuple[int, ...]:
        """Which of these are to hold a copy of what `primary` holds, in the order of their chain.

        Those come first that have the newest state already: a machine that comes back takes nobody's place, for until
        it had a copy there would be one less.

        >>> hosts = Hosts({n: KnownHost(n, "", 1, 1, level) for n, level in enumerate((-1, 5, 5, 4))})
        >>> hosts.replicas(1, [0, 1, 2, 3], 1), hosts.replicas(1, [0, 1, 2, 3], 3)
        ((2,), (2, 3, 0))
        """
        others = sorted(set(numbers) - {primary})
        return tuple(sorted(others, key=lambda number: self.age(self.live[number]), reverse=True)[:most])

    def best(self, numbers: Collection[int], rather: Sequence[int]) -> int:
        """Which of these holds the newest state: the first one in `rather` that does, or else one that stays.

        >>> hosts = Hosts({n: KnownHost(n, "", 1, 1, level) for n, level in enumerate((-1, 5, 5))})
        >>> hosts.best([0, 1, 2], [2]), hosts.best([0, 1, 2], [0])
        (2, 1)
        >>> hosts.live[1].leaving = "SIGTERM"
        >>> hosts.best([0, 1, 2], [0])
        2
        """
        ages = {number: self.age(self.live[number]) for number in sorted(numbers)}
        able = [number for number, age in ages.items() if age == max(ages.values())]
        first = [number for number in rather if number in able]
        return first[0] if first else min(able, key=lambda number: (bool(self.live[number].leaving), number))


def spread(total: int, room: Mapping[int, int], first: Sequence[int] = ()) -> dict[int, int]:
    """Spread workers evenly over hosts, in the order of their numbers; those in `first` come before the others.

    >>> spread(5, {0: 4, 1: 1, 2: 4})
    {0: 2, 1: 1, 2: 2}
    """
    given = Counter(dict.fromkeys(sorted(room), 0))
    order = sorted(room, key=lambda number: (number not in first, number))
    left = min(total, sum(room.values()))
    while left > 0:
        for number in order:
            if left > 0 and given[number] < room[number]:
                given[number] += 1
                left -= 1
    return dict(given)
