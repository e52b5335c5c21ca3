"""A loop that is entered in its middle: what counts or goes along with it does so from there."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.errors import NotKept
from holdfast.train.loop.plain.counters import advance


class Late:
    """Begins at the seventh turn, and has three more."""

    def __init__(self, missed: int = 7) -> None:
        self.left, self.missed, self.passing = ["a", "b", "c"], missed, 0

    def __iter__(self) -> Late:
        return self

    def __next__(self) -> Any:
        if self.passing:
            self.passing -= 1
            return None
        if not self.left:
            raise StopIteration
        advance(self, self.missed, 12)
        self.missed = 0
        return self.left.pop(0)


def through(loader: Any) -> Iterator[Any]:
    """As a progress bar is."""
    yield from loader


NAMES = [str(number) for number in range(10)]


@pytest.mark.parametrize("wrap", [lambda it: it, through, lambda it: through(through(it)), lambda it: (x for x in it)])
def test_enumerate_counts_from_where_the_loop_is_entered(wrap: Any) -> None:
    assert list(enumerate(wrap(Late()), 1)) == [(8, "a"), (9, "b"), (10, "c")]


def test_nothing_is_changed_where_no_turn_was_missed() -> None:
    assert list(enumerate(Late(0))) == [(0, "a"), (1, "b"), (2, "c")]
    assert list(zip((n for n in range(3)), Late(0), strict=True)) == [(0, "a"), (1, "b"), (2, "c")]


def test_counters_of_others_are_left_alone() -> None:
    other, beside = enumerate("xyz"), zip(range(3), "xyz", strict=True)
    next(other)
    next(beside)
    assert [number for number, _ in enumerate(Late())] == [7, 8, 9]
    assert next(other) == (1, "y") and next(beside) == (1, "y")


@pytest.mark.parametrize("wrap", [lambda it: it, through])
@pytest.mark.parametrize(
    ("beside", "given"),
    [
        (lambda: itertools.count(1), [8, 9, 10]), (lambda: range(10), [7, 8, 9]), (lambda: NAMES, ["7", "8", "9"]),
        (lambda: range(1 << 70, (1 << 70) + 10), [(1 << 70) + n for n in (7, 8, 9)]),
        (lambda: itertools.cycle(NAMES[:4]), ["3", "0", "1"]),
        (lambda: enumerate(NAMES), [(n, str(n)) for n in (7, 8, 9)]),
    ],
)  # fmt: skip
def test_what_is_zipped_with_the_loop_goes_along(wrap: Any, beside: Any, given: list[Any]) -> None:
    letters = ["a", "b", "c"]
    assert [*zip(beside(), wrap(Late()))] == [*zip(given, letters, strict=True)]  # noqa: B905
    assert [*zip(wrap(Late()), beside())] == [*zip(letters, given, strict=True)]  # noqa: B905
    both = [(first, letter, first) for first, letter in zip(given, letters, strict=True)]
    assert [*zip(beside(), wrap(Late()), beside())] == both  # noqa: B905
    assert [*enumerate(zip(beside(), wrap(Late())))] == [*enumerate(zip(given, letters, strict=True), 7)]  # noqa: B905
    assert [*map(lambda *pair: pair, wrap(Late()), beside())] == [*zip(letters, given, strict=True)]


def test_what_was_got_and_is_put_right_is_freed() -> None:
    names = [f"name {number}" * 2 for number in range(10)]
    counts = [sys.getrefcount(name) for name in names]
    for _ in range(5):
        assert [name for name, _ in zip(names, Late())] == names[7:]  # noqa: B905
    assert [sys.getrefcount(name) for name in names] == counts


@pytest.mark.parametrize(
    ("around", "given"),
    [
        (lambda it: itertools.islice(it, 9), ["a", "b"]),
        (lambda it: itertools.islice(it, None), ["a", "b", "c"]),
        (lambda it: enumerate(itertools.islice(it, 9)), [(7, "a"), (8, "b")]),
        (lambda it: itertools.islice(enumerate(it), 9), [(7, "a"), (8, "b")]),
        (lambda it: itertools.islice(itertools.islice(it, 9), 12), ["a", "b"]),
        (lambda it: through(itertools.islice(it, 9)), ["a", "b"]),
        (lambda it: enumerate(through(itertools.islice(it, 9))), [(7, "a"), (8, "b")]),
        (lambda it: itertools.islice(zip(it, NAMES), 9), [("a", "7"), ("b", "8")]),  # noqa: B905
        (lambda it: zip(NAMES, itertools.islice(it, 9)), [("7", "a"), ("8", "b")]),  # noqa: B905
    ],
)
def test_islice_ends_where_it_does_for_the_others(around: Any, given: list[Any]) -> None:
    assert [*around(Late())] == given


@pytest.mark.parametrize(
    ("around", "what"),
    [
        (lambda it: zip((n for n in NAMES), it), "generator"),  # noqa: B905
        (lambda it: zip(it, (n for n in NAMES)), "generator"),  # noqa: B905
        (lambda it: zip(it, itertools.cycle(n for n in NAMES)), "cycle"),
        (lambda it: map(lambda *pair: pair, NAMES, it), "list_iterator"),
        (lambda it: itertools.islice(through(it), 9), "islice"),
        (lambda it: itertools.islice(it, 2, 12), "islice"),
        (lambda it: itertools.islice(it, 0, None, 2), "islice"),
        (lambda it: itertools.islice(map(str, it), 9), "islice"),
        (lambda it: itertools.islice(zip(NAMES, it), 9), "list_iterator"),  # noqa: B905
    ],
)
def test_what_cannot_be_made_to_count_is_named(around: Any, what: str) -> None:
    told = rf"late to step 12 has missed turns that cannot be made up for in the {what} around its loop: .* `break`"
    with pytest.raises(NotKept, match=told):
        [*around(Late())]
