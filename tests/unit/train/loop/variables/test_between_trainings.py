"""What a script has in its variables when it joins again, in workers that have been in a training and in others.

The functions here are scripts: what they have is what they read later.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import pytest

from holdfast.errors import NotKept
from holdfast.train.loop.variables import between_trainings


class Scores:
    """Of a script's own class."""

    not_kept = ("printed",)

    def __init__(self, best: float, printed: int = 0) -> None:
        self.best, self.printed = best, printed


MANY = {str(number): number for number in range(32)}


def read(*_: object) -> None:
    """A script reads these."""


def joins(act: Any, *args: Any, best: Any = 0.5, n: int = 3, more: Any = ()) -> Any:
    scores, counts, fold = [0.25, best], {"n": n}, 7
    table, model, took, began = Scores(best, n), object(), 1.5, time.time()
    tables = {str(number): one for number, one in enumerate(more)}
    found = act(*args)
    fold = took = 0
    read(scores, counts, table, model, fold, took, began, tables)
    return found


def test_what_is_read_later_is_left_and_no_readings_of_clocks() -> None:
    told = joins(between_trainings.left)
    assert {name: value for name, value in told.items() if "_in" not in name and "(in" not in name} == {
        "scores": "[0.25, 0.5]", "counts['n']": "3", "table.best": "0.5", "began": "a time",
    }  # fmt: skip


def test_who_has_the_same_goes_on() -> None:
    others = [joins(between_trainings.left), joins(between_trainings.left)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        between_trainings.compare(joins(between_trainings.left), others, 1)


def test_what_differs_from_several_is_named() -> None:
    others = [joins(between_trainings.left, best=0.75)] * 2
    with pytest.raises(NotKept, match=r"training 3 has scores = \[0.25, 0.5\] when training 4 begins, .* have \[0.25"):
        between_trainings.compare(joins(between_trainings.left), others, 3)


def test_what_they_have_apart_is_none() -> None:
    others = [joins(between_trainings.left, best=best) for best in (0.75, 0.625)]
    between_trainings.compare(joins(between_trainings.left), others, 1)


def test_what_differs_from_one_is_said_where_it_may_be_a_time() -> None:
    others = [joins(between_trainings.left, best=0.75)]
    with pytest.warns(UserWarning, match=r"Unless it is a measured time, something is not .* So it is with table"):
        between_trainings.compare(joins(between_trainings.left), others, 1)


def test_what_differs_from_one_is_named_where_the_script_uses_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [joins(between_trainings.left, best=0.75)]
    monkeypatch.setattr(between_trainings, "_MEASURES", frozenset(["gettimeofday"]))
    with pytest.raises(NotKept, match=r"has scores = \[0.25, 0.5\] when training 2 begins"):
        between_trainings.compare(joins(between_trainings.left), others, 1)


def test_what_one_did_not_have_at_all() -> None:
    others = [{**joins(between_trainings.left), "late": "5"}] * 2
    with pytest.raises(NotKept, match="has late = nothing when training 2 begins"):
        between_trainings.compare(joins(between_trainings.left), others, 1)


def test_more_than_are_left_is_said() -> None:
    with pytest.warns(UserWarning, match=r"has \d+ simple values that it may read in its next training; nobody"):
        told = joins(between_trainings.left, best=0.5, n=3, more=[dict(MANY) for _ in range(9)])
    assert len(told) == 256
    with pytest.raises(NotKept, match="has late = nothing"):  # but of what was left
        between_trainings.compare({**told, "more": "1"}, [{**told, "late": "5"}] * 2, 1)


def test_what_is_set_anew_holds_nothing_and_says_so_if_it_is_read() -> None:
    losses: list[float] = []

    def script(turns: int) -> float:
        loss, count, kept = 3.0, 2, 1
        between_trainings.forget(1)
        for count in range(turns):
            loss = 0.5 * count
        losses.append(loss)
        read(kept)
        return loss + count

    assert script(3) == 3.0 and losses == [1.0]
    with pytest.raises(NotKept) as refused:
        script(0)
    assert str(refused.value) == (
        "Training 2 reads loss before it sets it, and workers that have not been in training 1 have no part of what "
        "its loops have set. Set loss after hf.join(), before the first loop; or, where it is to go on with what it "
        "was: use `kept = run.keep(loss=...)` before the loop, and kept.loss in place of loss."
    )
    assert type(losses[1]).__name__ == "_Gone"
    for use in (bool, str, float, iter, lambda it: it == 1, lambda it: 1 + it, lambda it: it["a"], lambda it: it.a):
        with pytest.raises(NotKept):
            use(losses[1])
