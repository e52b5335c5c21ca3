"""Shares of a plain loop's steps: each sample is used in one committed step, or is left over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.lanes import assign
from holdfast.core.shares import LostPart, Share, left_over, runs, shares

LANES = 8
crews = st.lists(st.integers(0, 20), min_size=1, max_size=LANES, unique=True)


@st.composite
def drivers(draw: st.DrawFn, num_lanes: int = LANES) -> list[int]:
    """Lane -> worker, as lanes are shared out."""
    crew = draw(crews)
    return list(assign(num_lanes, crew, draw(st.dictionaries(st.sampled_from(crew), st.floats(0.001, 10.0)))))


def parts_of(loader: int, order: int, turns: Sequence[int]) -> list[LostPart]:
    return [LostPart(loader, order, at, lane) for at in turns for lane in range(LANES)]


@given(drivers())
def test_runs_tile_the_lanes_and_each_worker_has_one(driver: list[int]) -> None:
    found = runs(driver)
    assert [lane for _, first, last in found for lane in range(first, last)] == list(range(LANES))
    assert all(driver[lane] == worker for worker, first, last in found for lane in range(first, last))
    assert len({worker for worker, _, _ in found}) == len(found)


@given(drivers(), st.integers(0, 100))
def test_shares_cover_lanes_and_backlog_once(driver: list[int], backlog: int) -> None:
    found = shares(driver, backlog)
    assert found.keys() == set(driver)
    ordered = sorted(found.values())
    assert [lane for share in ordered for lane in range(share.first, share.last)] == list(range(LANES))
    assert [index for share in ordered for index in range(share.begin, share.end)] == list(range(backlog))
    sizes = [share.end - share.begin for share in ordered]
    assert max(sizes) - min(sizes) <= 1, "whoever has few lanes makes up for as much as the others"


@given(drivers(), st.data())
def test_what_is_left_over_is_what_is_in_no_share_that_came(driver: list[int], data: st.DataObject) -> None:
    known = parts_of(0, 0, [3, 4]) + parts_of(1, 0, [3, 4])
    backlog = data.draw(st.lists(st.sampled_from(known), max_size=20, unique=True))
    mine = [part for part in backlog if part.loader == 0]
    plan = shares(driver, len(mine))
    came = [plan[worker] for worker in data.draw(st.sets(st.sampled_from(sorted(plan)), min_size=1))]
    whole = parts_of(0, 0, data.draw(st.sampled_from([[5], [5, 6], [5, 6, 7]])))
    left = left_over(came, backlog, whole, 0)
    gone = [part for share in came for part in mine[share.begin : share.end]]
    gone += [part for share in came for part in whole if share.first <= part.lane < share.last]
    assert Counter(left) + Counter(gone) == Counter(backlog + whole)
    assert [part for part in left if part.loader == 1] == [part for part in backlog if part.loader == 1], (
        "in their order"
    )
    older = [part for part in left if part in mine]
    assert older == [part for part in mine if part in older], "the oldest first"


def test_all_shares_leave_nothing_and_none_leaves_all() -> None:
    backlog, whole = parts_of(0, 0, [3])[:3], parts_of(0, 0, [4])
    assert left_over(shares([1, 1, 2, 2, 2, 5, 5, 5], 3).values(), backlog, whole, 0) == ()
    assert left_over([], backlog, whole, 0) == (*backlog, *whole)
    assert left_over([Share(2, 2)], backlog, whole, 0) == (*backlog, *whole), "an empty one brings nothing"


@given(st.data())
def test_over_any_losses_each_part_is_used_once_or_is_left_over(data: st.DataObject) -> None:
    """Passes over two loaders by crews that change, in steps of one or several turns."""
    used: Counter[LostPart] = Counter()
    backlog: tuple[LostPart, ...] = ()
    every: list[LostPart] = []
    for order in range(data.draw(st.integers(1, 3), label="passes")):
        loader, at = data.draw(st.integers(0, 1), label="loader"), 0
        while at < 6:
            turns = list(range(at, min(6, at + data.draw(st.integers(1, 2), label="turns"))))
            whole, at = parts_of(loader, order, turns), turns[-1] + 1
            every += whole
            mine = [part for part in backlog if part.loader == loader]
            plan = shares(data.draw(drivers(), label="drivers"), len(mine))
            came = [plan[worker] for worker in data.draw(st.sets(st.sampled_from(sorted(plan)), min_size=1))]
            for share in came:
                used.update(mine[share.begin : share.end])
                used.update(part for part in whole if share.first <= part.lane < share.last)
            backlog = left_over(came, backlog, whole, loader)
    assert used + Counter(backlog) == Counter(every)
    assert not set(used) & set(backlog)


@given(drivers())
def test_what_was_lost_is_made_up_for_in_the_next_step_that_is_whole(driver: list[int]) -> None:
    lost = left_over([Share(0, 1)], [], parts_of(0, 0, [0]), 0)
    assert len(lost) == LANES - 1
    assert left_over(shares(driver, len(lost)).values(), lost, parts_of(0, 0, [1]), 0) == ()
