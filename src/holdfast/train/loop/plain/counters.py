"""Counters around a loop: what counts or goes along with it, in a worker that comes late, begins where the others' is.

Such a worker's script enters the loop at the crew's turn, and `enumerate(loader)`, `zip(itertools.count(), loader)`,
`zip(loader, names)` and `islice(loader, n)` would count its turns from the start. What they go along with is asked for
what the missed turns had of it. An `islice` is asked once a missed turn while it waits for the loader, which gives it
nothing then. Python has no way to set an enumerate, nor what a zip has got from those before the loader in the turn at
hand: these are written in place, where CPython has them; whether that went well is read back.

What cannot be made to count, such as a generator that is zipped with the loader, is refused by name.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import sys
from inspect import CO_GENERATOR
from types import FrameType, GeneratorType
from typing import Any, NamedTuple, Protocol

from holdfast.errors import NotKept

__all__ = ["Asked", "advance"]

_POINTER = ctypes.sizeof(ctypes.c_void_p)
_SOME: tuple[Any, ...] = (range(1), range(1 << 80), [], (), "", "é", b"", {}, {}.values(), {}.items(), set())
#: Asking these has no effect but that they go on.
_BASIC = {type(iter(some)) for some in _SOME} | {itertools.count, itertools.repeat}
_MADE_OF = (enumerate, zip, itertools.cycle)  #: nor has it with these, if it has none with what they ask


class Asked(Protocol):
    """The iterator of a loop."""

    #: How often it is still to give None, to those that only count.
    passing: int

    def __next__(self) -> Any: ...


class _Asker(NamedTuple):
    """An iterator that asks another one."""

    it: Any
    asked: Any
    direct: bool  #: no generator, which cannot be asked while it runs, is between it and the loop's iterator
    depth: int


def advance(iterator: Asked, turns: int, step: int = -1) -> None:
    """Let all that count what this iterator gives, or a generator that asks it, go on by so many turns.

    Called while it is asked, at `step`. Raises NotKept.
    """
    if turns <= 0 or sys.implementation.name != "cpython":
        return
    askers = _askers(iterator, _generators(sys._getframe(1)))
    slices = [asker for asker in askers if type(asker.it) is itertools.islice]
    top = max(slices, key=lambda asker: asker.depth, default=None)
    for asker in askers:
        _check(asker, top, step)
    if top is not None:
        _ask(top, askers, iterator, turns, step)
    for asker in askers:
        if top is not None and asker.direct and asker.depth <= top.depth:
            continue  # it has counted what has just been asked
        if type(asker.it) is enumerate:
            _add(asker.it, turns)
        elif type(asker.it) in (zip, map):
            _go_along(asker, turns, step)


# ---------------------------------------------------------------- who asks


def _askers(iterator: object, generators: list[object]) -> list[_Asker]:
    """What asks this iterator, these generators, or one another, the innermost first."""
    found: list[_Asker] = []
    asked = {id(one): (one, one is iterator, 0) for one in (iterator, *generators)}
    new = [one for one, _, _ in asked.values()]
    while new:
        holders = gc.get_referrers(*new)
        tuples = [one for one in holders if type(one) is tuple]
        kinds = (enumerate, itertools.islice, zip, map)
        holders = [one for one in holders + (gc.get_referrers(*tuples) if tuples else []) if type(one) in kinds]
        new = []
        for one in holders:
            inner = [asked[id(it)] for it in _asked_by(one) if id(it) in asked]
            if inner and id(one) not in asked:
                it, direct, depth = inner[0]
                found.append(_Asker(one, it, direct, depth + 1))
                asked[id(one)] = one, direct, depth + 1
                new.append(one)
    return found


def _asked_by(it: Any) -> list[Any]:
    """The iterators that another one asks, in order."""
    referents = gc.get_referents(it)
    return [*_tuple_of(it)] if type(it) in (zip, map) else referents


def _tuple_of(it: Any) -> tuple[Any, ...]:
    """The iterators of a zip or map. A zip holds what it gave, too."""
    return next((one for one in gc.get_referents(it) if type(one) is tuple and all(map(_asks, one))), ())


def _asks(one: object) -> bool:
    return hasattr(type(one), "__next__")


def _generators(frame: FrameType | None) -> list[object]:
    """The generators that are at work between this frame and the loop's: progress bars and the like."""
    frames = []
    while frame is not None:
        if frame.f_code.co_flags & CO_GENERATOR:
            frames.append(frame)
        elif frames:
            break
        frame = frame.f_back
    if not frames:
        return []
    return [one for one in gc.get_objects() if type(one) is GeneratorType and one.gi_frame in frames]


