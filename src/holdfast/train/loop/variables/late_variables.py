"""Simple values around a loop, by which a worker that comes late is found to lack something.

A script that counts, or notes the best so far, in a plain variable has another value in a worker that came late: it
ran none of the turns before. So each worker leaves, at the top of each turn, the numbers, strings and booleans of
`script_values` that have changed while it was looping. A late worker compares its own with them: at the turn that it
enters, and what turns make, twice more. What differs is named; nothing differs in silence.

Not compared are what the others disagree about among themselves (measured times, process ids), and readings of a clock.
While there are several workers, they look now and then in what they are alike, and leave that, too (marks): a fraction
that two workers had alike is no measured time, and what came apart is no lack. Where that cannot be known (there was
one worker all the time), a difference is said in the late worker's log, and nobody is let go. So it is with what is
each worker's own: it changes in the loop over the units, or begins anew in each loop.
"""

from __future__ import annotations

import sys
import time
import warnings
import zlib
from collections.abc import Mapping
from types import FrameType
from typing import Any, Protocol

from holdfast.config.limits import WORKER
from holdfast.errors import NotKept
from holdfast.train.loop.variables.differences import (
    ALIKE,
    ANEW,
    APART,
    NEW,
    OWN,
    Left,
    Table,
    apart,
    counting,
    differing,
)  # fmt: skip
from holdfast.train.loop.variables.script_values import holder, loop_frame, values_around

__all__ = ["Clock", "LateVariables", "LoopVariables", "as_told", "is_clock"]

_MOST, _LONG = 64, 40  #: so many values are left, each with so many letters
_FIRST, _EACH = 8, 16  #: turns in which workers look what they have alike: the first ones, and then each so many
_NONE, _APART = object(), Left("", APART)
_BEGAN = time.monotonic() - WORKER.clock_before


class Turns(Protocol):
    """Where turns leave what late workers need (`optimizer_settings`)."""

    def variables(self) -> dict[int, list[Table]]:
        """Step of a turn -> what workers have left of their variables at its top."""

    def of_others(self, step: int) -> list[Table]:
        """What others have left at the top of the turn of this step, where that is still here."""


class LoopVariables:
    """What one worker's script has changed while it was looping, and what is known of it."""

    def __init__(self) -> None:
        self._first: dict[str, Any] = {}
        self._moved: dict[str, None] = {}  # names, in order
        self._loop = -1
        self._top: dict[str, Any] = {}  # the values when the loop at hand began
        self._newest: dict[str, Any] = {}
        self._anew: dict[str, bool] = {}  # does it begin anew in each loop?
        self.apart: set[str] = set()  #: names in which workers differ by themselves
        self.alike: set[str] = set()  #: names in which another worker had what this one had
        self.own: set[str] = set()  #: names of what changes in the loop over the units
        self._said = False
        self._texts: dict[str, tuple[Any, str]] = {}  # values, as they were told last

    def look(self, values: Mapping[str, Any], loop: int = 0, samples: int = 0) -> dict[str, Left]:
        """What has changed since the first look, as it is left.

        `loop` is the number of the script's loop, `samples` how many this worker had in the turn before.
        """
        first, moved = self._first, self._moved
        for name, value in values.items():
            before = first.get(name, _NONE)
            if before is value or name in moved:
                continue
            if before is _NONE:
                first[name] = value
            elif not _equal(before, value):
                moved[name] = None
        if loop != self._loop:
            self._begin_loop(values, loop)
        newest = {name: values[name] for name in moved if name in values}
        if samples > 1:
            self._note_counts(newest, samples)
        self._newest = newest
        return self._told()

    def _note_counts(self, newest: Mapping[str, Any], samples: int) -> None:
        """What has grown by this worker's number of samples is its own."""
        before = self._newest
        for name, value in newest.items():
            if type(value) is int and type(last := before.get(name)) is int and value - last == samples:
                self.own.add(name)

    def _begin_loop(self, values: Mapping[str, Any], loop: int) -> None:
        before, self._top, self._loop = self._top, dict(values), loop
        for name, last in self._newest.items():
            if name in before and name in values and not _equal(last, before[name]):  # it has changed in that loop
                self._anew[name] = _equal(values[name], before[name]) and self._anew.get(name, True)

    def _told(self) -> dict[str, Left]:
        found: dict[str, Left] = {}
        mixed = {holder(name) for name in self.apart} - {""} if self.apart else ()
        clock, room, short = Clock(), _MOST, False
        for name, value in self._newest.items():
            if name in self.apart:
                found[name] = _APART
                continue
            mark = ALIKE if name in self.alike else 0
            if name in self.own or (mixed and holder(name) in mixed):
                mark |= OWN
            if self._anew.get(name):
                mark |= ANEW
            before = self._texts.get(name)
            if before is not None and before[0] is value:
                text = before[1]
            else:
                text = as_told(value)
                self._texts[name] = value, text
            if mark & ALIKE or not clock.is_near(value):
                if room:
                    found[name] = Left(text, mark)
                room, short = max(room - 1, 0), short or not room
        if short and not self._said:
            self._said = True
            names = [name for name in self._newest if name not in found]
            warnings.warn(
                f"This script changes more than {_MOST} simple values while it loops; nobody will see whether a "
                f"worker that comes late lacks {', '.join(names[:3])} or what comes after. Hand over with run.keep "
                "what turns depend on.", stacklevel=2,
            )  # fmt: skip
        return found

    def learn(self, mine: Mapping[str, Left], others: list[Table]) -> None:
        """Compare with what others had at the same turn."""
        for other in others:
            for name, left in other.items():
                if left.mark & NEW:
                    continue
                if left.mark & APART or (name in mine and left.value != mine[name].value):
                    self.apart.add(name)
                elif name not in mine:  # it has not changed here: leave it from now on, so that this is seen
                    if name in self._first:
                        self._moved[name] = None
                else:
                    self.alike.add(name)


