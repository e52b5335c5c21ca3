"""The words that say how far a pass is, in relaxed modes: whoever dies while it writes them."""

from __future__ import annotations

import pytest

from holdfast.core.sync.modes import TakenPush
from holdfast.dataplane.relaxed.pushes import P_OP, Pushes, PushRecord, pushes_bytes


def pushes_of(lanes: int = 3) -> Pushes:
    return Pushes(memoryview(bytearray(pushes_bytes(lanes))), lanes)


@pytest.mark.parametrize("version", [7, 8])
def test_a_pass_goes_on_where_another_mode_left_it(version: int) -> None:
    pushes = pushes_of()
    pushes.go_on_from(23)
    assert not pushes.begun(4) and not pushes.over(0) and pushes.committed(lambda: 0) == 23
    pushes.begin(4, 10, version, done=3)
    assert (pushes.base, pushes.resumed) == (20, 3)
    clocks = pushes.clocks(version, 10)
    assert (clocks.pushed, clocks.taken, clocks.applied) == ([3] * 3, [3] * 3, [3] * 3)
    assert pushes.begun(4) and not pushes.over(4) and pushes.over(3)
    assert not pushes.decided(version) and pushes.furthest() == 3
    assert pushes.committed(lambda: 3) == 23
    pushes.push(1, PushRecord(3, version, 5, 0.5, 0.0, 0.0))
    pushes.decide(version, [TakenPush(1, 3)])
    assert pushes.commit_set(version) == [TakenPush(1, 3)] and pushes.newest(version) == 3
    assert pushes.clocks(version + 1, 10).applied == [3, 4, 3]
    pushes.begin(5, 8, version + 1)
    assert (pushes.base, pushes.resumed, pushes.total) == (30, 0, 8)
    assert pushes.clocks(version + 1, 8).applied == [0] * 3


def test_a_pass_that_goes_on_in_rounds() -> None:
    """What was done of it counts as steps, and not as pushes: a push is of a whole round."""
    pushes = pushes_of()
    pushes.go_on_from(23)
    pushes.begin(4, 10, 7, done=3, rounds=True)
    assert (pushes.base, pushes.resumed, pushes.total, pushes.furthest(), pushes.made(7)) == (20, 3, 10, 0, 0)
    for lane in range(3):
        pushes.push(lane, PushRecord(0, 7, 5, 0.5, 0.0, 0.0))
    pushes.decide(7, [TakenPush(lane, 0) for lane in range(3)])
    assert (pushes.made(7), pushes.made(8), pushes.furthest()) == (0, 1, 1)
    told = pushes.told(8)
    mirror = pushes_of()
    assert told is not None
    mirror.mirror(told, ())
    assert (mirror.made(8), mirror.resumed) == (1, 3)


def test_who_dies_while_it_begins_a_pass_leaves_the_one_before_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half-made, the words say neither that the old pass goes on nor that the new one has begun."""
    pushes = pushes_of()
    pushes.begin(0, 6, 0)

    def killed(version: int) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pushes, "_commit_set", killed)
        pushes.begin(1, 9, 6)
    assert pushes.over(0) and not pushes.over(1) and not pushes.begun(1)
    assert pushes.committed(lambda: 99) == 6
    pushes.begin(1, 9, 6)
    assert pushes.begun(1) and (pushes.base, pushes.total) == (6, 9)


def test_how_far_the_run_is_while_a_pass_begins_between_two_looks() -> None:
    pushes, looks = pushes_of(), [0]
    pushes.begin(0, 6, 0)

    def applied() -> int:
        looks[0] += 1
        if looks[0] == 1:
            pushes.begin(1, 9, 6)
            return 6
        return 0

    assert pushes.committed(applied) == 6 and looks == [2]
    assert pushes._words[P_OP] == 2


# ------------------------------------------------------------ shares


def share_of(lanes: int, step: int = 0) -> PushRecord:
    return PushRecord(step, 0, 8 * lanes, 0.5, 0.0, 0.0, lanes)


class Dies:
    """Words whose writer is killed after so many stores."""

    def __init__(self, words: memoryview, stores: int) -> None:
        self._words, self.left = words, stores

    def __getitem__(self, at: int | slice) -> int | memoryview:
        return self._words[at]

    def __setitem__(self, at: int, value: int) -> None:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        self._words[at] = value


def test_a_share_counts_for_all_its_lanes_from_one_store() -> None:
    """Wherever its worker is killed, all lanes have pushed, or none has."""
    seen = set()
    for stores in range(40):
        pushes = pushes_of(5)
        pushes.begin(0, 9, 0)
        words, pushes._words = pushes._words, Dies(pushes._words, stores)  # type: ignore[assignment]
        try:
            pushes.push(1, share_of(3))
        except KeyboardInterrupt:
            seen.add("killed")
        pushes._words = words
        seen.add(tuple(pushes.all_pushed()))
    assert seen == {"killed", (0,) * 5, (0, 1, 1, 1, 0)}


def test_lanes_of_a_share_gave_nothing_themselves() -> None:
    pushes = pushes_of(4)
    pushes.begin(0, 9, 0)
    pushes.push(0, share_of(3))
    assert [pushes.record(lane) for lane in range(3)] == [share_of(3), *[PushRecord(0, 0, 0, 0.0, 0.0, 0.0, 0)] * 2]
    assert (pushes.pushed(2), pushes.pushed(3), pushes.furthest()) == (1, 0, 1)
    told = pushes.told(0)
    assert told is not None and told.pushed == [1, 1, 1, 0]
    pushes.decide(0, [TakenPush(lane, 0) for lane in range(3)])
    assert pushes.commit_set(0) == [TakenPush(lane, 0) for lane in range(3)]


@pytest.mark.parametrize("generation", [True, False])
def test_lanes_of_a_share_keep_their_clocks_when_its_first_lane_pushes_alone(generation: bool) -> None:
    """They have another driver, or the same one and another share."""
    pushes = pushes_of(4)
    pushes.begin(0, 9, 0)
    pushes.push(0, share_of(4))
    pushes.push(0, share_of(4, 1))
    if generation:
        pushes.part()
    pushes.push(0, share_of(1, 2))
    assert pushes.all_pushed() == [3, 2, 2, 2]
    pushes.push(2, share_of(2, 2))
    assert pushes.all_pushed() == [3, 2, 3, 3]
    pushes.part()
    pushes.push(1, share_of(1, 2))
    assert pushes.all_pushed() == [3] * 4
    pushes.begin(1, 9, 0)
    assert pushes.all_pushed() == [0] * 4


def test_who_looks_while_a_share_parts_sees_no_lane_go_back() -> None:
    """Clocks are read one after the other; the first lane pushes for itself alone between any two of these."""
    pushes = pushes_of(3)

    class Slow:
        """Clocks between two of which another worker pushes."""

        def __init__(self, clocks: memoryview, before: int) -> None:
            self._clocks, self._before = clocks, before

        def tolist(self) -> list[int]:
            found = []
            for lane in range(3):
                if lane == self._before:
                    pushes.push(0, share_of(1, 1))
                found.append(self._clocks[lane])
            return found

    clocks = pushes._pushed
    for before in range(3):
        pushes._pushed = clocks
        pushes.begin(0, 9, 0)
        pushes.push(0, share_of(3))
        pushes._pushed = Slow(clocks, before)  # type: ignore[assignment]
        assert pushes.all_pushed()[1:] == [1, 1]
