"""A loop that is entered in its middle: enumerate counts from there."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.train.loop.plain.counters import advance


class Late:
    """Begins at the seventh turn."""

    def __init__(self, missed: int = 7) -> None:
        self.left, self.missed = ["a", "b", "c"], missed

    def __iter__(self) -> Late:
        return self

    def __next__(self) -> str:
        if not self.left:
            raise StopIteration
        advance(self, self.missed)
        self.missed = 0
        return self.left.pop(0)


def through(loader: Any) -> Iterator[Any]:
    """As a progress bar is."""
    yield from loader


@pytest.mark.parametrize("wrap", [lambda it: it, through, lambda it: through(through(it)), lambda it: (x for x in it)])
def test_enumerate_counts_from_where_the_loop_is_entered(wrap: Any) -> None:
    assert list(enumerate(wrap(Late()), 1)) == [(8, "a"), (9, "b"), (10, "c")]


def test_bars_count_from_where_the_loop_is_entered() -> None:
    tqdm = pytest.importorskip("tqdm", reason="the package tqdm is not installed").tqdm

    def bar(over: Any, **options: Any) -> Any:
        return tqdm(over, file=io.StringIO(), **options)

    inner = bar(Late())
    outer = bar(enumerate(inner, 1), mininterval=0.0, total=10)
    shown = [(outer.n, number) for number, _ in outer]
    assert shown == [(7, 8), (8, 9), (9, 10)]
    assert (inner.n, outer.n, outer.initial) == (10, 10, 7)
    assert "10/10" in outer.fp.getvalue()
    still = bar(Late(0))
    assert (len(list(still)), still.n) == (3, 3)
    hidden = bar(Late(), disable=True)
    assert (len(list(hidden)), hidden.n) == (3, 0)


def test_nothing_is_changed_where_no_turn_was_missed() -> None:
    assert list(enumerate(Late(0))) == [(0, "a"), (1, "b"), (2, "c")]


def test_counters_of_others_are_left_alone() -> None:
    other = enumerate("xyz")
    next(other)
    assert [number for number, _ in enumerate(Late())] == [7, 8, 9]
    assert next(other) == (1, "y")
