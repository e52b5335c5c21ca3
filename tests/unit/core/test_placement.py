from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.placement import bundled, place, replaced, seconds, unbundled
from holdfast.core.slices import even_shares, shares

MB = 1 << 20
sizes_of = st.lists(st.integers(1, 64), max_size=40)
crews = st.lists(st.integers(0, 50), min_size=1, max_size=8, unique=True)
speeds = st.floats(0.01, 100.0)


def held(owners: Sequence[int], sizes: Sequence[int]) -> Counter[int]:
    found: Counter[int] = Counter()
    for owner, size in zip(owners, sizes, strict=True):
        found[owner] += size
    return found


def moved(before: Sequence[int], after: Sequence[int]) -> list[tuple[int, int]]:
    """(From, to) of every slice that changes hands."""
    return [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]


def in_runs(owners: Sequence[int]) -> bool:
    return len(list(groupby(owners))) == len(set(owners))


# ------------------------------------------------------------ shares


@given(sizes_of, crews, speeds)
def test_equal_rates_give_even_shares_by_the_integers(sizes: list[int], crew: list[int], rate: float) -> None:
    total, before, by_hand = sum(sizes), 0, []
    for size in sizes:
        by_hand.append(crew[(2 * before + size) * len(crew) // (2 * total)])
        before += size
    assert shares(sizes, crew, [rate] * len(crew)) == even_shares(sizes, crew) == tuple(by_hand)


@given(sizes_of, crews, st.data())
def test_shares_are_runs_within_one_slice_of_what_the_rate_says(
    sizes: list[int], crew: list[int], data: st.DataObject
) -> None:
    rates = [data.draw(speeds) for _ in crew]
    owners = shares(sizes, crew, rates)
    assert [crew.index(owner) for owner in owners] == sorted(crew.index(owner) for owner in owners)
    for member, rate in zip(crew, rates, strict=True):
        due = sum(sizes) * rate / sum(rates)
        assert abs(held(owners, sizes)[member] - due) <= max(sizes, default=0) + 1e-6


def test_shares_need_members_and_a_rate_for_each() -> None:
    with pytest.raises(ValueError, match="2 slices and no member to own them"):
        shares([1, 2], [], [])
    assert shares([], [1, 2], [1, 1]) == ()


# ------------------------------------------------------------ place


def test_place_by_hand() -> None:
    assert place([4] * 6, [7, 8, 9]) == (7, 7, 8, 8, 9, 9)
    assert place([4] * 6, [7, 8, 9], {7: 1.0, 8: 4.0, 9: 1.0}) == (7, 8, 8, 8, 8, 9)
    assert place([4] * 6, [7, 8, 9], {8: 5.0}) == place([4] * 6, [7, 8, 9])  # the others count as the median: 5.0
    assert place([], [7, 8]) == ()


def test_with_more_servers_than_slices_some_own_none() -> None:
    owners = place([4, 4], [1, 2, 3, 4, 5])
    assert len(set(owners)) == 2


def test_a_server_on_which_one_slice_would_hold_up_all_owns_none() -> None:
    assert place([4] * 8, [1, 2, 3], {1: 1.0, 2: 0.05, 3: 1.0}) == (1, 1, 1, 1, 3, 3, 3, 3)
    assert place([4] * 8, [1], {1: 1e-6}) == (1,) * 8


@given(sizes_of, crews, st.data())
def test_nothing_is_left_out_and_rates_never_make_it_slower(
    sizes: list[int], crew: list[int], data: st.DataObject
) -> None:
    rates = data.draw(st.dictionaries(st.sampled_from(crew), speeds | st.sampled_from([0.0, float("nan")])))
    owners = place(sizes, crew, rates)
    assert len(owners) == len(sizes) and set(owners) <= set(crew)
    assert in_runs(owners)
    assert place(sizes, crew) == even_shares(sizes, crew)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=7), st.lists(speeds, min_size=1, max_size=3))
def test_no_split_is_better_by_more_than_a_slice_on_one_server(sizes: list[int], speed: list[float]) -> None:
    rates = dict(enumerate(speed))
    splits = (owners for owners in product(rates, repeat=len(sizes)) if list(owners) == sorted(owners))
    best = min(seconds(owners, sizes, rates) for owners in splits)
    found = place(sizes, list(rates), rates)
    slack = max(max(sizes) / rates[owner] for owner in found)
    assert best <= seconds(found, sizes, rates) + 1e-9 <= best + slack + 1e-6


# ------------------------------------------------------------ moves


