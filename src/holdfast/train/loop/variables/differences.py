"""Differences between what workers have in the variables of their scripts, and how far one can be sure of them.

A measured time differs rightly, and so does what a worker counts of its own samples. So what workers leave of a
variable has a mark beside its value, by what they have seen: two of them had it *alike* after it had changed, or it
came *apart* by itself, or it is each one's *own*, changed in the loop over the units, or it begins *anew* in each loop.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast.train.loop.variables.script_values import holder

__all__ = ["ALIKE", "ANEW", "APART", "NEW", "OWN", "Difference", "Left", "Table", "apart", "counting", "differing"]

ALIKE, OWN, ANEW, APART, NEW = 1, 2, 4, 8, 16  #: marks; NEW: by a worker that has come late just now


class Left(NamedTuple):
    """A variable, as a worker leaves it at the top of a turn."""

    value: str
    mark: int = 0


Table = Mapping[str, Left]  #: name -> what is left of it


class Difference(NamedTuple):
    """A value that is the same in all others, and another one here."""

    name: str
    mine: str
    theirs: str
    sure: bool  #: it is neither a measured time nor each one's own
    own: bool = False


def apart(several: Sequence[Table]) -> set[str]:
    """The names in which workers disagree that came to the same turn in the same way, or have before.

    >>> apart([{"best": Left("0.5"), "t": Left("1")}, {"best": Left("0.5"), "t": Left("2")}])
    {'t'}
    """
    found = {name for one in several for name, left in one.items() if left.mark & APART}
    known = [{name: left.value for name, left in one.items() if not left.mark & NEW} for one in several]
    names = {name for one in known for name in one}
    return found | {name for name in names if len({one[name] for one in known if name in one}) > 1}


def differing(
    mine: Mapping[str, str], others: Sequence[Table], own: Iterable[str] = (), owned: int = OWN
) -> list[Difference]:
    """What differs here, and in the others is the same.

    Each one's own are the names in `own`, and those that others have left with a mark in `owned`.

    >>> two = [{"best": Left("0.5"), "t": Left("1")}, {"best": Left("0.5"), "t": Left("2")}]
    >>> differing({"best": "inf", "t": "3"}, two)
    [Difference(name='best', mine='inf', theirs='0.5', sure=True, own=False)]
    >>> [one.sure for one in differing({"t": "3.5", "i": "1"}, [{"t": Left("0.5"), "i": Left("2")}])]
    [False, True]
    >>> differing({"best": "inf"}, [{"best": Left("0.5", ALIKE)}])[0].sure, differing({"n": "0"}, [{"n": Left("0")}])
    (True, [])
    """
    found, known = [], set(own)
    for name, value in mine.items():
        all_left = [other[name] for other in others if name in other]
        theirs = [left for left in all_left if not left.mark & NEW] or all_left
        values = {left.value for left in theirs}
        marks = 0
        for left in theirs:
            marks |= left.mark
        if len(values) != 1 or value in values or marks & APART:
            continue
        told = theirs[0].value
        each_own = bool(marks & owned) or name in known
        alike = len(theirs) > 1 or bool(marks & ALIKE)
        sure = not each_own and (alike or not (_may_measure(told) or holder(name)))
        found.append(Difference(name, value, told, sure, each_own))
    return found


def counting(told: Mapping[int, Sequence[Table]]) -> set[str]:
    """The names that count turns in others: one more with each step.

    >>> seven, nine = [{"i": Left("3"), "n": Left("12")}], [{"i": Left("5"), "n": Left("12")}]
    >>> counting({7: seven, 9: nine})
    {'i'}
    """
    found: dict[str, set[int]] = {}
    times: dict[str, int] = {}
    for step, several in told.items():
        for name in {name for one in several for name in one}:
            for value in {one[name].value for one in several if name in one}:
                found.setdefault(name, set()).add(int(value) - step if re.fullmatch(r"-?\d+", value) else -1 - step)
            times[name] = times.get(name, 0) + 1
    return {name for name, offsets in found.items() if len(offsets) == 1 and times[name] > 1}


def _may_measure(told: str) -> bool:
    """May it be a measured time, as it is told: a fraction, or a text or a list with a number?"""
    if told[:1] in "'\"[(":
        return any(letter.isdigit() for letter in told)
    number = told.lstrip("-")
    return number in ("inf", "nan") or (number[:1].isdigit() and not number.isdigit())
