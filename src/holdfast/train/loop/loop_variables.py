"""Simple values in the frame of a loop by steps, by which a worker that comes late is found to lack something.

A script that counts, or notes the best so far, in a plain variable has another value in a worker that came late: it
ran none of the turns before. So each worker leaves, at the top of each turn, the numbers, strings and booleans of the
loop's frame that have changed while it was looping. A late worker compares its own with them: at the turn that it
enters, and once more after it made a turn of its own. What differs is named; nothing differs in silence.

Not compared: what the others disagree about among themselves (measured times, process ids), and readings of a clock.
With one other worker alone nobody can tell a measured time from a best loss, so fractions are compared where at least
two others have the same one; with one, what differs is said in the late worker's log.
"""

from __future__ import annotations

import sys
import time
import warnings
import zlib
from collections.abc import Mapping, Sequence
from inspect import CO_GENERATOR
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Protocol

import torch

from holdfast.config.limits import WORKER
from holdfast.errors import NotKept

__all__ = [
    "Difference", "LateVariables", "LoopVariables", "apart", "differing", "is_clock", "loop_frame", "script_line",
]  # fmt: skip

_SIMPLE = (bool, int, float, str, type(None))
_OURS = str(Path(__file__).resolve().parents[1])
_TORCH = str(Path(torch.__file__).parent)
_MOST, _LONG = 64, 40  #: so many values are left, each with so many letters


def loop_frame() -> FrameType | None:
    """The frame of the script's loop, past generators (progress bars) and our own code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_code.co_flags & CO_GENERATOR or frame.f_code.co_filename.startswith(_OURS)):
        frame = frame.f_back
    return frame


def script_line() -> int:
    """At which line the script is."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_OURS, _TORCH)):
        frame = frame.f_back
    return frame.f_lineno if frame is not None else 0


class Turns(Protocol):
    """Where turns leave what late workers need (`optimizer_settings`)."""

    def variables(self) -> dict[int, list[dict[str, str]]]:
        """Step of a turn -> what workers have left of their loops' frames at its top."""


class LoopVariables:
    """What one worker's loop has in its frame."""

    def __init__(self) -> None:
        self._first: dict[str, Any] = {}
        self._moved: dict[str, None] = {}  # names, in order

    def look(self, frame: FrameType | None) -> dict[str, str]:
        """The simple values of the frame that have changed since the first look, as they are told."""
        values = _simple(frame)
        for name, value in values.items():
            if name not in self._first:
                self._first[name] = value
            elif name not in self._moved and not _equal(self._first[name], value) and len(self._moved) < _MOST:
                self._moved[name] = None
        return {name: _told(values[name]) for name in self._moved if name in values and not is_clock(values[name])}

    def all(self, frame: FrameType | None) -> dict[str, str]:
        """All simple values of the frame, as they are told."""
        return {name: _told(value) for name, value in _simple(frame).items() if not is_clock(value)}


def apart(several: Sequence[Mapping[str, str]]) -> set[str]:
    """The names in which workers disagree that came to the same turn in the same way.

    >>> apart([{"best": "0.5", "t": "1"}, {"best": "0.5", "t": "2"}])
    {'t'}
    """
    names = {name for one in several for name in one}
    return {name for name in names if len({one[name] for one in several if name in one}) > 1}


class Difference(NamedTuple):
    """A value that is the same in all others, and another one here."""

    name: str
    mine: str
    theirs: str
    sure: bool  #: it is no measured time


def differing(mine: Mapping[str, str], others: Sequence[Mapping[str, str]]) -> Difference | None:
    """The first difference; one that is sure goes before one that is not.

    >>> differing({"best": "inf", "t": "3"}, [{"best": "0.5", "t": "1"}, {"best": "0.5", "t": "2"}])
    Difference(name='best', mine='inf', theirs='0.5', sure=True)
    >>> differing({"t": "3.5", "i": "1"}, [{"t": "0.5", "i": "2"}])
    Difference(name='i', mine='1', theirs='2', sure=True)
    >>> differing({"best": "0.5"}, [{"best": "0.5"}])
    """
    found = []
    for name, value in mine.items():
        theirs = [other[name] for other in others if name in other]
        if len(set(theirs)) == 1 and value not in theirs:
            found.append(Difference(name, value, theirs[0], len(theirs) > 1 or not _fraction(theirs[0])))
    return min(found, key=lambda one: not one.sure, default=None)


class LateVariables:
    """What the loop of one worker leaves of its frame, and what it finds there if it came late."""

    def __init__(self, settings: Turns, *, late: bool) -> None:
        self._settings, self._variables = settings, LoopVariables()
        self._apart: set[str] = set()  # names in which workers differ by themselves
        self._seen: list[tuple[int, dict[str, str]]] = []  # (step, what it had) of the first turns of a late worker
        self._late = late
        self._known: set[str] = set()  # names that are bound at the top of the turn at hand
        self._frame = 0  # of its loop

    @property
    def in_frame(self) -> bool:
        """Does the loop's own frame ask, and no function that it has called?"""
        return id(loop_frame()) == self._frame

    def rehearse(self) -> None:
        """A turn begins of which nothing counts (`rehearsal`)."""
        self._known = set(_simple(loop_frame()))

    def rehearsed(self) -> None:
        """A turn is over in which a batch did not count. What it was the first to bind is set anew in each turn, as far
        as one can tell.
        """
        self._apart |= set(_simple(loop_frame())) - self._known

    def look(self, step: int) -> dict[str, str]:
        """A turn begins: what is to be left. Raises NotKept."""
        frame = loop_frame()
        self._frame = id(frame)
        self._late = self._late and step > 0  # who enters the run's first turn has missed none
        if self._late:
            self._known = set(_simple(frame))
            self._compare(step, self._variables.all(frame))
        return self._variables.look(frame)

    def differ(self) -> None:
        """Workers are at different turns from now on, and rightly have different values: they are not compared."""
        self._late = False

    def _compare(self, step: int, mine: dict[str, str]) -> None:
        told = self._settings.variables()
        self._apart |= set().union(*map(apart, told.values()))
        # What the others had at the top of this turn is here if they came to it before; of the last one it is.
        for at, had in (*self._seen[-1:], (step, mine)):
            self._check(at, had, told.get(at, []))
        self._seen.append((step, mine))
        self._late = len(self._seen) < 3

    def _check(self, step: int, mine: dict[str, str], others: Sequence[Mapping[str, str]]) -> None:
        compared = {name: value for name, value in mine.items() if name not in self._apart}
        if found := differing(compared, others):
            lack = NotKept(found.name, mine=found.mine, theirs=found.theirs, step=step)
            if found.sure:
                raise lack
            warnings.warn(f"Unless it is a measured time, something is not kept. {lack}", stacklevel=2)


def _simple(frame: FrameType | None) -> dict[str, Any]:
    if frame is None:
        return {}
    return {
        name: value for name, value in frame.f_locals.items() if type(value) in _SIMPLE and not name.startswith("__")
    }


def _fraction(told: str) -> bool:
    """Is it a float, as it is told?"""
    number = told.lstrip("-")
    return number in ("inf", "nan") or (number[:1].isdigit() and not number.isdigit())


def _equal(one: Any, other: Any) -> bool:
    return type(one) is type(other) and (one == other or one != one)


def _told(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONG else f"{text[: _LONG - 12]}...#{zlib.crc32(text.encode()):08x}"


def is_clock(value: Any) -> bool:
    """Is it what the clock shows about now?"""
    return type(value) is float and abs(value - time.time()) < WORKER.clock_near
