from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.slices import Layout, Span, TensorEntry, TensorPart, layout, owners

ITEMSIZE = {"float32": 4, "float64": 8, "bfloat16": 2}


@st.composite
def entry_lists(draw: st.DrawFn) -> list[TensorEntry]:
    number = draw(st.integers(0, 12))
    entries = []
    for i in range(number):
        dtype = draw(st.sampled_from(sorted(ITEMSIZE)))
        numel = draw(st.integers(0, 5) | st.integers(0, 300) | st.integers(0, 5000))
        entries.append(TensorEntry(f"p{i}", numel, dtype, ITEMSIZE[dtype], draw(st.integers(0, 2))))
    return entries


@given(entry_lists(), st.sampled_from([1, 64, 300, 1024, 4096, 1 << 20]), st.sampled_from([8, 64, 128]))
def test_slices_tile_the_space_and_pieces_tile_the_entries(entries: list[TensorEntry], target: int, align: int) -> None:
    laid = layout(entries, target, align)
    ends = dict.fromkeys(laid.totals, 0)
    found: dict[int, list[int]] = {i: [] for i in range(len(entries))}
    for index, part in enumerate(laid.slices):
        assert part.index == index
        assert part.start == ends[part.dtype] < part.stop
        assert part.start * part.itemsize % align == part.stop * part.itemsize % align == 0
        ends[part.dtype] = part.stop
        at = part.start
        for piece in part.pieces:
            entry = entries[piece.entry]
            assert (entry.dtype, entry.group, entry.itemsize) == (part.dtype, part.group, part.itemsize)
            assert at <= piece.start < piece.stop <= part.stop
            assert piece.offset == piece.start - laid.offsets[piece.entry]
            found[piece.entry] += range(piece.offset, piece.offset + piece.stop - piece.start)
            at = piece.stop
    assert ends == laid.totals
    for i, entry in enumerate(entries):
        assert found[i] == list(range(entry.numel))
        assert laid.offsets[i] * entry.itemsize % align == 0
        assert laid.span(i) == Span(laid.offsets[i], laid.offsets[i] + entry.numel)
        assert laid.span(i).size == entry.numel


@given(entry_lists(), st.sampled_from([256, 1024, 4096]))
def test_slices_are_about_as_large_as_asked(entries: list[TensorEntry], target: int) -> None:
    for part in layout(entries, target).slices:
        assert part.nbytes <= 1.5 * target + 64


@given(entry_lists())
def test_entries_keep_their_order_within_dtype_and_group(entries: list[TensorEntry]) -> None:
    laid = layout(entries)
    keyed = sorted(range(len(entries)), key=lambda i: (entries[i].dtype, entries[i].group))
    for a, b in pairwise(keyed):
        if entries[a].dtype == entries[b].dtype:
            assert laid.offsets[a] + entries[a].numel <= laid.offsets[b]


@given(entry_lists(), st.lists(st.integers(0, 99), min_size=1, max_size=7, unique=True))
def test_owners_are_contiguous_and_balanced_within_one_slice(entries: list[TensorEntry], members: list[int]) -> None:
    laid = layout(entries, 512)
    given_to = owners(laid, members)
    assert len(given_to) == len(laid.slices)
    seats = [members.index(worker) for worker in given_to]
    assert seats == sorted(seats)
    if laid.slices:
        largest = max(part.nbytes for part in laid.slices)
        even = sum(part.nbytes for part in laid.slices) / len(members)
        for member in members:
            mine = sum(part.nbytes for part, owner in zip(laid.slices, given_to, strict=True) if owner == member)
            assert abs(mine - even) <= largest


def test_small_tensors_share_and_big_ones_are_cut() -> None:
    entries = [
        TensorEntry("w", 100, "float32", 4, 0),
        TensorEntry("b", 10, "float32", 4, 0),
        TensorEntry("big", 2048, "float32", 4, 1),
    ]
    laid = layout(entries, target_bytes=4096)
    assert laid.offsets == (0, 112, 128)
    assert laid.totals == {"float32": 2176}
    assert [(part.start, part.stop, part.group) for part in laid.slices] == [
        (0, 128, 0),
        (128, 1152, 1),
        (1152, 2176, 1),
    ]
    assert laid.slices[0].pieces == (TensorPart(0, 0, 100, 0), TensorPart(1, 112, 122, 0))
    assert laid.slices[2].pieces == (TensorPart(2, 1152, 2176, 1024),)
    assert [part.span.size for part in laid.slices] == [128, 1024, 1024]


def test_a_cut_is_made_between_small_tensors() -> None:
    laid = layout([TensorEntry(f"p{i}", 240, "float32", 4, 0) for i in range(8)], target_bytes=4096)
    assert [[piece.entry for piece in part.pieces] for part in laid.slices] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_no_entries_make_no_slices() -> None:
    assert layout([]) == Layout((), (), (), {})
    assert owners(layout([]), [1, 2]) == ()
    assert layout([TensorEntry("empty", 0, "float32", 4, 0)]).slices == ()


@pytest.mark.parametrize(
    "entries",
    [
        [TensorEntry("p", -1, "float32", 4, 0)],
        [TensorEntry("p", 1, "odd", 24, 0)],
        [TensorEntry("p", 1, "float32", 4, 0), TensorEntry("q", 1, "float32", 8, 0)],
    ],
)
def test_what_cannot_be_laid_out_is_refused_by_name(entries: list[TensorEntry]) -> None:
    with pytest.raises(ValueError, match=f"name='{entries[-1].name}'"):
        layout(entries)


def test_sizes_and_members_must_be_there() -> None:
    with pytest.raises(ValueError, match="target_bytes = 0"):
        layout([], target_bytes=0)
    with pytest.raises(ValueError, match="no member"):
        owners(layout([]), [])
