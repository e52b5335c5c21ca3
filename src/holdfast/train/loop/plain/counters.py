"""Counters around a loop: `enumerate(loader)` in a worker that comes late begins where the others' is.

Such a worker's script enters the loop at the crew's turn, and enumerate would count its turns from the start. Python
has no way to set it, so its count is written in place, where CPython has it; whether that went well is read back.
Elsewhere the loop's variable differs from the others', and the worker is told so (`loop_variables`).
"""

from __future__ import annotations

import ctypes
import gc
import sys
from inspect import CO_GENERATOR
from types import FrameType, GeneratorType
from typing import Any

__all__ = ["advance"]

def advance(iterator: object, turns: int) -> None:
    """Let every enumerate that asks this iterator, or a generator that asks it, count so many turns more.

    Called while it is asked.
    """
    if turns <= 0 or sys.implementation.name != "cpython":
        return
    for counter in gc.get_referrers(iterator, *_generators(sys._getframe(1))):
        if type(counter) is enumerate:
            _add(counter, turns)


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
