"""Simple values around a loop: which are left for late workers, and what a late worker finds missing."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.errors import NotKept
from holdfast.train.loop.variables.differences import ALIKE, ANEW, APART, NEW, OWN, Left, Table
from holdfast.train.loop.variables.late_variables import LateVariables, LoopVariables, is_clock

SOURCE = "holdfast.train.loop.variables.late_variables.values_around"


def left(**values: str | Left) -> dict[str, Left]:
    return {name: value if isinstance(value, Left) else Left(value) for name, value in values.items()}


class Told:
    """What workers have left, step by step."""

    def __init__(self, **steps: list[dict[str, Left]]) -> None:
        self.told: dict[int, list[Table]] = {int(step.lstrip("_")): [*several] for step, several in steps.items()}

    def variables(self) -> dict[int, list[Table]]:
        return self.told

    def of_others(self, step: int) -> list[Table]:
        return self.told.get(step, [])


def look(late: LateVariables, monkeypatch: pytest.MonkeyPatch, step: int, /, **values: Any) -> dict[str, Left]:
    """A turn of a loop by steps begins with these values."""
    monkeypatch.setattr(SOURCE, lambda frame: values)
    return late.look(step)


def units(late: LateVariables, monkeypatch: pytest.MonkeyPatch, before: dict[str, Any], after: dict[str, Any]) -> None:
    """The script goes through the units of a turn."""
    late.__dict__["_now"] = lambda: before
    late.begin_units()
    late.__dict__["_now"] = lambda: after
    late.end_units()


def quietly(act: Callable[[], Any]) -> Any:
    """What it gives, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return act()


# ---------------------------------------------------------------- what is left


def test_what_changes_is_left_and_what_a_clock_shows_is_not() -> None:
    variables = LoopVariables()
    first = {"best": 9.0, "lr": 0.1, "name": "a", "flag": False, "now": time.time()}
    assert variables.look(first) == {}
    later = {**first, "best": 0.5, "flag": True, "now": time.time() + 1, "i": 3}
    assert variables.look(later) == left(best="0.5", flag="True")
    assert variables.look({**later, "i": 4}) == left(best="0.5", flag="True", i="4")


@pytest.mark.parametrize("clock", [time.time, time.monotonic, time.perf_counter, time.time_ns, time.perf_counter_ns])
def test_readings_of_clocks_are_known_by_what_these_show(clock: Any) -> None:
    assert is_clock(clock())
    assert not is_clock(0.37) and not is_clock(12) and not is_clock(int(time.monotonic()))


def test_a_long_text_is_told_by_its_hash() -> None:
    variables = LoopVariables()
    variables.look({"text": "a"})
    (one,) = variables.look({"text": "b" * 100}).values()
    (other,) = variables.look({"text": "b" * 99 + "c"}).values()
    assert one.value != other.value and len(one.value) == len(other.value) < 50


def test_more_than_are_left_is_said_once() -> None:
    variables = LoopVariables()
    variables.look({f"v{number}": 0 for number in range(70)})
    with pytest.warns(UserWarning, match=r"more than 64 simple values .* comes late lacks v64, v65, v66 or"):
        found = variables.look({f"v{number}": 1 for number in range(70)})
    assert len(found) == 64
    assert quietly(lambda: len(variables.look({f"v{number}": 2 for number in range(70)}))) == 64


def test_what_begins_anew_in_each_loop_is_each_ones_own() -> None:
    variables = LoopVariables()
    for loop in range(3):
        for turn in range(3):
            found = variables.look({"seen": 12 * turn, "steps": 3 * loop + turn, "best": -loop}, loop)
        assert found["seen"] == Left("24", ANEW if loop else 0)
        assert found["steps"] == Left(str(3 * loop + 2))
    assert found["best"] == Left("-2")


def test_what_was_not_there_when_a_loop_began_does_not_begin_anew() -> None:
    variables = LoopVariables()
    for loop in range(3):
        for turn in range(3):
            found = variables.look({"i": turn - 1} if turn else {}, loop)
    assert found == left(i="1")


def test_what_begins_anew_is_said_on_entry_and_named_if_a_turn_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    late = LateVariables(Told(_7=[left(seen=Left("84", ANEW))]), late=True)
    with pytest.warns(UserWarning, match="seen = 0 where the others' scripts have 84: what changes with the units"):
        look(late, monkeypatch, 7, seen=0)
    late._settings.variables()[8] = [left(i=Left("8", ANEW))]
    with pytest.raises(NotKept, match=r"late to step 8 has i = 0 where the others' scripts have 8"):
        look(late, monkeypatch, 8, seen=12, i=0)


def test_what_grows_by_the_samples_of_a_share_is_the_workers_own() -> None:
    variables = LoopVariables()
    variables.look({"seen": 0, "turns": 0}, 1)
    variables.look({"seen": 12, "turns": 1}, 1, 12)
    assert variables.look({"seen": 24, "turns": 2}, 1, 12) == {"seen": Left("24", OWN), "turns": Left("2")}


