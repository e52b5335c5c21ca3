"""Simple values in a loop's frame: which are left for late workers, and what a late worker finds missing."""

from __future__ import annotations

import time
from typing import Any

import pytest

from holdfast.errors import NotKept
from holdfast.train.loop.loop_variables import LateVariables, LoopVariables


class Frame:
    """A frame with these locals."""

    def __init__(self, **values: Any) -> None:
        self.f_locals = values


class Told:
    """What workers have left, step by step."""

    def __init__(self, **steps: list[dict[str, str]]) -> None:
        self.told = {int(step.lstrip("_")): several for step, several in steps.items()}

    def variables(self) -> dict[int, list[dict[str, str]]]:
        return self.told


def test_what_changes_is_left_and_what_a_clock_shows_is_not() -> None:
    variables = LoopVariables()
    first = {"best": 9.0, "lr": 0.1, "name": "a", "flag": False, "x": [1], "now": time.time(), "__name__": "m"}
    assert variables.look(Frame(**first)) == {}  # type: ignore[arg-type]
    later = {**first, "best": 0.5, "flag": True, "x": [2], "now": time.time() + 1, "i": 3}
    assert variables.look(Frame(**later)) == {"best": "0.5", "flag": "True"}  # type: ignore[arg-type]
    assert variables.look(Frame(**{**later, "i": 4})) == {"best": "0.5", "flag": "True", "i": "4"}  # type: ignore[arg-type]


def test_a_long_text_is_told_by_its_hash() -> None:
    variables = LoopVariables()
    variables.look(Frame(text="a"))  # type: ignore[arg-type]
    (one,) = variables.look(Frame(text="b" * 100)).values()  # type: ignore[arg-type]
    (other,) = variables.look(Frame(text="b" * 99 + "c")).values()  # type: ignore[arg-type]
    assert one != other and len(one) == len(other) < 50


def look(late: LateVariables, monkeypatch: pytest.MonkeyPatch, step: int, **values: Any) -> dict[str, str]:
    monkeypatch.setattr("holdfast.train.loop.loop_variables.loop_frame", lambda: Frame(**values))
    return late.look(step)


def test_what_differs_where_a_late_worker_enters_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    late = LateVariables(Told(_7=[{"best": "0.5", "t": "1"}, {"best": "0.5", "t": "2"}]), late=True)
    with pytest.raises(NotKept, match=r"late to step 7 has best = 9\.0 where the others' scripts have 0\.5"):
        look(late, monkeypatch, 7, best=9.0, t=3)


def test_what_a_turn_makes_is_compared_a_turn_later(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(_7=[{"i": "7", "t": "1"}, {"i": "7", "t": "2"}])
    late = LateVariables(told, late=True)
    look(late, monkeypatch, 7)  # it has no `i` yet
    look(late, monkeypatch, 8, i=0, t=5)
    told.told[8] = [{"i": "8", "t": "3"}]
    with pytest.raises(NotKept, match=r"late to step 8 has i = 0 where the others' scripts have 8"):
        look(late, monkeypatch, 9, i=1, t=5)


def test_what_others_disagree_about_is_no_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(_6=[{"t": "1"}, {"t": "2"}], _7=[{"t": "3"}])
    late = LateVariables(told, late=True)
    for step in (7, 8, 9, 10):
        assert look(late, monkeypatch, step, t=100 + step) == ({} if step == 7 else {"t": str(100 + step)})


def test_who_was_there_from_the_beginning_compares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    first = LateVariables(Told(_7=[{"best": "0.5"}]), late=False)
    assert look(first, monkeypatch, 7, best=9.0) == {}


def test_who_was_at_other_turns_in_a_relaxed_mode_compares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    late = LateVariables(Told(_7=[{"turns": "9"}]), late=True)
    late.differ()
    assert look(late, monkeypatch, 7, turns=4) == {}


def test_a_fraction_that_one_other_has_is_said_and_a_count_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    late = LateVariables(Told(_7=[{"best": "0.5"}]), late=True)
    with pytest.warns(UserWarning, match=r"Unless it is a measured time, .* has best = inf where .* have 0\.5"):
        look(late, monkeypatch, 7, best=float("inf"))
    late = LateVariables(Told(_7=[{"best": "0.5", "patience": "2"}]), late=True)
    with pytest.raises(NotKept, match="has patience = 3 where the others' scripts have 2"):
        look(late, monkeypatch, 7, best=float("inf"), patience=3)


def test_who_enters_the_first_turn_of_all_has_missed_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    late = LateVariables(Told(_0=[{"i": "1"}], _1=[{"i": "2"}]), late=True)
    look(late, monkeypatch, 0, i=0)
    look(late, monkeypatch, 1, i=0)