class LateVariables:
    """What one worker leaves of its script's variables, and what it finds there if it came late."""

    def __init__(self, settings: Turns, *, late: bool) -> None:
        self._settings, self._variables = settings, LoopVariables()
        self._seen: list[tuple[int, dict[str, str]]] = []  # (step, what it had) of the first turns of a late worker
        self._late = late
        self._known: set[str] = set()  # names that are bound at the top of the turn at hand
        self._rehearsed: set[str] = set()  # names that a rehearsal was the first to bind
        self._doubtful: set[str] = set()  # those that a turn was, in which a batch did not count
        self._turns, self._left = 0, (-1, dict[str, Left]())  # what was left at the top of the newest turn
        self._frame = 0  # of the loop: its id, while the turn lasts
        self._before: dict[str, Any] | None = None  # the values when the units began
        self._said: set[str] = set()

    @property
    def in_frame(self) -> bool:
        """Does the loop's own frame ask, and no function that it has called?"""
        return id(loop_frame()) == self._frame

    def rehearse(self) -> None:
        """A turn begins of which nothing counts (`rehearsal`)."""
        self._known = set(values_around(loop_frame()))

    def rehearsed(self) -> None:
        """It is over. What it was the first to bind is set anew in each turn, as far as one can tell."""
        self._rehearsed |= set(values_around(loop_frame())) - self._known

    def rehearsed_units(self) -> None:
        """A turn is over in which a batch did not count. What follows from that batch differs rightly."""
        self._doubtful |= set(values_around(loop_frame())) - self._known

    def look(self, step: int, loop: int = 0, *, plain: bool = False, samples: int = 0) -> dict[str, Left]:
        """A turn of the script's loop of this number begins: what is to be left. Raises NotKept.

        In a `plain` loop this worker had so many `samples` in the turn before.
        """
        frame = loop_frame()
        self._frame = id(frame)
        values = values_around(frame)
        self._late = self._late and step > 0  # who enters the run's first turn has missed none
        late = self._late
        if late:
            self._known = set(values)
            clock = Clock()
            mine = {name: as_told(value) for name, value in values.items() if not clock.is_near(value)}
            self._compare(step, mine, plain=plain)
        elif self._looks:
            self._variables.learn(self._left[1], self._settings.of_others(self._left[0]))
        self._turns += 1
        left = self._variables.look(values, loop, samples)
        if late:  # it learns nothing of others by what may be lacking here, nor they by it
            self._left = -1, {}
            return {name: Left(told, mark | NEW) for name, (told, mark) in left.items()}
        self._left = step, left
        return left

    @property
    def _looks(self) -> bool:
        return self._turns < _FIRST or not self._turns % _EACH

    def begin_units(self) -> None:
        """The script goes through the units of the turn at hand."""
        self._before = self._now() if self._looks else None

    def end_units(self) -> None:
        """It is through with them: what has changed is each worker's own."""
        if self._before is not None and (now := self._now()) is not None:
            before, missing = self._before, object()
            changed = (name for name, value in now.items() if not _equal(before.get(name, missing), value))
            self._variables.own.update(changed)
        self._before = None

    def _now(self) -> dict[str, Any] | None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and id(frame) != self._frame:
            frame = frame.f_back
        return values_around(frame) if frame is not None else None

    def differ(self) -> None:
        """Workers are at different turns from now on, and rightly have different values: they are not compared."""
        self._late = False

    def _compare(self, step: int, mine: dict[str, str], *, plain: bool) -> None:
        told = self._settings.variables()
        self._variables.apart |= set().union(*map(apart, told.values()))
        skipped = self._variables.apart | self._rehearsed
        entry = self._seen[0][1] if self._seen else mine
        # What the others had at the top of this turn is here if they came to it before; of the last one it is.
        for at, had in (*self._seen[-1:], (step, mine)):
            names = had.keys() - skipped
            if had is not entry:  # what turns make, in a plain loop of their own share; counts are the same in all
                doubtful = names if plain else self._doubtful
                names -= entry.keys() | (doubtful - counting(told))
            compared = {name: value for name, value in had.items() if name in names}
            self._check(at, compared, told.get(at, []), entered=had is entry)
        self._seen.append((step, mine))
        self._late = len(self._seen) < 3

    def _check(self, step: int, mine: dict[str, str], others: list[Table], *, entered: bool) -> None:
        found = differing(mine, others, self._variables.own, OWN | ANEW if entered else OWN)
        for one in found:
            if one.sure:
                raise NotKept(one.name, mine=one.mine, theirs=one.theirs, step=step)
        # What units set is each one's own from the start.
        new = [one for one in found if one.name not in self._said and (entered or not one.own)]
        self._said.update(one.name for one in new)
        own, unsure = ([one for one in new if one.own is whose] for whose in (True, False))
        if unsure:
            first, *more = unsure
            lack = NotKept(first.name, mine=first.mine, theirs=first.theirs, step=step)
            likewise = f" So it is with {', '.join(one.name for one in more)}." if more else ""
            warnings.warn(f"Unless it is a measured time, something is not kept. {lack}{likewise}", stacklevel=2)
        if own:
            values = (f"{one.name} = {one.mine} where the others' scripts have {one.theirs}" for one in own)
            warnings.warn(
                f"{'; '.join(values)}: what changes with the units, or begins anew in each loop, is each worker's own, "
                "and what lost workers have added to it is gone. For numbers of the whole batch use the step's loss or "
                "run.evaluate.", stacklevel=2,
            )  # fmt: skip


class Clock:
    """What clocks show now."""

    def __init__(self) -> None:
        self._time, self._monotonic = time.time(), time.monotonic()

    def is_near(self, value: Any) -> bool:
        """Is it the time of day, or a reading of a monotonic clock since this process began?"""
        if type(value) is int:
            value *= 1e-9  # a reading in nanoseconds
        elif type(value) is not float:
            return False
        if not value >= _BEGAN:
            return False
        near = value <= self._monotonic + 1.0 and not value.is_integer()
        return near or abs(value - self._time) < WORKER.clock_near


def _equal(one: Any, other: Any) -> bool:
    return type(one) is type(other) and (one == other or one != one)


def as_told(value: Any) -> str:
    """A value as it is left: short, and another text for each."""
    text = repr(value)
    return text if len(text) <= _LONG else f"{text[: _LONG - 12]}...#{zlib.crc32(text.encode()):08x}"


def is_clock(value: Any) -> bool:
    """Is it what a clock shows about now, or has shown since this process began?"""
    return Clock().is_near(value)