# ---------------------------------------------------------------- what workers learn of each other


def test_what_two_had_alike_and_what_came_apart_is_left_with_its_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    one = LateVariables(told, late=False)
    look(one, monkeypatch, 0, best=9.0, speed=0.0, turns=0)
    told.told[1] = [left(best="0.5", speed="1.25", turns="1")]
    assert look(one, monkeypatch, 1, best=0.5, speed=1.5, turns=1) == left(best="0.5", speed="1.5", turns="1")
    expected = left(best=Left("0.4", ALIKE), speed=Left("", APART), turns=Left("2", ALIKE))
    assert look(one, monkeypatch, 2, best=0.4, speed=1.5, turns=2) == expected


def test_what_changes_in_one_worker_alone_comes_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(_1=[left(saved="1")], _2=[left(saved="2")])
    other = LateVariables(told, late=False)
    found = [look(other, monkeypatch, step, saved=0) for step in range(4)]
    assert found == [{}, {}, left(saved="0"), left(saved=Left("", APART))]


def test_an_object_of_which_a_part_comes_apart_is_each_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(_1=[{"losses.sum": Left("3.5"), "losses.count": Left("12"), "self.speed": Left("1.5")}])
    one, later = LateVariables(told, late=False), {"losses.sum": 2.5, "losses.count": 12, "self.speed": 2.5}
    look(one, monkeypatch, 0, **{**later, "losses.sum": 0.0, "losses.count": 0, "self.speed": 0.0, "self.best": 9.0})
    look(one, monkeypatch, 1, **later, **{"self.best": 0.5})
    found = look(one, monkeypatch, 2, **later, **{"self.best": 0.5})
    assert found["losses.count"] == Left("12", ALIKE | OWN)
    assert found["self.speed"] == Left("", APART) and found["self.best"] == Left("0.5")


def test_nobody_learns_from_who_has_just_come_late(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(_1=[left(best=Left("inf", NEW))])
    one = LateVariables(told, late=False)
    for step in range(3):
        found = look(one, monkeypatch, step, best=9.0 - step)
    assert found == left(best="7.0")


def test_what_changes_with_the_units_is_each_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    one = LateVariables(Told(), late=False)
    look(one, monkeypatch, 0, turns=0, correct=0)
    units(one, monkeypatch, {"turns": 0, "correct": 0}, {"turns": 0, "correct": 7, "lane": 2})
    look(one, monkeypatch, 1, turns=1, correct=7, lane=2)
    found = look(one, monkeypatch, 2, turns=2, correct=9, lane=3)
    assert found == left(turns="2", correct=Left("9", OWN), lane=Left("3", OWN))


def test_the_loop_over_the_units_may_be_in_a_function() -> None:
    one = LateVariables(Told(), late=False)

    def inner() -> int:
        nonlocal seen
        one.begin_units()
        seen += 3
        one.end_units()
        return seen

    seen = 0
    one.look(0)
    inner()
    assert one._variables.own == {"seen"}


# ---------------------------------------------------------------- late workers


def test_what_differs_where_a_late_worker_enters_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    late = LateVariables(Told(_7=[left(best="0.5", t="1"), left(best="0.5", t="2")]), late=True)
    with pytest.raises(NotKept, match=r"late to step 7 has best = 9\.0 where the others' scripts have 0\.5"):
        look(late, monkeypatch, 7, best=9.0, t=3)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("best (in main)", r"run\.keep\(best=\.\.\.\)` before the loop, and kept\.best in place of best\."),
        ("self.best", r"run\.keep\(best=\.\.\.\)` before the loop, and kept\.best in place of self\.best\."),
        ("counters['steps']", r"run\.keep\(steps=\.\.\.\)` .* kept\.steps in place of counters\['steps'\]\."),
    ],
)
def test_it_is_named_as_the_script_has_it(monkeypatch: pytest.MonkeyPatch, name: str, advice: str) -> None:
    late = LateVariables(Told(_7=[{name: Left("2", ALIKE)}]), late=True)
    with pytest.raises(NotKept, match=advice):
        look(late, monkeypatch, 7, **{name: 0})


