"""Counters around a loop: `enumerate`, or a bar of tqdm, in a worker that comes late begins where the others' is.

Such a worker's script enters the loop at the crew's turn, and both would count its turns from the start. Python has no
way to set an enumerate, so its count is written in place, where CPython has it; whether that went well is read back. A
bar counts in a local variable of its generator. Where neither can be set, the loop's variable differs from the others',
and the worker is told so (`loop_variables`).
"""

from __future__ import annotations

import ctypes
import gc
import sys
from inspect import CO_GENERATOR
from types import FrameType, GeneratorType
from typing import Any

__all__ = ["advance"]

_SHOWN = ("n", "initial", "last_print_n")  #: of a bar of tqdm; `initial` is not counted in its speed


def advance(iterator: object, turns: int) -> None:
    """Let every enumerate that asks this iterator, or a generator that asks it, and every bar count so many turns more.

    Called while it is asked.
    """
    if turns <= 0 or sys.implementation.name != "cpython":
        return
    frames = _generators(sys._getframe(1))
    for frame in frames:
        _advance_bar(frame, turns)
    generators = (one for one in gc.get_objects() if type(one) is GeneratorType) if frames else ()
    for counter in gc.get_referrers(iterator, *(one for one in generators if one.gi_frame in frames)):
        if type(counter) is enumerate:
            _add(counter, turns)


def _generators(frame: FrameType | None) -> list[FrameType]:
    """The generators that are at work between this frame and the loop's: progress bars and the like."""
    frames: list[FrameType] = []
    while frame is not None:
        if frame.f_code.co_flags & CO_GENERATOR:
            frames.append(frame)
        elif frames:
            break
        frame = frame.f_back
    return frames


def _advance_bar(frame: FrameType, turns: int) -> None:
    values = frame.f_locals
    bar = values.get("self")
    counts = [name for name in ("n", "last_print_n") if type(values.get(name)) is int]
    if not counts or not all(type(getattr(bar, name, None)) is int for name in _SHOWN):
        return
    for name in _SHOWN:
        setattr(bar, name, getattr(bar, name) + turns)
    for name in counts:
        values[name] += turns
    if sys.version_info < (3, 13):  # later, `f_locals` writes to the frame by itself
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


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
