"""What a host has to send to another one next. Pure.

For every other host there is a *route*, and for every route a record of what was *sent* of the step it is at. From
those and from what the host's own board shows follows what is due:

* facts of my lanes (loss, buffers and the like), to everybody, first;
* partial sums of the slices that are at home over there, once all lanes of my host are complete: as few nodes as
  the tree allows, the slices in order;
* sums of the slices that are at home here, as soon as they are made.

A host with one worker may send slices of its partial sum *early*, while the last backward of the step still runs. Where
the script changes gradients after that, those slices are sent again, before the worker is shown as arrived.

A route may be one step behind its host: sums of the last step that the other host has not got yet are still there
(nobody sums the next step before it has), and so are the facts (they take turns). Partial sums are not needed any more
then: the host would not have gone on without all sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.core.tree import Node, contribution, uncovered

__all__ = [
    "Facts",
    "HostProgress",
    "Sent",
    "SliceSums",
    "SumPiece",
    "Transfer",
    "TransferRoute",
    "due",
    "longest_run",
    "runs",
]

_RUN, _LEAST = 6 << 20, 1 << 20  # bytes
#: Bytes per second from which on hosts are busier than the network between them.
_FAST = 4e8


class Facts(NamedTuple):
    """What these lanes gave besides gradients, in `exact`."""

    step: int
    lanes: tuple[int, ...]


class SumPiece(NamedTuple):
    """Slices [first, last) of a partial sum; `merged` says that it lies in the host's own section, not in a slot."""

    step: int
    node: Node
    first: int
    last: int
    merged: bool
    again: bool = False  #: it takes the place of what was sent before


class SliceSums(NamedTuple):
    """Slices [first, last) of the step's gradient."""

    step: int
    first: int
    last: int


Transfer = Facts | SumPiece | SliceSums


@dataclass(frozen=True, slots=True)
class TransferRoute:
    """From my host to another one, for one generation."""

    lanes: frozenset[int]  #: driven on my host
    num_lanes: int
    here: tuple[bool, ...]  #: slice -> is it at home on my host
    there: tuple[bool, ...]  #: slice -> is it at home on the other one
    spaces: tuple[str, ...]  #: slice -> what it lies in; runs of slices stay in one
    sizes: tuple[int, ...]  #: slice -> bytes
    most: int  #: bytes in one run of slices
    at_hand: int = -1  #: the version that the step at hand begins with, when the generation begins
    begun: frozenset[int] = frozenset()  #: the lanes of that step that are my host's: some may have come before

    def mine(self, step: int) -> frozenset[int]:
        """The lanes of a step that are my host's."""
        return self.begun if step == self.at_hand else self.lanes


@dataclass(slots=True)
class Sent:
    """What went over a route for the step it is at."""

    step: int
    lanes: set[int] = field(default_factory=set)
    pieces: set[int] = field(default_factory=set)
    early: set[int] = field(default_factory=set)  #: those of `pieces` that went before the host's lanes were complete
    totals: set[int] = field(default_factory=set)

    def note(self, transfer: Transfer) -> None:
        """This is on its way."""
        if isinstance(transfer, Facts):
            self.lanes.update(transfer.lanes)
        elif isinstance(transfer, SumPiece):
            self.pieces.update(range(transfer.first, transfer.last))
            if transfer.again:
                self.early.difference_update(range(transfer.first, transfer.last))
        else:
            self.totals.update(range(transfer.first, transfer.last))


class HostProgress(NamedTuple):
    """What my host's board shows of the step a route is at."""

    version: int  #: the host's
    known: Sequence[int]  #: lanes whose facts are here, of that step
    nodes: Sequence[Node]  #: partial sums of my lanes, of that step
    work: Sequence[int] | None  #: lanes with work in that step; None while nobody has said so
    gathered: Sequence[int]  #: slice -> version of the host's merged partial sum
    summed: Sequence[int]  #: slice -> version of its sum
    early: Node | None = None  #: what the slices that are gathered belong to while lanes are missing


def due(route: TransferRoute, view: HostProgress, sent: Sent) -> list[Transfer]:
    """What is to be sent now, in order. Empty with `view.version > sent.step`: the route goes on to the next step."""
    step = sent.step
    transfer: list[Transfer] = []
    lanes = tuple(lane for lane in view.known if lane in route.mine(step) and lane not in sent.lanes)
    if lanes:
        transfer.append(Facts(step, lanes))
    # The step before one that was begun is decided everywhere, and its lanes may be other hosts' in that.
    if view.version == step >= route.at_hand and view.work is not None:
        transfer.extend(_pieces(route, view, sent))
    ready = [s for s, at in enumerate(view.summed) if at == step + 1 and route.here[s] and s not in sent.totals]
    transfer.extend(SliceSums(step, first, last) for first, last in _runs(route, ready))
    return transfer


def _pieces(route: TransferRoute, view: HostProgress, sent: Sent) -> Iterator[SumPiece]:
    step = sent.step
    left = [s for s, there in enumerate(route.there) if there and s not in sent.pieces]
    if not left and not sent.early:
        return
    lanes = route.mine(step)
    mine = [lane for lane in view.work or () if lane in lanes]
    nodes = [n for n in view.nodes if lanes.issuperset(range(n.lane, n.lane + n.span))]
    if not mine:
        return
    if uncovered(mine, nodes):
        ready = [s for s in left if view.early is not None and view.gathered[s] > step]
        for first, last in _runs(route, ready):
            assert view.early is not None
            sent.early.update(range(first, last))
            yield SumPiece(step, view.early, first, last, merged=True)
        return
    stale = [s for s in sorted(sent.early) if view.gathered[s] <= step]
    for first, last in _runs(route, stale):
        for node in nodes:
            yield SumPiece(step, node, first, last, merged=False, again=True)
    merged, _, plain = contribution(nodes, route.num_lanes)
    if merged is not None:
        left = [s for s in left if view.gathered[s] > step]
    for first, last in _runs(route, left):
        for node in plain:
            yield SumPiece(step, node, first, last, merged=False)
        if merged is not None:
            yield SumPiece(step, merged, first, last, merged=True)


def runs(slices: Iterable[int], spaces: Sequence[str], sizes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Neighbouring slices as runs of at most `most` bytes (or one slice): few large calls, yet a steady flow.

    >>> list(runs([0, 1, 2, 4], spaces="aaaaa", sizes=[4, 4, 4, 4, 9], most=8))
    [(0, 2), (2, 3), (4, 5)]
    """
    first = last = -1
    size = 0
    for index in slices:
        if index == last and spaces[index] == spaces[first] and size + sizes[index] <= most:
            last, size = index + 1, size + sizes[index]
            continue
        if last > first:
            yield first, last
        first, last, size = index, index + 1, sizes[index]
    if last > first:
        yield first, last


def longest_run(others: int, rate: float) -> int:
    """Bytes of slices in one frame to one of so many other hosts, given bytes per second of the network (0: unknown).

    Large enough that calls are few. Where the frames of several meet at one host, smaller ones let its next stage begin
    before the last of them has come; but less so where the network is fast, and hosts have enough to do with calls.
    """
    return max(_LEAST, _RUN // (min(others, 2) if rate >= _FAST else others))


def _runs(route: TransferRoute, slices: Iterable[int]) -> Iterator[tuple[int, int]]:
    return runs(slices, route.spaces, route.sizes, route.most)
