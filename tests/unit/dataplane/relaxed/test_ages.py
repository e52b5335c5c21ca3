"""How stale pushes were: counted once each, and true beyond the last count."""

from __future__ import annotations

from holdfast.dataplane.memory.board import Board, ModeRecord, board_bytes
from holdfast.dataplane.memory.board_snapshot import read_plan
from holdfast.dataplane.relaxed import ages
from holdfast.dataplane.relaxed.ages import BUCKETS, Ages


def board() -> Board:
    made = Board(memoryview(bytearray(board_bytes(4, 6, 3))), 4, 6, 3)
    made.format()
    return made


def test_the_oldest_and_the_mean_are_true_where_the_counts_end() -> None:
    """`bounded:64` is a mode, and in `async` a push may be older than there are counts."""
    one = board()
    assert ages.read(one.words) == Ages() and Ages().facts() == {}
    ages.count(one.words, 70, [70, 69, 38, 6])
    found = ages.read(one.words)
    assert found == Ages((1, 1, *[0] * (BUCKETS - 3), 2), 0 + 1 + 32 + 64, 64)
    assert found.facts() == {"staleness": list(found.counts), "staleness_mean": 24.25, "staleness_most": 64}
    assert read_plan(one.words).ages == found, "from outside, too"


def test_a_version_that_is_made_again_is_counted_once() -> None:
    """Its owner may be killed after it has counted, and before the version is out."""
    one = board()
    for version, versions in ((4, [3, 4]), (4, [3, 4]), (5, [4])):
        ages.count(one.words, version, versions)
    assert ages.read(one.words) == Ages((1, 2), 2, 1)


def test_how_lanes_keep_step_lies_beside_it() -> None:
    one, pace = board(), ModeRecord(2, "bounded:64", 1, 2, 3, 4)
    ages.count(one.words, 1, [0])
    one.put_pace(pace._replace(serial=1, sync="quorum:1234567"))
    one.put_pace(pace)
    assert (one.pace(), ages.read(one.words)) == (pace, Ages((0, 1), 1, 1))
    assert (one.work(0), one.level()) == (None, 0)


def test_ages_of_several_hosts() -> None:
    assert Ages().plus(Ages((1,), 0, 0)) == Ages((1,), 0, 0)
    assert Ages((1, 2, 1), 4, 2).plus(Ages((1, 1), 1, 1)) == Ages((2, 3, 1), 5, 2)
