"""The tree has one meaning: every cover, however it came about, finishes to the bits of `reference_sum`."""

from __future__ import annotations

import random
from itertools import pairwise
from operator import add as plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.tree import Node, fold, keep, maximal_nodes, plan, push, reference_sum, uncovered


def paired(x: str, y: str) -> str:
    return f"({x}+{y})"


def accumulate(lanes: list[int], num_lanes: int, slots: dict[int, str]) -> list[Node]:
    """Compute the lanes in this order as one worker does, with its slots in `slots`."""
    stack: list[Node] = []
    for lane in lanes:
        slots[lane] = str(lane)
        merges, stack = push(stack, Node(lane, 1), num_lanes)
        for into, take, gives in merges:
            assert gives == (into.lane, into.span + take.span)
            slots[into.lane] = paired(slots[into.lane], slots.pop(take.lane))
    return stack


@pytest.mark.parametrize(
    ("num_lanes", "lanes", "expression"),
    [
        (1, [0], "0"),
        (2, [0, 1], "(0+1)"),
        (3, [0, 1, 2], "((0+1)+2)"),
        (4, [0, 1, 2, 3], "((0+1)+(2+3))"),
        (5, [0, 1, 2, 3, 4], "(((0+1)+(2+3))+4)"),
        (6, [0, 1, 2, 3, 4, 5], "(((0+1)+(2+3))+(4+5))"),
        (7, [0, 1, 2, 3, 4, 5, 6], "(((0+1)+(2+3))+((4+5)+6))"),
        (8, [0, 1, 2, 3, 4], "(((0+1)+(2+3))+4)"),
        (8, [1, 3, 6, 7], "((1+3)+(6+7))"),
        (8, [5], "5"),
    ],
)
def test_the_tree_is_this_one(num_lanes: int, lanes: list[int], expression: str) -> None:
    assert reference_sum({lane: str(lane) for lane in lanes}, num_lanes, paired) == expression


@given(st.integers(1, 40), st.integers(1, 5), st.randoms(use_true_random=False), st.booleans())
def test_every_partition_onto_workers_gives_the_same_expression(
    num_lanes: int, workers: int, rng: random.Random, gaps: bool
) -> None:
    lanes = [lane for lane in range(num_lanes) if not gaps or rng.random() < 0.7] or [rng.randrange(num_lanes)]
    work: list[list[int]] = [[] for _ in range(workers)]
    for lane in lanes:
        rng.choice(work).append(lane)
    slots: dict[int, str] = {}
    nodes: list[Node] = []
    for mine in work:
        rng.shuffle(mine)
        nodes += accumulate(mine, num_lanes, slots)
    rng.shuffle(nodes)
    assert uncovered(lanes, nodes) == []
    found = fold(plan(nodes, lanes, num_lanes), slots.__getitem__, paired)
    assert found == reference_sum({lane: str(lane) for lane in lanes}, num_lanes, paired)


@given(st.integers(1, 70), st.data())
def test_every_partition_gives_the_same_float_bits(num_lanes: int, data: st.DataObject) -> None:
    floats = st.floats(allow_nan=False, allow_infinity=False, width=32)
    work = data.draw(st.integers(1, num_lanes))  # a last batch smaller than the lanes
    values = dict(enumerate(data.draw(st.lists(floats, min_size=work, max_size=work))))
    cuts = sorted(data.draw(st.sets(st.integers(1, work), max_size=5)) | {0, work})
    slots: dict[int, float] = {}
    nodes: list[Node] = []
    for lo, hi in pairwise(cuts):
        stack: list[Node] = []
        for lane in range(lo, hi):
            slots[lane] = values[lane]
            merges, stack = push(stack, Node(lane, 1), num_lanes)
            for into, take, _ in merges:
                slots[into.lane] += slots.pop(take.lane)
        assert stack == maximal_nodes(lo, hi, num_lanes)
        nodes += stack
    found = fold(plan(nodes, range(work), num_lanes), slots.__getitem__, plus)
    assert found.hex() == reference_sum(values, num_lanes, plus).hex()


@given(st.integers(1, 33), st.randoms(use_true_random=False))
def test_partial_sums_of_the_dead_are_as_good_as_those_of_their_heirs(num_lanes: int, rng: random.Random) -> None:
    """Lanes change hands again and again; what was published stays, what was not is computed again."""
    slots: dict[int, str] = {}
    published: list[Node] = []
    while missing := uncovered(range(num_lanes), published):
        rng.shuffle(missing)
        mine = missing[: rng.randint(1, len(missing))]
        held: dict[int, str] = {}
        nodes = accumulate(mine, num_lanes, held)
        for node in nodes:
            if rng.random() < 0.6:  # the others die with the worker
                published.append(node)
                slots[node.lane] = held[node.lane]
    found = fold(plan(published, range(num_lanes), num_lanes), slots.__getitem__, paired)
    assert found == reference_sum({lane: str(lane) for lane in range(num_lanes)}, num_lanes, paired)


@given(st.integers(1, 20), st.integers(1, 20))
def test_lanes_beyond_the_work_do_not_change_the_tree(num_lanes: int, work: int) -> None:
    work = min(work, num_lanes)
    values = {lane: str(lane) for lane in range(work)}
    assert reference_sum(values, num_lanes, paired) == reference_sum(values, work, paired)
    assert plan([Node(0, work)], range(work), num_lanes) == (0,)