# ---------------------------------------------------------------- what can be done


def _check(asker: _Asker, top: _Asker | None, step: int) -> None:
    """Refuse what cannot count the turns that were missed."""
    it, below = asker.it, top is not None and asker.direct and asker.depth < top.depth
    if type(it) is itertools.islice:
        if not asker.direct or not _from_the_start(it):
            raise NotKept.iterator("islice", step, "it would end the loop later than the others")
    elif type(it) in (zip, map):
        around = _tuple_of(it)
        if type(it) is map and below:
            raise NotKept.iterator("islice", step, "it would end the loop later than the others")
        for one in around:
            if one is not asker.asked and not hasattr(one, "passing") and not _basic(one):
                name = type(one).__name__
                raise NotKept.iterator(name, step, f"in {type(it).__name__} beside the loader it would give others")
        before = _before(asker)
        if before and (below or type(it) is map):
            raise NotKept.iterator(type(before[0]).__name__, step, "it would give the first values once more")


def _from_the_start(it: Any) -> bool:
    """Does it give all from the first one on, up to some number?"""
    try:
        _, (_, following, _, stride), count = it.__reduce__()
    except (AttributeError, TypeError, ValueError):  # another version of Python does not tell
        return False
    return bool((following, stride, count) == (0, 1, 0))


def _basic(it: Any) -> bool:
    """Has asking it no effect but that it goes on?"""
    if type(it) in _BASIC:
        return True
    inner = _tuple_of(it) if type(it) is zip else [one for one in gc.get_referents(it) if _asks(one)]
    return type(it) in _MADE_OF and all(map(_basic, inner))


def _before(asker: _Asker) -> list[Any]:
    """Those that were asked before it in the turn at hand."""
    return [*itertools.takewhile(lambda one: one is not asker.asked, _tuple_of(asker.it))]


# ---------------------------------------------------------------- how it is done


def _ask(top: _Asker, askers: list[_Asker], iterator: Asked, turns: int, step: int) -> None:
    """Ask an islice so often, while it waits for what the loop's iterator gives: it counts, and all that it asks."""
    around = [one for asker in askers if type(asker.it) is zip for one in _tuple_of(asker.it)]
    giving_none = [*{id(one): one for one in (iterator, *around) if hasattr(one, "passing")}.values()]
    for one in giving_none:
        one.passing = turns
    try:
        for _ in range(turns):
            next(top.it, None)
    finally:
        left = iterator.passing
        for one in giving_none:
            one.passing = 0
    if left:
        raise NotKept.iterator("islice", step, "it would end the loop later than the others")


def _go_along(asker: _Asker, turns: int, step: int) -> None:
    """Have those beside the loop's iterator go on; put right what those before it gave in the turn at hand."""
    around, before = _tuple_of(asker.it), _before(asker)
    for at, one in enumerate(around):
        if one is asker.asked or hasattr(one, "passing"):
            continue
        value: Any = None
        for _ in range(turns):
            value = next(one, None)
        if at < len(before) and not _put(asker.it, around, at, value):
            raise NotKept.iterator(type(one).__name__, step, "it would give the first values once more")


def _put(it: Any, around: tuple[Any, ...], at: int, value: object) -> bool:
    """What a zip has got from one of those around it, in the turn at hand, was this. Returns whether it is now."""
    tuples = [one for one in gc.get_referents(it) if type(one) is tuple and one is not around]
    if len(tuples) != 1 or len(tuples[0]) != len(around) or tuples[0][at] is None:  # it has not been put there
        return False
    given, before = tuples[0], tuples[0][at]
    slot = ctypes.c_void_p.from_address(id(given) + tuple.__basicsize__ + at * _POINTER)
    if slot.value != id(before):
        return False
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
    slot.value = id(value)
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(before))
    return given[at] is value


def _add(counter: enumerate[Any], turns: int) -> None:
    before = _count(counter)
    cell = ctypes.c_ssize_t.from_address(id(counter) + object.__basicsize__)
    if cell.value != before:
        return
    cell.value = before + turns
    if _count(counter) != before + turns:
        cell.value = before


def _count(counter: enumerate[Any]) -> int:
    return int(counter.__reduce__()[1][1])
