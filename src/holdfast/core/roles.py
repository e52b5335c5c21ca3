"""Where a worker stands in a generation: who is on its host, who owns, drives and sums what. Pure.

The worker and the simulation both stand so. A generation may begin in the middle of a step that this host can complete
alone: all sums of it are here (*carried*), or the host was alone when it began to finish slices without any (*alone*).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.core.sync.exact import StepView

__all__ = ["Assignment", "ChainLink", "Role", "chain_link", "primary_of"]


def primary_of(hosts: Sequence[int], sources: Mapping[int, int]) -> int:
    """The host of a generation that holds the state, in relaxed modes: the first that needs no source.

    >>> primary_of([0, 1, 1, 2], {0: 1, 2: 1})
    1
    """
    return min(set(hosts).difference(sources))


class ChainLink(NamedTuple):
    """A host's place in the chain along which versions travel, from the primary to its last replica."""

    before: int | None = None  #: the host that it gets them from; None: it makes them, or has no part in this
    after: int | None = None  #: the host that it passes them on to; None: there is none


def chain_link(host: int, primary: int, replicas: Sequence[int]) -> ChainLink:
    """Where a host stands in the chain of these replicas.

    >>> [chain_link(host, primary=1, replicas=(0, 2)) for host in (1, 0, 2)]
    [ChainLink(before=None, after=0), ChainLink(before=1, after=2), ChainLink(before=0, after=None)]
    """
    chain = [primary, *replicas]
    if host not in chain:
        return ChainLink()
    at = chain.index(host)
    return ChainLink(chain[at - 1] if at else None, chain[at + 1] if at + 1 < len(chain) else None)


@dataclass(frozen=True, slots=True)
class Assignment:
    """Who is in a generation. `hosts` says on which host each member is; None: all on one.

    With `summed`, steps are finished from sums also on one host, because somebody follows. With `following`, that is
    this host: it drives and sums nothing, and gets all sums.
    """

    members: Sequence[int]
    rows: Sequence[int]
    driver: Sequence[int]
    hosts: Sequence[int] | None = None
    summed: bool = False
    following: bool = False
    servers: Sequence[int] = ()  #: members that own slices and drive nothing; where there are none, all own
    primary: int | None = None  #: the one host that holds the state, in relaxed modes; else all hold it
    owners: Sequence[int] = ()  #: slice -> server, all of them on one host; empty: servers own by bytes
    sums_only: bool = False  #: servers sum, and the others own; where lanes keep step
    at_hand: int = -1  #: the version that the step at hand begins with
    given: Mapping[int, int] = field(default_factory=dict)  #: first lane of a share of it that has come -> its host


@dataclass(frozen=True, slots=True)
class Role:
    """One worker's place in one generation."""

    worker: int = -1
    members: Sequence[int] = ()
    rows: Mapping[int, int] = field(default_factory=dict)  #: member -> row on the board
    driver: Sequence[int] = ()
    owner: Sequence[int] = ()  #: slice -> worker of my host that acts on it
    on_host: Sequence[int] = ()  #: the members on my host
    home: Sequence[bool] | None = None  #: slice -> is it summed on my host; None: there is one host
    following: bool = False  #: my host is not in the crew yet; it finishes the crew's steps after it
    carried: int = -1  #: a step whose sums and facts were all here when the generation began
    alone: int = -1  #: a step that this host had begun to finish by itself, without sums, when others joined
    servers: Sequence[int] = ()
    summer: Sequence[int] = ()  #: slice -> worker of my host that sums it, where that is not its owner
    at_hand: int = -1  #: the version that the step at hand begins with
    given: Mapping[int, int] = field(default_factory=dict)  #: first lane of a share that has come -> a worker there

    @classmethod
    def of(
        cls, worker: int, crew: Assignment, share: Callable[[Sequence[int]], Sequence[int]], versions: Sequence[int],
        *, complete: bool,
    ) -> Role:  # fmt: skip
        """My place in a generation.

        `share` gives every slice to one of some workers or hosts. `versions` are those of my host's slices as the
        generation begins, and `complete` says whether all that the step at hand is finished from is here.
        """
        where = dict(zip(crew.members, crew.hosts or [0] * len(crew.members), strict=True))
        here = where[worker]
        on_host = tuple(member for member in crew.members if where[member] == here)
        near = on_host if crew.primary is None else [member for member in crew.members if where[member] == crew.primary]
        serving = [member for member in near if member in crew.servers]
        working = [member for member in near if member not in crew.servers]
        sums_only = crew.sums_only and crew.primary is None and bool(serving)
        served = tuple(crew.owners if serving and crew.owners else share(serving or near))
        owner, summer = (tuple(share(working or near)), served) if sums_only else (served, ())
        hosts = sorted(set(where.values()))
        homes = sorted({where[server] for server in crew.servers}) or hosts
        home: tuple[bool, ...] | None = None
        if crew.following:
            home = (False,) * len(owner)
        elif len(hosts) > 1 or crew.summed or summer:
            home = tuple(host == here for host in share(homes))
        step = min(versions, default=0)
        carried = step if complete else -1
        alone = step if not complete and max(versions, default=0) > step else -1
        rows = dict(zip(crew.members, crew.rows, strict=True))
        first = {host: member for member, host in reversed(where.items())}
        given = {lane: first[host] for lane, host in crew.given.items()}
        return cls(
            worker, tuple(crew.members), rows, tuple(crew.driver), owner, on_host, home, crew.following, carried, alone,
            tuple(crew.servers), summer, crew.at_hand, given,
        )  # fmt: skip

    @property
    def lead(self) -> int:
        """The worker that prints and saves for all."""
        return min(member for member in self.members if member not in self.servers)

    @property
    def slices(self) -> int:
        """How many slices I own; or sum, where that is all I do."""
        return (self.summer if self.summer and self.worker in self.servers else self.owner).count(self.worker)

    def sums(self, step: int) -> bool:
        """Is this step finished from sums that are made first, and carried between hosts?"""
        return self.carried == step or (self.home is not None and self.alone != step)

    def apart(self, step: int) -> bool:
        """Is this step one that my host shares with no other, so that there is nothing to see of them?"""
        return self.home is None or self.alone == step

    def place(self, step: int, *, closing: bool = True) -> StepView:
        """My place, for the rule."""
        home, members = self.home, self.members
        if home is None and self.carried == step:
            home = (True,) * len(self.owner)
        elif self.alone == step:
            home, members = None, self.on_host
        driver = [self.given.get(lane, worker) for lane, worker in enumerate(self.driver)] if self.begun(step) else None
        return StepView(
            self.worker, step, driver or self.driver, self.owner, members, self.on_host, home, self.summer, closing
        )

    def begun(self, step: int) -> bool:
        """Has the step that begins with this version shares from before this generation, of which it then consists?"""
        return step == self.at_hand and bool(self.given)

    def sums_here(self, slice_: int) -> bool:
        """Is it me who sums this slice, of those that are at home on my host?"""
        return bool(self.home and self.home[slice_]) and (self.summer or self.owner)[slice_] == self.worker
