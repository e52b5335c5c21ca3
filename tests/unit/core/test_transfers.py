"""What a host sends to another one: everything that is due, once, in runs, and no more."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.transfers import Facts, HostProgress, Sent, SliceSums, SumPiece, TransferRoute, due, longest_run
from holdfast.core.tree import Node, contribution, fold, plan, reference_sum, uncovered


def route(lanes: set[int], here: list[bool], there: list[bool], num_lanes: int = 4, most: int = 100) -> TransferRoute:
    count = len(here)
    return TransferRoute(
        frozenset(lanes), num_lanes, tuple(here), tuple(there), ("float32",) * count, (40,) * count, most
    )


HALF = route({0, 1}, [True, True, False, False], [False, False, True, True])


def view(**changes: object) -> HostProgress:
    nothing = HostProgress(5, (), (), (0, 1, 2, 3), (0, 0, 0, 0), (5, 5, 5, 5))
    return nothing._replace(**changes)  # type: ignore[arg-type]


def test_nothing_is_due_before_the_lanes_of_this_host_are_complete() -> None:
    assert due(HALF, view(nodes=(Node(0, 1),)), Sent(5)) == []


def test_facts_go_first_then_pieces_for_the_other_home_then_sums_of_this_one() -> None:
    seen = view(known=(0, 1, 2), nodes=(Node(0, 2),), summed=(6, 5, 5, 5))
    assert due(HALF, seen, Sent(5)) == [
        Facts(5, (0, 1)), SumPiece(5, Node(0, 2), 2, 4, merged=False), SliceSums(5, 0, 1),
    ]  # fmt: skip


def test_what_was_sent_is_not_sent_again() -> None:
    seen, sent = view(known=(0, 1), nodes=(Node(0, 2),), summed=(6, 6, 5, 5)), Sent(5)
    for transfer in due(HALF, seen, sent):
        sent.note(transfer)
    assert due(HALF, seen, sent) == []


def test_several_workers_of_a_host_send_one_merged_sum_as_it_becomes_ready() -> None:
    seen = view(nodes=(Node(0, 1), Node(1, 1)), gathered=(0, 0, 0, 6))
    assert due(HALF, seen, Sent(5)) == [SumPiece(5, Node(0, 2), 3, 4, merged=True)]


def test_lanes_that_do_not_make_up_one_node_go_as_they_are() -> None:
    three = route({1, 2, 3}, [False], [True])
    seen = view(nodes=(Node(1, 1), Node(2, 2)), gathered=(0,), summed=(5,))
    assert [transfer.node for transfer in due(three, seen, Sent(5)) if isinstance(transfer, SumPiece)] == [
        Node(1, 1),
        Node(2, 2),
    ]


def test_a_route_that_is_a_step_behind_sends_what_is_left_of_sums_and_facts_but_no_pieces() -> None:
    seen = view(version=6, known=(0, 1), nodes=(), summed=(6, 7, 6, 6))
    # Slice 1 is summed for the next step already: so the other host has it, or it would not have arrived there.
    assert due(HALF, seen, Sent(5)) == [Facts(5, (0, 1)), SliceSums(5, 0, 1)]


def test_partial_sums_with_lanes_of_other_hosts_are_not_ours_to_send() -> None:
    assert due(HALF, view(nodes=(Node(0, 4),)), Sent(5)) == []


def test_runs_are_as_long_as_they_may_be_and_stay_in_one_space() -> None:
    spaces = ("a", "a", "a", "b", "b")
    long = TransferRoute(frozenset({0}), 4, (True,) * 5, (False,) * 5, spaces, (40, 40, 40, 40, 400), 100)
    totals = due(long, HostProgress(5, (), (), None, (0,) * 5, (6,) * 5), Sent(5))
    assert totals == [SliceSums(5, 0, 2), SliceSums(5, 2, 3), SliceSums(5, 3, 4), SliceSums(5, 4, 5)]


@given(st.integers(1, 12), st.integers(0, 2**32))
def test_what_hosts_send_makes_up_the_tree_whatever_the_lanes(num_lanes: int, seed: int) -> None:
    """Cut the lanes into runs of hosts, those into runs of workers: what is sent covers every lane once."""
    chance = random.Random(seed)
    hosts = [0] * num_lanes
    for lane in range(1, num_lanes):
        hosts[lane] = hosts[lane - 1] + (chance.random() < 0.4)
    values = {lane: f"{lane}" for lane in range(num_lanes)}
    sent: list[Node] = []
    for host in set(hosts):
        mine = [lane for lane in range(num_lanes) if hosts[lane] == host]
        nodes = [Node(lane, 1) for lane in mine]
        merged, parts, plain = contribution(nodes, num_lanes)
        sent += [*plain, *([merged] if merged else [])]
        assert sorted([*plain, *parts]) == nodes
        assert merged is None or len(parts) > 1
    assert not uncovered(range(num_lanes), sent)
    assert sum(node.span for node in sent) == num_lanes

    def add(left: str, right: str) -> str:
        return f"({left}+{right})"

    held = {
        node.lane: reference_sum({n: values[n] for n in range(node.lane, node.lane + node.span)}, num_lanes, add)
        for node in sent
    }
    assert fold(plan(sent, range(num_lanes), num_lanes), held.__getitem__, add) == reference_sum(values, num_lanes, add)


@pytest.mark.parametrize(
    ("others", "rate", "megabytes"),
    [(1, 0.0, 6), (1, 1e10, 6), (2, 0.0, 3), (3, 0.0, 2), (3, 1.2e8, 2), (3, 1e9, 3), (15, 1.2e8, 1), (15, 1e9, 3)],
)
def test_runs_are_shorter_among_more_hosts_unless_the_network_is_fast(others: int, rate: float, megabytes: int) -> None:
    assert longest_run(others, rate) == megabytes << 20


def test_of_the_step_before_one_that_was_begun_nobody_needs_gradients() -> None:
    """It is decided everywhere; its lanes may lie on other hosts than those of the same number in the next step."""
    begun = replace(HALF, at_hand=6, begun=frozenset({0, 1}))
    seen = view(known=(0, 1), nodes=(Node(0, 2),), summed=(6, 6, 6, 6))
    assert due(begun, seen, Sent(5)) == [Facts(5, (0, 1)), SliceSums(5, 0, 2)]
    assert SumPiece(6, Node(0, 2), 2, 4, merged=False) in due(begun, seen._replace(version=6), Sent(6))