def test_what_a_turn_makes_is_compared_a_turn_later(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(_7=[left(i="7", t="1"), left(i="7", t="2")])
    late = LateVariables(told, late=True)
    look(late, monkeypatch, 7)  # it has no `i` yet
    look(late, monkeypatch, 8, i=0, t=5)
    told.told[8] = [left(i="8", t="3")]
    with pytest.raises(NotKept, match=r"late to step 8 has i = 0 where the others' scripts have 8"):
        look(late, monkeypatch, 9, i=1, t=5)


def test_what_a_plain_turn_makes_is_of_the_workers_share_except_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(_7=[left(i="7", size="24")], _8=[left(i="8", size="24")], _9=[left(i="9", size="24")])
    for i, named in ((8, False), (0, True)):
        late = LateVariables(told, late=True)
        monkeypatch.setattr(SOURCE, lambda frame: {})
        late.look(7, plain=True)
        monkeypatch.setattr(SOURCE, lambda frame, i=i: {"i": i, "size": 6})
        if named:
            with pytest.raises(NotKept, match=r"late to step 8 has i = 0 where the others' scripts have 8"):
                late.look(8, plain=True)
        else:
            late.look(8, plain=True)


def test_what_follows_from_a_batch_that_did_not_count_is_no_lack_except_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(_7=[left(i="7", worst="2")], _8=[left(i="8", worst="2")])
    late = LateVariables(told, late=True)
    look(late, monkeypatch, 7)
    monkeypatch.setattr(SOURCE, lambda frame: {"worst": 5, "i": 8})
    late.rehearsed_units()
    look(late, monkeypatch, 8, worst=5, i=8)
    told.told[9] = [left(i="9", worst="2")]
    with pytest.raises(NotKept, match=r"late to step 9 has i = 4 where the others' scripts have 9"):
        look(late, monkeypatch, 9, worst=5, i=4)


def test_what_was_the_same_on_entry_is_no_lack_later(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(_7=[left(n="0")], _8=[left(n="12")])
    late = LateVariables(told, late=True)
    look(late, monkeypatch, 7, n=0)
    look(late, monkeypatch, 8, n=6)


def test_what_others_disagree_about_is_no_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(_6=[left(t="1"), left(t="2")], _7=[left(t="3")])
    late = LateVariables(told, late=True)
    for step in (7, 8, 9, 10, 11):
        found = look(late, monkeypatch, step, t=100 + step)
        assert found == ({} if step == 7 else left(t=Left("", APART | NEW if step < 10 else APART)))


def test_what_others_have_found_to_differ_is_no_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    late = LateVariables(Told(_7=[left(speed=Left("", APART), t=Left("", APART))]), late=True)
    assert look(late, monkeypatch, 7, speed=1.0, t=3) == {}


def test_who_was_there_from_the_beginning_compares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    first = LateVariables(Told(_7=[left(best="0.5")]), late=False)
    assert look(first, monkeypatch, 7, best=9.0) == {}


def test_who_was_at_other_turns_in_a_relaxed_mode_compares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    late = LateVariables(Told(_7=[left(turns="9")]), late=True)
    late.differ()
    assert look(late, monkeypatch, 7, turns=4) == {}


def test_a_fraction_is_named_if_two_had_it_alike_and_else_said(monkeypatch: pytest.MonkeyPatch) -> None:
    late = LateVariables(Told(_7=[left(best=Left("0.37", ALIKE))]), late=True)
    with pytest.raises(NotKept, match=r"has best = inf where the others' scripts have 0\.37"):
        look(late, monkeypatch, 7, best=float("inf"))
    late = LateVariables(Told(_7=[left(best="0.5", line="'took 3 s'")]), late=True)
    with pytest.warns(UserWarning, match=r"Unless it is a measured time, .* has best = inf .* So it is with line\."):
        look(late, monkeypatch, 7, best=float("inf"), line="")
    quietly(lambda: look(late, monkeypatch, 8, best=float("inf"), line=""))
    late = LateVariables(Told(_7=[left(best="0.5", patience="2")]), late=True)
    with pytest.raises(NotKept, match="has patience = 3 where the others' scripts have 2"):
        look(late, monkeypatch, 7, best=float("inf"), patience=3)


def test_what_an_object_counts_is_named_if_two_had_it_alike_and_else_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for mark in (0, ALIKE | OWN):
        late = LateVariables(Told(_7=[{"losses.count": Left("84", mark)}]), late=True)
        with pytest.warns(UserWarning, match=r"losses\.count = 0 where"):
            look(late, monkeypatch, 7, **{"losses.count": 0})
    late = LateVariables(Told(_7=[{"state.steps": Left("7", ALIKE)}]), late=True)
    with pytest.raises(NotKept, match=r"state\.steps = 0 where"):
        look(late, monkeypatch, 7, **{"state.steps": 0})


def test_a_count_of_its_own_is_said_and_what_units_set_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    late = LateVariables(Told(_7=[left(correct=Left("531", OWN), lane=Left("3", OWN))]), late=True)
    with pytest.warns(UserWarning, match=r"correct = 0 where the others' scripts have 531: what changes with"):
        look(late, monkeypatch, 7, correct=0)
    late._settings.variables()[8] = [left(correct=Left("540", OWN), lane=Left("3", OWN))]
    quietly(lambda: look(late, monkeypatch, 8, correct=3, lane=0))


def test_who_enters_the_first_turn_of_all_has_missed_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    late = LateVariables(Told(_0=[left(i="1")], _1=[left(i="2")]), late=True)
    look(late, monkeypatch, 0, i=0)
    look(late, monkeypatch, 1, i=0)
