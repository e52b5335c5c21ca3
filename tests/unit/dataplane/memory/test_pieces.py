"""Pieces: which partial sums of a slice have come, and which lanes they leave out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.tree import Node, bits, cover, uncovered
from holdfast.dataplane.memory.board import Board, board_bytes
from holdfast.dataplane.memory.pieces import Pieces

LANES, SLICES = 8, 3
placed = st.tuples(st.integers(0, LANES - 1), st.integers(1, LANES), st.integers(4, 6), st.integers(0, SLICES - 1))


def pieces_of(come: list[tuple[int, int, int, int]]) -> Pieces:
    pieces = Pieces(memoryview(bytearray(8 * LANES * SLICES)), LANES, SLICES)
    for lane, span, step, slice_ in come:
        pieces.put(Node(lane, min(span, LANES - lane)), step, slice_, slice_ + 1)
    return pieces


@given(st.lists(placed, max_size=12), st.sets(st.integers(0, LANES - 1)), st.sets(st.integers(0, LANES - 1)))
def test_what_is_missing_is_what_no_piece_of_the_step_covers(
    come: list[tuple[int, int, int, int]], work: set[int], own: set[int]
) -> None:
    """The quick way of asking agrees with the plain one, for whatever has come, of whichever step."""
    pieces, nodes = pieces_of(come), [Node(lane, 1) for lane in sorted(own)]
    for slice_ in range(SLICES):
        missing = pieces.missing(5, slice_, bits(work) & ~cover(nodes), bits(own))
        assert missing == bits(uncovered(sorted(work), [*nodes, *pieces.nodes(5, slice_, but=nodes)]))


@given(st.sets(st.integers(0, 200)), st.integers(0, 9))
def test_lanes_with_work_as_a_list_and_as_bits(lanes: set[int], step: int) -> None:
    board = Board(memoryview(bytearray(board_bytes(201, 2, 2))), 201, 2, 2)
    board.format()
    assert board.work(step) is None and board.work_bits(step) == 0
    board.put_work(step, sorted(lanes))
    assert board.work(step) == sorted(lanes) and board.work_bits(step) == bits(lanes)
    assert board.work(step + 1) is None and board.work_bits(step + 1) == 0