def test_push_merges_the_two_children_of_a_node_and_nothing_else() -> None:
    assert push([], Node(1, 1), 4) == ([], [Node(1, 1)])
    assert push([Node(1, 1)], Node(2, 1), 4) == ([], [Node(1, 1), Node(2, 1)])
    merges, stack = push([Node(0, 2), Node(2, 1)], Node(3, 1), 4)
    assert merges == [
        (Node(2, 1), Node(3, 1), Node(2, 2)),
        (Node(0, 2), Node(2, 2), Node(0, 4)),
    ]
    assert stack == [Node(0, 4)]


def test_push_merges_a_clipped_right_child() -> None:
    assert push([Node(0, 4)], Node(4, 1), 5) == ([(Node(0, 4), Node(4, 1), Node(0, 5))], [Node(0, 5)])
    assert push([Node(0, 4)], Node(4, 1), 6) == ([], [Node(0, 4), Node(4, 1)])
    assert push([Node(0, 4), Node(4, 2)], Node(6, 1), 7)[1] == [Node(0, 7)]


def test_push_takes_the_left_child_last_as_well() -> None:
    stack = [Node(1, 1)]
    assert push(stack, Node(0, 1), 2) == ([(Node(0, 1), Node(1, 1), Node(0, 2))], [Node(0, 2)])
    assert stack == [Node(1, 1)]


def test_push_refuses_what_it_holds_already() -> None:
    with pytest.raises(ValueError, match=r"Node\(lane=1, span=1\) overlaps Node\(lane=0, span=2\)"):
        push([Node(0, 2)], Node(1, 1), 4)


@pytest.mark.parametrize("node", [Node(1, 2), Node(0, 3), Node(4, 1), Node(2, 4), Node(-1, 1), Node(0, 0)])
def test_push_refuses_what_is_no_node(node: Node) -> None:
    with pytest.raises(ValueError, match="is no node of the tree over 4 lanes"):
        push([], node, 4)


def test_a_stack_keeps_only_nodes_whose_lanes_are_all_driven_by_the_worker() -> None:
    stack = [Node(0, 2), Node(2, 1), Node(4, 4)]
    assert keep(stack, (1,) * 8, 1) == stack
    assert keep(stack, (1, 2, 1, 1, 1, 1, 1, 1), 1) == [Node(2, 1), Node(4, 4)]
    assert keep(stack, (1, 1, 1, 1, 1, 1, 1, 2), 1) == [Node(0, 2), Node(2, 1)]
    assert keep(stack, (2,) * 8, 1) == []


def test_maximal_nodes() -> None:
    assert maximal_nodes(0, 4, 4) == [Node(0, 4)]
    assert maximal_nodes(0, 3, 4) == [Node(0, 2), Node(2, 1)]
    assert maximal_nodes(0, 3, 3) == [Node(0, 3)]
    assert maximal_nodes(3, 7, 7) == [Node(3, 1), Node(4, 3)]
    assert maximal_nodes(2, 2, 4) == []
    with pytest.raises(ValueError, match=r"the run \[2, 9\)"):
        maximal_nodes(2, 9, 8)


def test_uncovered() -> None:
    assert uncovered([0, 1, 2, 3], []) == [0, 1, 2, 3]
    assert uncovered((3, 1, 0), [Node(1, 1)]) == [0, 3]
    assert uncovered(range(3), [Node(0, 4)]) == []


def test_plan_names_slots_by_the_first_lane_of_their_node() -> None:
    assert plan([Node(4, 4), Node(0, 4)], range(8), 8) == (0, 4, -1)
    assert plan([Node(2, 1), Node(0, 2)], [0, 1, 2], 4) == (0, 2, -1)
    assert plan([Node(0, 4)], range(4), 4) == (0,)


@pytest.mark.parametrize(
    ("nodes", "lanes", "problem"),
    [
        ([Node(0, 2)], range(4), r"lanes \[2, 3\] are not covered"),
        ([Node(0, 4), Node(3, 1)], range(4), "lane 3 is covered twice"),
        ([Node(0, 1), Node(1, 2), Node(3, 1)], range(4), r"Node\(lane=1, span=2\) is no node"),
        ([Node(0, 3), Node(3, 1)], range(4), r"Node\(lane=0, span=3\) is no node"),
        ([Node(0, 1), Node(1, 1)], [0], r"Node\(lane=1, span=1\) covers no lane with work"),
        ([Node(0, 4)], [], "at least one"),
        ([Node(0, 4)], [1, 1], "distinct"),
        ([Node(0, 8)], [0, 7], "in range"),
    ],
)
def test_plan_refuses_a_broken_cover_with_its_values(nodes: list[Node], lanes: list[int], problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as error:
        plan(nodes, lanes, 4)
    assert f"nodes {[tuple(node) for node in nodes]} for lanes {list(lanes)} of 4" in str(error.value)


def test_reference_sum_needs_a_lane() -> None:
    with pytest.raises(ValueError, match="no sum over lanes"):
        reference_sum({}, 4, plus)
    with pytest.raises(ValueError, match=r"no sum over lanes \[4\] of 4"):
        reference_sum({4: 1.0}, 4, plus)
