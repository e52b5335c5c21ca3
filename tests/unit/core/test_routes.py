"""Which addresses are offered, and which way is chosen, with its sentence."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.routes import (
    EQUAL,
    MAX_ADDRESSES,
    SLICE,
    Address,
    NoRoute,
    Trial,
    bits,
    choose,
    merged,
    slope,
    targets,
    worth_trying,
)

LO = Address("127.0.0.1", "lo", "loopback")
ETH = Address("10.0.0.2", "eth0")
ETH6 = Address("fd00::2", "eth0")
LINK = Address("fe80::2", "eth0", "link")
CABLE = Address("fe80::3", "eth1", "link")
DOCKER = Address("172.17.0.1", "docker0", "inner")


def way(there: str, rate: float, latency: float = 1e-4, *, interface: str = "eth0", back: float = 0.0) -> Trial:
    ours = Address(there.rpartition(".")[0] + ".1", interface)
    return Trial(there, Address(there, interface), ours, latency, rate * 1e6, (back or rate) * 1e6)


# ---------------------------------------------------------------- what is offered


@pytest.mark.parametrize(
    ("found", "bound", "offered"),
    [
        ([LO, ETH6, ETH, LINK], "", [ETH, ETH6]),
        ([LO], "", [LO]),
        ([], "", []),
        ([LO, DOCKER, ETH], "", [ETH, DOCKER]),
        ([LO, DOCKER], "", [DOCKER]),
        ([LO, ETH, LINK, CABLE], "", [ETH, CABLE]),
        ([LO, ETH, ETH6], "0.0.0.0", [ETH]),
        ([LO, ETH, ETH6], "::", [ETH, ETH6]),
        ([LO, ETH, ETH6], "10.0.0.2", [ETH]),
        ([LO, ETH, ETH6], "fd00:0:0::2", [ETH6]),
        ([LO, ETH, LINK], "fe80::2%eth0", [LINK]),
        ([LO, ETH], "127.0.0.1", [LO]),
        ([ETH], "127.0.0.5", [Address("127.0.0.5", "", "loopback")]),
        ([ETH], "203.0.113.9", [Address("203.0.113.9", "")]),
    ],
)
def test_what_is_worth_trying(found: list[Address], bound: str, offered: list[Address]) -> None:
    assert worth_trying(found, bound) == offered


def test_a_machine_with_a_thousand_addresses_offers_some() -> None:
    services = [Address(f"10.96.{n // 250}.{n % 250}", "kube-ipvs0", "inner") for n in range(1000)]
    offered = worth_trying([LO, *services, ETH])
    assert offered[0] == ETH
    assert len(offered) == MAX_ADDRESSES


def test_link_local_addresses_are_dialled_through_each_interface() -> None:
    assert [dialled for dialled, _ in targets([ETH, CABLE], ["a", "b"])] == ["10.0.0.2", "fe80::3%a", "fe80::3%b"]


def test_what_is_no_address_is_not_dialled() -> None:
    strange = [Address(ip, "x") for ip in ("gpu7", "", "fe80::1%x", "10.0.0.1\0", "10.0.0.1:22", "1" * 999)]
    assert targets([*strange, ETH], []) == [("10.0.0.2", ETH)]


# ---------------------------------------------------------------- the choice


def test_the_fastest_is_chosen_and_the_sentence_says_by_what_factor() -> None:
    slow, fast = way("10.0.0.2", 48), way("10.0.1.2", 957, interface="eth1")
    choice = choose([slow, fast], "host 1", "host 0")
    assert choice.trial is fast
    assert choice.sentence == (
        "host 1 and host 0 talk over eth1 to 10.0.1.2 (957 Mbit/s, round trip 0.1 ms), "
        "20x faster than eth0 to 10.0.0.2 (48 Mbit/s, round trip 0.1 ms)"
    )


def test_the_runner_up_and_the_worst_are_named() -> None:
    ways = [way("10.0.0.2", 1), way("10.0.1.2", 1000, interface="eth1"), way("10.0.2.2", 500), way("10.0.3.2", 300)]
    sentence = choose(ways).sentence
    assert "2x faster than eth0 to 10.0.2.2" in sentence
    assert "x faster than eth0 to 10.0.0.2 (1 Mbit/s" in sentence
    assert "10.0.3.2" not in sentence


def test_a_way_is_as_fast_as_its_slower_direction() -> None:
    lopsided, even = way("10.0.0.2", 10_000, back=50), way("10.0.1.2", 100)
    assert choose([lopsided, even]).trial is even


def test_a_long_round_trip_counts() -> None:
    tunnel, near = way("10.0.0.2", 1000, latency=0.2), way("10.0.1.2", 800)
    assert choose([tunnel, near]).trial is near


def test_among_equals_the_first_is_used() -> None:
    first, second = way("10.0.0.2", 950), way("10.0.1.2", 980, interface="eth1")
    choice = choose([first, second])
    assert choice.trial is first
    assert choice.sentence.endswith(", no slower than eth1 to 10.0.1.2, which is the second choice")


def test_the_only_network() -> None:
    dead = Trial("172.17.0.1", DOCKER, problem="Nothing listens at 172.17.0.1:4000")
    choice = choose([way("10.0.0.2", 950), dead], "host 1", "host 0")
    assert choice.sentence == (
        "host 1 and host 0 talk over eth0 to 10.0.0.2 (950 Mbit/s, round trip 0.1 ms), "
        "the only network that connects them"
    )
    pinged = replace(way("10.0.0.2", 1), sent=0.0, received=0.0)
    assert choose([pinged]).sentence == (
        "this host and the other host talk over eth0 to 10.0.0.2 (round trip 0.1 ms), "
        "the only network that connects them"
    )


def test_no_way_names_every_address_and_what_to_do() -> None:
    silent = Trial("10.0.0.2", ETH, problem="No answer from 10.0.0.2:4000 within 2 s")
    with pytest.raises(NoRoute) as caught:
        choose([silent, Trial("fd00::2", ETH6, problem="no")], "host 1", "host 0 (gpu7)", 4000)
    assert str(caught.value) == (
        "host 1 cannot reach host 0 (gpu7) at any of its addresses, port 4000 (eth0 to 10.0.0.2: No answer from "
        "10.0.0.2:4000 within 2 s; eth0 to fd00::2: no). Let that port through the firewalls between them, or have "
        "host 0 (gpu7) listen on an address and a port that host 1 can reach (--listen ADDRESS:PORT)."
    )
    assert caught.value.exit_code == 10
    with pytest.raises(NoRoute, match=r"at any of its addresses \(it offered none\)\. "):
        choose([])


rates = st.floats(0.01, 1e5)


@given(st.lists(st.tuples(rates, rates, st.floats(1e-6, 1.0)), min_size=1, max_size=8))
def test_the_choice_is_at_most_a_little_slower_than_the_best(measured: list[tuple[float, float, float]]) -> None:
    ways = [way(f"10.0.{n}.2", out, latency, back=back) for n, (out, back, latency) in enumerate(measured)]
    chosen = choose(ways).trial
    least = min(it.seconds for it in ways)
    assert chosen.seconds <= least * (1 + EQUAL)
    assert not any(it.seconds <= least * (1 + EQUAL) for it in ways[: ways.index(chosen)])


def test_a_way_that_carries_nothing_takes_for_ever() -> None:
    assert way("10.0.0.2", 8, latency=0.5).seconds == pytest.approx(0.5 + SLICE / 1e6)
    assert replace(way("10.0.0.2", 8), problem="x").seconds == replace(way("10.0.0.2", 8), received=0.0).seconds == inf


# ---------------------------------------------------------------- measurements


STEADY = [(n / 100, n * 10_000) for n in range(31)]


def test_what_a_shaper_had_saved_up_does_not_count() -> None:
    assert slope([(0.0, 0), *[(at, 500_000 + size) for at, size in STEADY[1:]]]) == pytest.approx(8e6)


def test_a_slow_start_does_not_count() -> None:
    slow = [(at, size // 10) for at, size in STEADY[:6]]
    assert slope([*slow, *[(at, size - 45_000) for at, size in STEADY[6:]]]) == pytest.approx(8e6)


@pytest.mark.parametrize("stall", range(27))
def test_a_stall_and_the_lump_behind_it_do_not_mislead(stall: int) -> None:
    held = STEADY[stall][1]
    lump = [(at, held if stall < n < stall + 4 else size) for n, (at, size) in enumerate(STEADY)]
    assert slope(lump) == pytest.approx(8e6, rel=0.05)


@pytest.mark.parametrize("marks", [[], [(1.0, 0)], [(1.0, 0), (1.0, 10)]])
def test_no_time_no_rate(marks: list[tuple[float, int]]) -> None:
    assert slope(marks) == 0.0


def test_one_lump_is_taken_as_a_whole() -> None:
    assert slope([(0.0, 0), (0.5, 1000)]) == 16_000.0


@given(st.lists(st.tuples(st.floats(1e-6, 1.0), st.integers(1, 2**20)), min_size=1, max_size=30))
def test_a_rate_is_between_the_slowest_and_the_fastest_moment(steps: list[tuple[float, int]]) -> None:
    marks, at, total = [(0.0, 0)], 0.0, 0
    for seconds, size in steps:
        at, total = at + seconds, total + size
        marks.append((at, total))
    moments = [(size * 8) / seconds for seconds, size in steps]
    assert min(moments) * 0.999 <= slope(marks) <= max(moments) * 1.001


def test_both_sides_measurements_become_one_list() -> None:
    mine, theirs = Address("10.0.0.1", "eth0"), Address("10.0.0.2", "eth1")
    ours = Trial("10.0.0.2", theirs, mine, 2e-4, 90.0, 70.0)
    back = Trial("10.0.0.1", mine, theirs, 1e-4, 80.0, 60.0)
    assert merged([ours], [back]) == [Trial("10.0.0.2", theirs, mine, pytest.approx(1.5e-4), 75.0, 75.0)]
    blocked = replace(ours, latency=inf, sent=0.0, received=0.0, problem="no answer")
    assert merged([blocked], [back]) == [Trial("10.0.0.2", theirs, mine, 1e-4, 60.0, 80.0)]
    lost = Trial("10.9.0.1", Address("10.9.0.1", "eth9"), problem="no route")
    assert merged([ours], [lost]) == [ours, replace(lost, here=lost.there, there=Address("", ""))]


def test_a_link_local_way_back_names_the_interface_of_the_one_who_dials() -> None:
    left, right = Address("fe80::1", "left", "link"), Address("fe80::2", "right", "link")
    (turned,) = merged([], [Trial("fe80::1%right", left, right, 1e-4, 1.0, 2.0)])
    assert turned.dial == "fe80::2%left"


def test_rates_for_people() -> None:
    assert [bits(rate) for rate in (1e9, 999.6e6, 999.4e6, 1e3)] == [
        "1 Gbit/s", "1 Gbit/s", "999 Mbit/s", "0.001 Mbit/s",
    ]
