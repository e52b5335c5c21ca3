"""Which part of a step a commit set takes, and in which modes that may be less than a whole one."""

from __future__ import annotations

import pytest

from holdfast.core.sync.modes import TakenPush, parse
from holdfast.core.sync.staleness import Staleness
from holdfast.core.sync.weights import Given, VersionShare, parted, share_of


def test_pushes_count_by_their_samples_and_less_if_they_are_stale_or_late() -> None:
    pushes = {TakenPush(0, 7): Given(6, 0), TakenPush(1, 7): Given(4, 2), TakenPush(3, 5): Given(0, 2)}
    counts = [6, 4, 6, 4]
    found = share_of(parse("async"), Staleness("scale"), pushes, 7, counts)
    assert found == VersionShare({0: TakenPush(0, 7), 1: TakenPush(1, 7)}, {0: 6.0, 1: 1.0}, frozenset({1}), 0.35), (
        "1.5 steps old"
    )
    found = share_of(parse("quorum:2"), Staleness(), pushes, 8, counts)
    assert found == VersionShare({0: TakenPush(0, 7), 1: TakenPush(1, 7)}, {0: 3.0, 1: 2.0}, frozenset({1}), 0.25)


@pytest.mark.parametrize("lanes", [2, 4, 32, 1000])
def test_how_much_a_stale_push_counts_does_not_hang_on_the_number_of_lanes(lanes: int) -> None:
    """One worker for each lane, all alike, without waiting: while one computes, every other one has a version made."""
    one = share_of(parse("async"), Staleness("scale"), {TakenPush(0, 7): Given(8, lanes - 1)}, 7, [8] * lanes)
    assert 1 / 3 < one.load[0] / 8 <= 1 / 2
    assert one.part == one.load[0] / (8 * lanes)


def test_a_commit_set_of_all_lanes_is_a_whole_step_to_the_last_bit() -> None:
    pushes = {TakenPush(lane, 3): Given(7, lane) for lane in range(3)}
    assert share_of(parse("bounded:2"), Staleness(), pushes, 3, [7] * 3).part == 1.0
    assert share_of(parse("local:4"), Staleness(), pushes, 3, [7] * 8).part == 1.0, "a round is one, whatever its steps"
    assert share_of(parse("async"), Staleness(), {TakenPush(0, 3): Given(0, 0)}, 3, [0, 7]).part == 1.0, (
        "nothing to scale"
    )


@pytest.mark.parametrize(
    ("mode", "lanes", "found"),
    [
        ("exact", 4, ""),
        ("bounded:0", 4, ""),
        ("bounded:2", 4, "any lane makes a version, with a part of a step"),
        ("bounded:2", 1, ""),
        ("async", 4, "any lane makes a version, with a part of a step"),
        ("async", 1, ""),
        ("quorum:3", 4, "any 3 of 4 lanes make a version, with a part of a step"),
        ("quorum:4", 4, ""),
        ("local:4", 4, ""),
    ],
)
def test_modes_that_take_parts_of_a_step(mode: str, lanes: int, found: str) -> None:
    assert parted(parse(mode), lanes) == found