def test_seconds_are_those_of_the_slowest() -> None:
    assert seconds((1, 1, 2), [10, 10, 30], {1: 10.0, 2: 20.0}) == 2.0
    assert seconds((1, 1, 2), [10, 10, 30], {}) == 30.0
    assert seconds((), [], {}) == 0.0


def test_small_gains_move_nothing() -> None:
    sizes, servers = [MB] * 40, [0, 1, 2, 3]
    current = place(sizes, servers)
    assert replaced(current, sizes, servers, gain=0.15) is None
    assert replaced(current, sizes, servers, {0: 1e9, 1: 1e9, 2: 0.9e9, 3: 1e9}, gain=0.15) is None
    assert replaced(place(sizes, range(20)), sizes, range(21), gain=0.15) is None  # one more of many is a spare


def test_a_slow_server_gives_to_its_neighbours_with_a_reason() -> None:
    sizes, servers = [MB] * 120, list(range(12))
    current = place(sizes, servers)
    change = replaced(current, sizes, servers, {server: 1e8 if server != 5 else 2.5e7 for server in servers}, gain=0.15)
    assert change is not None
    owners, reason = change
    assert reason == (
        "a version should take 0.115 s and not 0.419 s (72% less): "
        "server 5 has 10.5 MB and applies 25 MB in a second (median 100 MB)"
    )
    touched = {server for pair in moved(current, owners) for server in pair}
    assert touched < set(range(2, 10))
    assert held(owners, sizes)[5] < 4 * MB


def test_a_lost_server_is_replaced_by_its_neighbours_not_by_everybody() -> None:
    sizes, servers = [MB] * 500, list(range(50))
    current = place(sizes, servers)
    left = [server for server in servers if server != 20]
    change = replaced(current, sizes, left, gain=0.15)
    assert change is not None
    owners, reason = change
    assert reason == "server 20 is gone, and with it the owner of 10 slices"
    assert in_runs(owners) and 20 not in owners
    assert seconds(owners, sizes, {}) <= seconds(place(sizes, left), sizes, {}) / 0.85
    assert len(moved(current, owners)) * 4 < len(moved(current, place(sizes, left)))


def test_many_servers_that_come_are_worth_a_move() -> None:
    sizes = [MB] * 40
    assert replaced(place(sizes, [0, 1]), sizes, [0, 1, 2, 3], gain=0.15) == (
        place(sizes, [0, 1, 2, 3]),
        "server 0 has 20971520 bytes, 10485760 would do; no rates are measured yet",
    )


def test_all_servers_may_have_changed() -> None:
    change = replaced((0, 0, 1, 1), [4] * 4, [2, 3], gain=0.15)
    assert change is not None and change[0] == (2, 2, 3, 3)


def test_owners_of_somebody_elses_making_are_put_in_order() -> None:
    change = replaced((0, 1, 0, 1, 9), [4] * 5, [0, 1, 2], gain=0.15)
    assert change is not None and in_runs(change[0])


@given(st.lists(st.integers(1, 64), min_size=1, max_size=40), crews, crews, st.data())
def test_a_change_names_only_servers_and_is_then_content(
    sizes: list[int], before: list[int], servers: list[int], data: st.DataObject
) -> None:
    rates = data.draw(st.dictionaries(st.sampled_from(servers), speeds))
    current = place(sizes, before)
    change = replaced(current, sizes, servers, rates, gain=0.15)
    if change is None:
        assert set(current) <= set(servers)
        return
    owners, reason = change
    assert reason and set(owners) <= set(servers) and in_runs(owners)
    assert replaced(owners, sizes, servers, rates, gain=0.15) is None


# ------------------------------------------------------------ bundles


@given(sizes_of, crews, st.integers(1, 20), st.data())
def test_owners_of_bundles_are_owners_of_slices(
    sizes: list[int], crew: list[int], most: int, data: st.DataObject
) -> None:
    bundles = bundled(sizes, most)
    assert len(bundles) <= most and sum(bundles) == sum(sizes)
    owners = place(bundles, crew, {member: data.draw(speeds) for member in crew})
    whole = unbundled([(owner, len(list(run))) for owner, run in groupby(owners)], len(sizes), most)
    assert held(whole, sizes) == held(owners, bundles)


def test_a_few_slices_are_bundles_by_themselves() -> None:
    assert bundled([3, 4, 5]) == [3, 4, 5] and bundled([]) == []
    assert unbundled([(1, 2), (0, 1)], 3) == (1, 1, 0)


def test_slices_without_an_owner_are_refused() -> None:
    with pytest.raises(ValueError, match="2 of 3 slices have an owner"):
        unbundled([(1, 2)], 3)
