"""Variables between trainings: what a script has when it joins again, in a worker that has not been in all trainings.

Such a worker goes through a training that is over without its steps, so a plain variable that the script changes in its
loops has another value in it. What the script may still read is compared, at each `hf.join()` after the first, with
what the workers had there that the training was made by. What differs is named; nothing differs in silence. What they
had apart among themselves are measured times and the like; with one worker that cannot be known, and is only said.
"""

from __future__ import annotations

import ctypes
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from holdfast.errors import NotKept
from holdfast.train.loop.variables.differences import Left, differing
from holdfast.train.loop.variables.late_variables import Clock, as_told
from holdfast.train.loop.variables.live_names import live_locals
from holdfast.train.loop.variables.script_values import is_looked_at, is_script, loop_frame, values_around

__all__ = ["compare", "forget", "left"]

_MISSING = "nothing"


def left() -> dict[str, str]:
    """What this worker has in its script's variables, as it is told to later ones."""
    clock = Clock()
    return {name: as_told(value) for name, value in _values().items() if not clock.is_near(value)}


def compare(others: Sequence[dict[str, str]], number: int) -> None:
    """Look whether this worker has what others had at the end of training `number`. Raises NotKept."""
    values, clock = _values(), Clock()
    names = dict.fromkeys([*values, *(name for one in others for name in one)])
    mine = {
        name: as_told(values[name]) if name in values else _MISSING
        for name in names if name not in values or not clock.is_near(values[name])
    }  # fmt: skip
    tables = [{name: Left(one.get(name, _MISSING)) for name in mine} for one in others]
    unsure: list[NotKept] = []
    for one in differing(mine, tables):
        lack = NotKept.between(one.name, mine=one.mine, theirs=one.theirs, training=number)
        if one.sure:
            raise lack
        unsure.append(lack)
    if unsure:
        first, *more = unsure
        likewise = f" So it is with {', '.join(one.name for one in more)}." if more else ""
        warnings.warn(f"Unless it is a measured time, something is not kept. {first}{likewise}", stacklevel=2)


def forget(number: int) -> None:
    """Let variables that the script sets anew before it reads them hold nothing, as at its first `hf.join()`.

    Else a worker that comes late to a loop would be found to lack what they hold of training `number`, which is over.
    Should one be read all the same (after a loop that has no turn, say), that is said: see `_Gone`.
    """
    frame = loop_frame()
    while frame is not None:
        live = live_locals(frame) if is_script(frame.f_code.co_filename) else None
        if live is not None:
            values = frame.f_locals
            for name in [name for name, value in values.items() if name not in live and is_looked_at(name, value)]:
                values[name] = _Gone(name, number)
            if sys.version_info < (3, 13) and values is not frame.f_globals:  # there they are a copy
                ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
        frame = frame.f_back


class _Gone:
    """What a variable holds that the script should set before it reads it. Whatever it is used for raises NotKept."""

    def __init__(self, name: str, number: int) -> None:
        self._name, self._number = name, number

    def __getattr__(self, name: str) -> NoReturn:
        self._refuse()

    def _refuse(self, *_: object) -> NoReturn:
        raise NotKept.gone(self._name, self._number)


_USES = """
    bool int float index len iter next contains getitem setitem call eq ne lt le gt ge round neg pos abs str format
    add radd iadd sub rsub isub mul rmul imul truediv rtruediv itruediv floordiv rfloordiv mod rmod pow rpow
"""
for _use in _USES.split():
    setattr(_Gone, f"__{_use}__", _Gone._refuse)


def _values() -> dict[str, Any]:
    return values_around(loop_frame(), ahead=True)
