"""The rule of the clocks: what each mode allows, by example, and what holds in every order of events."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.core.shares import Share
from holdfast.core.sync.modes import (
    EXACT,
    Clocks,
    HeldBack,
    Mode,
    Reason,
    TakenPush,
    advised,
    commit_set,
    held_back,
    next_lane,
    next_share,
    parse,
    weights,
    why,
)

FORMS = "unknown; there is exact, bounded:S, async, quorum:K, local:H."


# ------------------------------------------------------------ names


@pytest.mark.parametrize(
    ("text", "mode", "exact"),
    [
        ("exact", Mode("exact"), True),
        ("bounded:0", Mode("bounded:0"), False),
        ("bounded:4", Mode("bounded:4", quorum=1, bound=4), False),
        ("bounded:64", Mode("bounded:64", quorum=1, bound=64), False),
        ("async", Mode("async", quorum=1, bound=None), False),
        ("quorum:1", Mode("quorum:1", quorum=1, bound=8), False),
        ("quorum:3", Mode("quorum:3", quorum=3, bound=8), False),
        ("local:1", Mode("local:1"), False),
        ("local:100000", Mode("local:100000", inner=100_000), False),
    ],
)
def test_modes_by_name(text: str, mode: Mode, exact: bool) -> None:
    assert parse(text) == parse(text, lanes=3) == mode
    assert mode.exact == exact


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", FORMS),
        ("often", FORMS),
        ("asynch", f"{FORMS} Did you mean async?"),
        ("asynch:3", f"{FORMS} Did you mean async?"),
        ("bouned:4", f"{FORMS} Did you mean bounded:4?"),
        ("Local:4", f"{FORMS} Did you mean local:4?"),
        ("exact:1", "exact takes no number"),
        ("async:", "async takes no number"),
        ("bounded", "bounded:S needs a whole number for S, not ''"),
        ("quorum:half", "quorum:K needs a whole number for K, not 'half'"),
        ("local:2.5", "local:H needs a whole number for H, not '2.5'"),
        ("bounded:4:5", "bounded:S needs a whole number for S, not '4:5'"),
        ("bounded: 4", "bounded:S needs a whole number for S, not ' 4'"),
        ("bounded:+4", "bounded:S needs a whole number for S, not '+4'"),
        ("bounded:1_0", "bounded:S needs a whole number for S, not '1_0'"),
        ("bounded:\u0664", "bounded:S needs a whole number for S, not '\u0664'"),
        ("bounded:-1", "a lane cannot be -1 steps ahead: S is 0 to 64"),
        ("bounded:65", "a lane cannot be 65 steps ahead: S is 0 to 64"),
        ("quorum:5", "a quorum of 5 cannot come together: K is 1 to 4, the number of lanes"),
        ("quorum:0", "a quorum of 0 cannot come together: K is 1 to 4, the number of lanes"),
        ("local:0", "0 steps cannot lie between two exchanges: H is 1 to 100000"),
        ("local:100001", "100001 steps cannot lie between two exchanges: H is 1 to 100000"),
    ],
)
def test_what_is_no_mode_is_refused_with_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        parse(text, lanes=4)


@pytest.mark.parametrize(
    ("text", "lanes", "instead"),
    [
        ("quorum:9", 4, "quorum:4"), ("quorum:0", 4, "quorum:1"), ("quorum", 1, "quorum:1"),
        ("quorum:half", 8, "quorum:7"), ("quorum", None, "quorum:3"), ("bounded", 4, "bounded:4"),
        ("bounded:99", 4, "bounded:64"),
        ("local:0", 4, "local:1"), ("exact:1", 4, "exact"), ("asinc", 4, "async"), ("", 4, "exact"),
    ],
)  # fmt: skip
def test_what_is_refused_is_answered_with_a_mode_that_is_not(text: str, lanes: int | None, instead: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text, lanes)
    assert advised(text, lanes) == instead == parse(instead, lanes).name


def test_a_quorum_has_no_upper_end_while_the_lanes_are_not_known() -> None:
    assert parse("quorum:1000").quorum == 1000
    with pytest.raises(ValueError, match=r"^a quorum of 0 cannot come together: K is 1 or more$"):
        parse("quorum:0")


# ------------------------------------------------------------ who may begin


def test_exact_waits_for_the_version_and_names_the_lanes_that_are_missing() -> None:
    ahead = HeldBack((1,), Reason.AHEAD, lane=0, ahead=1, most=0)
    assert held_back(EXACT, Clocks(5, (0, 0, 0), (0, 0, 0), (0, 0, 0)), 0) is None
    assert held_back(EXACT, Clocks(5, (1, 0, 1), (0, 0, 0), (0, 0, 0)), 0) == ahead
    taken = held_back(EXACT, Clocks(5, (1, 1, 1), (1, 1, 1), (0, 0, 0)), 0)
    assert taken == ahead._replace(lanes=()), "taken is not applied"
    assert held_back(EXACT, Clocks(5, (1, 1, 1), (1, 1, 1), (1, 1, 1)), 0) is None


def test_bounded_allows_so_many_steps_and_no_more() -> None:
    mode = parse("bounded:2")
    for pushed, free in ((0, True), (1, True), (2, True), (3, False)):
        assert (held_back(mode, Clocks(9, (pushed, 0), (pushed, 0), (pushed, 0)), 0) is None) == free


def test_a_quorum_names_the_lanes_that_are_too_far_behind() -> None:
    clocks = Clocks(20, (12, 3, 3, 12), (12, 3, 3, 12), (12, 3, 3, 12))
    assert held_back(parse("quorum:2"), clocks, 0) == HeldBack((1, 2), Reason.AHEAD, lane=0, ahead=9, most=8)
    assert held_back(parse("quorum:2"), clocks, 1) is None


def test_a_lane_runs_ahead_with_its_own_push_applied() -> None:
    full = HeldBack((), Reason.FULL, lane=0)
    mode, late = parse("bounded:2"), Clocks(9, (1, 0), (0, 0), (0, 0))
    assert commit_set(mode, late) == (TakenPush(0, 0),), "it does not wait for the lane that is late"
    assert held_back(mode, late, 0) == full
    assert held_back(mode, late._replace(taken=(1, 0)), 0) == full, "taken is not applied"
    assert held_back(mode, late._replace(taken=(1, 0), applied=(1, 0)), 0) is None


def test_a_lane_without_room_waits_whatever_the_others_do() -> None:
    full = HeldBack((), Reason.FULL, lane=1)
    for mode in (parse("async"), parse("quorum:2"), parse("bounded:4")):
        assert held_back(mode, Clocks(9, (2, 4, 2), (2, 4, 2), (2, 3, 2)), 1) == full
        assert held_back(mode, Clocks(9, (2, 4, 2), (2, 4, 2), (2, 4, 2)), 1) is None


@pytest.mark.parametrize(
    ("held", "sentence"),
    [
        (HeldBack((3, 5), Reason.AHEAD, 0, 2, 1), "lane 0 is 2 pushes ahead of lane 3, and 1 is allowed"),
        (HeldBack((0,), Reason.AHEAD, 233, 1, 0), "lane 233 is 1 push ahead of lane 0, and 0 are allowed"),
        (HeldBack((233,), Reason.AHEAD, 0, 9, 8), "lane 0 is 9 pushes ahead of lane 233, and 8 are allowed"),
        (HeldBack((), Reason.AHEAD, 2, 65, 64), "lane 2 is 65 pushes ahead of what was applied, and 64 are allowed"),
        (HeldBack((), Reason.FULL, 1), "lane 1 waits for its own last push: it is not applied yet"),
    ],
)
def test_a_reason_fits_into_one_word_and_is_told_in_a_sentence(held: HeldBack, sentence: str) -> None:
    assert 0 < held.word < 1 << 63
    assert why(held.word) == sentence


def test_without_a_reason_there_is_nothing_to_tell() -> None:
    assert why(0) == ""


def test_async_waits_for_nobody() -> None:
    assert held_back(parse("async"), Clocks(10**6, (10**5, 0), (10**5, 0), (10**5, 0)), 0) is None


def test_a_lane_that_has_pushed_all_is_not_held() -> None:
    assert held_back(EXACT, Clocks(3, (3, 2), (2, 2), (2, 2)), 0) is None


def test_the_next_lane_is_the_one_that_is_furthest_behind() -> None:
    mode, clocks = parse("bounded:4"), Clocks(9, *[(3, 1, 2, 1)] * 3)
    assert next_lane(mode, clocks, (0, 1, 2, 3)) == 1
    assert next_lane(mode, clocks, (3, 2)) == 3
    assert next_lane(mode, clocks, (0,)) == 0


def test_a_lane_that_is_held_does_not_hold_the_others_of_its_driver() -> None:
    clocks = Clocks(9, (1, 7), (0, 7), (0, 7))
    assert next_lane(parse("async"), clocks, (0, 1)) == 1
    assert next_lane(parse("async"), clocks, (0,)) == held_back(parse("async"), clocks, 0)
    assert isinstance(next_lane(parse("async"), clocks, (0,)), HeldBack)


def test_no_lane_is_next_when_all_have_pushed_all() -> None:
    assert next_lane(EXACT, Clocks(2, (2, 2, 1), (1, 1, 1), (1, 1, 1)), (0, 1)) is None
    assert next_lane(EXACT, Clocks(2, (2, 2, 1), (1, 1, 1), (1, 1, 1)), ()) is None


# ------------------------------------------------------------ shares


@pytest.mark.parametrize("mode", ["bounded:0", "bounded:4", "async", "quorum:3"])
def test_lanes_of_a_worker_that_stand_at_the_same_step_go_on_together(mode: str) -> None:
    assert next_share(parse(mode), Clocks(9, *[(2,) * 4] * 3), (0, 1, 2)) == Share(0, 3)
    assert next_share(parse(mode), Clocks(9, *[(2,) * 4] * 3), (3,)) == Share(3, 4)
    assert next_share(parse(mode), Clocks(2, *[(2,) * 4] * 3), (0, 1, 2)) is None, "all have pushed all"


def test_the_next_share_begins_with_the_lane_that_is_furthest_behind() -> None:
    mode, clocks = parse("bounded:4"), Clocks(9, *[(3, 3, 2, 2, 3, 2)] * 3)
    assert next_share(mode, clocks, range(6)) == Share(2, 4)
    assert next_share(mode, clocks, (0, 1, 2)) == Share(2, 3)
    assert next_share(mode, clocks, (0, 1)) == Share(0, 2)


@pytest.mark.parametrize("late", [0, 2])
def test_a_share_waits_for_a_lane_whose_last_push_is_on_its_way_where_any_push_makes_a_version(late: int) -> None:
    applied = [2 - (lane == late) for lane in range(3)]
    clocks = Clocks(9, (2, 2, 2), applied, applied)
    for name in ("async", "bounded:4", "quorum:1"):
        assert next_share(parse(name), clocks, (0, 1, 2)) == HeldBack((), Reason.FULL, late), "soon all three go on"
    assert next_share(parse("quorum:2"), clocks, (0, 1, 2)) == (Share(1, 3) if late == 0 else Share(0, 2))
    assert next_share(parse("async"), clocks, tuple({0, 1, 2} - {late})) == (Share(1, 3) if late == 0 else Share(0, 2))


def test_a_share_is_held_back_like_its_lanes() -> None:
    clocks = Clocks(9, (3, 3, 1), (3, 3, 1), (3, 3, 1))
    assert next_share(parse("bounded:1"), clocks, (0, 1)) == HeldBack((2,), Reason.AHEAD, 0, 2, 1)


# ------------------------------------------------------------ commit sets


def test_a_commit_set_waits_for_all_lanes_or_for_the_quorum() -> None:
    clocks = Clocks(9, (1, 0, 1), (0, 0, 0), (0, 0, 0))
    assert commit_set(EXACT, clocks) is None
    assert commit_set(parse("bounded:0"), clocks) is None
    assert commit_set(parse("quorum:3"), clocks) is None
    for mode in (parse("quorum:2"), parse("quorum:1"), parse("async"), parse("bounded:3")):
        assert commit_set(mode, clocks) == (TakenPush(0, 0), TakenPush(2, 0))
    assert commit_set(EXACT, clocks._replace(pushed=(1, 1, 1))) == (TakenPush(0, 0), TakenPush(1, 0), TakenPush(2, 0))


def test_a_commit_set_takes_the_oldest_push_of_each_lane() -> None:
    clocks = Clocks(9, (6, 3, 4), (4, 2, 4), (4, 2, 3))
    assert commit_set(parse("quorum:2"), clocks) == (TakenPush(0, 4), TakenPush(1, 2))


@pytest.mark.parametrize("text", ["exact", "bounded:2", "async", "quorum:3", "local:5"])
def test_there_is_no_commit_set_of_nothing(text: str) -> None:
    assert commit_set(parse(text), Clocks(9, (2, 2, 2), (2, 2, 2), (2, 2, 2))) is None
    assert commit_set(parse(text), Clocks(2, (2, 2, 2), (2, 2, 2), (2, 2, 2))) is None
    assert commit_set(parse(text), Clocks(0, (0, 0, 0), (0, 0, 0), (0, 0, 0))) is None


def test_the_last_commit_set_is_made_though_fewer_lanes_than_the_quorum_are_left() -> None:
    left = Clocks(5, (5, 5, 5), (5, 4, 5), (5, 4, 5))
    assert commit_set(parse("quorum:3"), left) == commit_set(EXACT, left) == (TakenPush(1, 4),)
    assert commit_set(parse("quorum:3"), Clocks(5, (5, 4, 5), (5, 3, 4), (5, 3, 4))) == (
        TakenPush(1, 3),
        TakenPush(2, 4),
    )


def test_a_quorum_does_not_wait_for_lanes_that_wait_for_it() -> None:
    """Lanes 0 and 1 are as far ahead as they may be, lane 2 has pushed all it has room for: that is the commit set."""
    clocks = Clocks(20, (9, 9, 1), (9, 9, 0), (9, 9, 0))
    assert all(held_back(parse("quorum:2"), clocks, lane) for lane in range(3))
    assert commit_set(parse("quorum:2"), clocks) == (TakenPush(2, 0),)


def test_a_quorum_waits_for_lanes_that_may_still_push() -> None:
    assert commit_set(parse("quorum:2"), Clocks(20, (8, 9, 1), (8, 9, 0), (8, 9, 0))) is None  # lane 0 has one more


def test_late_pushes_count_less_with_a_quorum_only() -> None:
    taken = [TakenPush(0, 7), TakenPush(1, 6), TakenPush(2, 4)]
    assert weights(parse("quorum:2"), taken, newest=7) == (1.0, 0.5, 0.25)
    for text in ("exact", "bounded:4", "async", "local:3"):
        assert weights(parse(text), taken, newest=7) == (1.0, 1.0, 1.0)


def test_late_pushes_count_less_also_where_they_are_among_themselves() -> None:
    assert weights(parse("quorum:2"), [TakenPush(2, 0), TakenPush(3, 0)], newest=8) == (1 / 9, 1 / 9)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20), st.integers(0, 9))
def test_weights_fall_with_lateness(steps: list[int], before: int) -> None:
    found = weights(parse("quorum:1"), [TakenPush(lane, step) for lane, step in enumerate(steps)], max(steps) + before)
    assert all(0.0 < weight <= 1.0 for weight in found)
    assert max(found) == 1 / (1 + before)
    assert sorted(found) == [weight for _, weight in sorted(zip(steps, found, strict=True))]


# ------------------------------------------------------------ every order of events


class Play:
    """A pass in one random order: lanes begin and push, commit sets are made, and applied some time later."""

    def __init__(self, mode: Mode, steps: int, speeds: list[float], rng: random.Random) -> None:
        self.mode, self.steps, self.speeds, self.rng = mode, steps, speeds, rng
        self.lanes = range(len(speeds))
        self.pushed, self.taken, self.applied = ([0] * len(speeds) for _ in range(3))
        self.busy: set[int] = set()
        self.commit_sets: list[tuple[TakenPush, ...]] = []
        self.waiting: list[tuple[TakenPush, ...]] = []  #: made, not applied yet

    @property
    def clocks(self) -> Clocks:
        return Clocks(self.steps, tuple(self.pushed), tuple(self.taken), tuple(self.applied))

    def run(self) -> Play:
        while min(self.applied) < self.steps:
            moves = self.moves()
            assert moves, f"nobody can move: {[held_back(self.mode, self.clocks, lane) for lane in self.lanes]}"
            self.rng.choices([move for _, move in moves], [speed for speed, _ in moves])[0]()
        return self

    def moves(self) -> list[tuple[float, Callable[[], None]]]:
        """All that can happen now, with how likely it is to be next."""
        clocks = self.clocks
        found: list[tuple[float, Callable[[], None]]] = []
        for lane, speed in zip(self.lanes, self.speeds, strict=True):
            if lane in self.busy:
                found.append((speed, partial(self.push, lane)))
            elif clocks.pushed[lane] < self.steps and held_back(self.mode, clocks, lane) is None:
                found.append((speed, partial(self.begin, lane)))
        if (made := commit_set(self.mode, clocks)) is not None:
            found.append((1.0, partial(self.take, made)))
        if self.waiting:
            found.append((1.0, self.apply))
        return found

    def begin(self, lane: int) -> None:
        step = self.pushed[lane]
        assert step == self.applied[lane]
        if self.mode.bound is not None:
            assert step - min(self.applied) <= self.mode.bound
        assert next_lane(self.mode, self.clocks, [lane]) == lane
        self.busy.add(lane)

    def push(self, lane: int) -> None:
        self.busy.remove(lane)
        self.pushed[lane] += 1
        assert self.pushed[lane] - self.applied[lane] == 1

    def take(self, made: tuple[TakenPush, ...]) -> None:
        seen_by_others = self.clocks._replace(applied=tuple(self.taken))
        assert commit_set(self.mode, seen_by_others) == made  # whatever of it somebody has seen published
        assert [push.lane for push in made] == sorted({push.lane for push in made})
        for lane, step in made:
            assert step == self.taken[lane] < self.pushed[lane]
        if len(made) < (len(self.lanes) if self.mode.quorum is None else self.mode.quorum):
            others = set(self.lanes) - {push.lane for push in made}
            for lane in others:  # nobody else could have joined it
                assert self.taken[lane] == self.steps or held_back(self.mode, seen_by_others, lane) is not None
        for lane, _ in made:
            self.taken[lane] += 1
        self.commit_sets.append(made)
        self.waiting.append(made)

    def apply(self) -> None:
        for lane, step in self.waiting.pop(0):
            assert self.applied[lane] == step
            self.applied[lane] += 1


names = (
    st.sampled_from(["exact", "bounded:0", "async", "local:3"])
    | st.builds("bounded:{}".format, st.integers(1, 5))
    | st.builds("quorum:{}".format, st.integers(1, 6))
)
paces = st.lists(st.sampled_from([0.001, 0.1, 1.0, 10.0]), min_size=1, max_size=6)


@given(names, st.integers(0, 14), paces, st.integers())
@example("quorum:2", 14, [10.0, 10.0, 0.001], 0)
@example("quorum:4", 14, [10.0, 10.0, 10.0, 0.001, 0.001], 0)
def test_every_push_is_taken_once_in_order_and_nobody_waits_for_ever(
    text: str, steps: int, speeds: list[float], seed: int
) -> None:
    play = Play(parse(text), steps, speeds, random.Random(seed)).run()
    for lane in play.lanes:
        assert [push.step for made in play.commit_sets for push in made if push.lane == lane] == list(range(steps))


@given(st.sampled_from(["exact", "bounded:0", "local:3"]), st.integers(0, 10), paces, st.integers())
def test_where_all_lanes_must_be_there_a_commit_set_is_a_step(
    text: str, steps: int, speeds: list[float], seed: int
) -> None:
    play = Play(parse(text), steps, speeds, random.Random(seed)).run()
    assert play.commit_sets == [tuple(TakenPush(lane, step) for lane in play.lanes) for step in range(steps)]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5), st.data())
def test_in_async_a_lane_is_held_by_its_own_pushes_only(clocks: list[tuple[int, int]], data: st.DataObject) -> None:
    applied, pushed = zip(*(sorted(pair) for pair in clocks), strict=True)
    lane = data.draw(st.sampled_from(range(len(clocks))))
    held = held_back(parse("async"), Clocks(10, pushed, applied, applied), lane)
    assert (held is not None) == (pushed[lane] > applied[lane])
