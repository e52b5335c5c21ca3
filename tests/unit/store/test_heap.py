"""Who has which bytes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from holdfast.store.heap import Extent, Heap, room_for


@given(st.lists(st.tuples(st.integers(0, 40 * 2**20), st.booleans()), max_size=40))
def test_places_that_are_taken_never_overlap(drawn: list[tuple[int, bool]]) -> None:
    heap, taken = Heap(12345), []
    for size, give in drawn:
        if give and taken:
            heap.give(taken.pop(0))
        taken.append(heap.take(size))
    spans = sorted((place.run + place.offset, room_for(place.size)) for place in taken)
    for (start, size), (after, _) in pairwise(spans):
        assert start + size <= after
    for place in taken:
        assert place.run >= 12345 and place.run % 4096 == 0 and (place.run + place.offset) % 64 == 0
        assert place.offset + place.size <= place.length and place.run + place.length <= heap.top


def test_what_is_given_back_is_used_again() -> None:
    heap = Heap(0)
    big = heap.take(100 * 2**20)
    top = heap.top
    heap.give(big)
    assert heap.take(100 * 2**20) == big and heap.top == top
    assert Extent(0, 100, 10, 20).part(5, 3) == Extent(0, 100, 15, 3)
