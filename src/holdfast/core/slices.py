"""The flat space of the trainable tensors, cut into slices, and who owns them.

    entries in (dtype, group) order, each from a multiple of 64 bytes on:

    float32, group 0  |conv.weight|..|conv.bias|..|fc.weight .............................|
    slices            |--------- 0 ---------------|------- 1 ---------|------- 2 ---------|

Rules:

* There is one flat space per dtype; `start` and `stop` count its elements. Each space is tiled by its
  slices exactly, padding between entries included.
* A slice has one dtype and one parameter group, so one call of the optimizer takes one slice.
* Slices begin at multiples of the alignment, so two owners never write into one cache line, and a
  vector loop over a slice has the same tail wherever the slice lies.
* The layout follows from the entries and nothing else. It decides where sums over a slice (a gradient's
  norm) are cut, so it must be the same for every crew. Only `owners` knows of workers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, groupby, pairwise
from math import lcm

__all__ = ["Layout", "Slice", "Span", "TensorEntry", "TensorPart", "even_shares", "layout", "owners", "shares"]

#: More slices than a few come in multiples of this, so that two, three, four or six owners get equally many. With ten
#: slices, one of four hosts would own three and carry a fifth more than its share, and the others would wait for it.
_SHARED, _FEW = 12, 6


@dataclass(frozen=True, slots=True)
class Span:
    """Elements [start, stop) of one flat space."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One trainable tensor."""

    name: str
    numel: int
    dtype: str
    itemsize: int
    group: int  #: parameter group of the optimizer


@dataclass(frozen=True, slots=True)
class TensorPart:
    """The part of one entry that lies in one slice."""

    entry: int
    start: int  #: in the flat space of its dtype
    stop: int
    offset: int  #: of `start`, inside the entry


@dataclass(frozen=True, slots=True)
class Slice:
    """The unit of ownership: one version, one optimizer call. Padding is in the slice, in no piece."""

    index: int
    dtype: str
    start: int
    stop: int
    pieces: tuple[TensorPart, ...]
    group: int
    itemsize: int

    @property
    def span(self) -> Span:
        return Span(self.start, self.stop)

    @property
    def nbytes(self) -> int:
        return (self.stop - self.start) * self.itemsize


@dataclass(frozen=True, slots=True)
class Layout:
    """Where every entry lies, and how the spaces are cut."""

    entries: tuple[TensorEntry, ...]
    slices: tuple[Slice, ...]
    offsets: tuple[int, ...]  #: entry -> where it begins in the flat space of its dtype
    totals: Mapping[str, int]  #: dtype -> elements of its flat space, padding included

    def span(self, entry: int) -> Span:
        """Return where the entry's own elements lie, without the padding after them."""
        return Span(self.offsets[entry], self.offsets[entry] + self.entries[entry].numel)


def layout(entries: Sequence[TensorEntry], target_bytes: int = 1 << 20, align_bytes: int = 64) -> Layout:
    """Lay the entries out and cut them into slices of about `target_bytes`.

    Big tensors are cut, small ones share a slice. Where an entry begins within a quarter of a slice of the
    even cut, the cut is made there, so that few small tensors are cut in two.
    """
    if target_bytes < 1 or align_bytes < 1:
        raise ValueError(f"target_bytes = {target_bytes} and align_bytes = {align_bytes} must be 1 or more")
    itemsizes: dict[str, int] = {}
    for entry in entries:
        if entry.numel < 0 or entry.itemsize < 1 or align_bytes % entry.itemsize:
            raise ValueError(f"{entry} cannot be laid out with an alignment of {align_bytes} bytes")
        if itemsizes.setdefault(entry.dtype, entry.itemsize) != entry.itemsize:
            raise ValueError(f"{entry} has not the itemsize {itemsizes[entry.dtype]} of others of its dtype")

    def place(index: int) -> tuple[str, int]:
        return entries[index].dtype, entries[index].group

    offsets = [0] * len(entries)
    totals = dict.fromkeys(sorted(itemsizes), 0)
    slices: list[Slice] = []
    for (dtype, group), run in groupby(sorted(range(len(entries)), key=place), key=place):
        itemsize = itemsizes[dtype]
        align = align_bytes // itemsize
        start = end = totals[dtype]
        filled: list[int] = []  # the entries with elements, in flat order
        for index in run:
            offsets[index] = end
            end += -(-entries[index].numel // align) * align
            if entries[index].numel:
                filled.append(index)
        totals[dtype] = end
        begins = [offsets[index] for index in filled]
        for lo, hi in pairwise(_cuts(start, end, begins, max(1, target_bytes // itemsize), align)):
            pieces = []
            for index in filled[max(bisect_left(begins, lo + 1) - 1, 0) : bisect_left(begins, hi)]:
                first, last = max(lo, offsets[index]), min(hi, offsets[index] + entries[index].numel)
                if first < last:
                    pieces.append(TensorPart(index, first, last, first - offsets[index]))
            slices.append(Slice(len(slices), dtype, lo, hi, tuple(pieces), group, itemsize))
    return Layout(tuple(entries), tuple(slices), tuple(offsets), totals)


def owners(layout: Layout, members: Sequence[int]) -> tuple[int, ...]:
    """Give every slice to a member: contiguous runs in the order given, by bytes."""
    return even_shares([piece.nbytes for piece in layout.slices], members)


def even_shares(sizes: Sequence[int], members: Sequence[int]) -> tuple[int, ...]:
    """Give every slice to the member whose even share of the bytes its middle lies in.

    Members own contiguous runs in the order given, each within one slice of an even share. With fewer
    slices than members some own none.

    >>> even_shares([4, 4, 4, 4, 8], [0, 7])
    (0, 0, 0, 7, 7)
    """
    return shares(sizes, members, [1] * len(members))


def shares(sizes: Sequence[int], members: Sequence[int], rates: Sequence[float]) -> tuple[int, ...]:
    """Give every slice to a member as `even_shares` does, where a share is as large as the member is fast.

    The arithmetic is exact, so whoever computes it gets the same, and equal rates give even shares.

    >>> shares([4, 4, 4, 4, 8], [0, 7], [0.5, 0.1])
    (0, 0, 0, 0, 7)
    """
    if not members:
        raise ValueError(f"{len(sizes)} slices and no member to own them")
    exact = [Fraction(rate) for rate in rates]
    unit = lcm(*(rate.denominator for rate in exact))
    *ends, whole = accumulate(int(rate * unit) for rate in exact)  # where shares end, in parts of the whole
    double = 2 * sum(sizes)
    given, before, at = [], 0, 0
    for size in sizes:
        while at < len(ends) and (2 * before + size) * whole >= double * ends[at]:
            at += 1
        given.append(members[at])
        before += size
    return tuple(given)


def _cuts(start: int, end: int, begins: Sequence[int], target: int, align: int) -> list[int]:
    """Return where slices begin in [start, end), and `end`; all are multiples of `align`."""
    if start == end:
        return []
    number = max(1, -(-(end - start) // target))
    if number > _FEW:
        number = -(-number // _SHARED) * _SHARED
    reach = (end - start) // number // 4
    cuts = {start, end}
    for i in range(1, number):
        even = start + (end - start) * i // number
        at = bisect_left(begins, even)
        near = min(begins[max(at - 1, 0) : at + 1], key=lambda begin: abs(begin - even))
        cuts.add(near if abs(near - even) <= reach else even // align * align)
    return sorted(cuts)
