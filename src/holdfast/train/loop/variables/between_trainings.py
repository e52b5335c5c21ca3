"""Variables between trainings: what a script has when one is over, in a worker that has not been in all of them.

Such a worker goes through a training that is over without its steps, so a plain variable that the script changes in its
loops has another value in it. What the script may still read is compared with what the workers had that made the
training, where it closes the run and where it joins again: what a function returns, or a list holds that is being made,
nobody sees later. What differs is named; nothing differs in silence. What they had apart among themselves are measured
times and the like; with one worker, and a script that uses clocks, that cannot be known, and is only said.
"""

from __future__ import annotations

import ctypes
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import NoReturn

from holdfast.errors import NotKept
from holdfast.train.loop.variables.differences import Left, differing
from holdfast.train.loop.variables.late_variables import Clock, as_told
from holdfast.train.loop.variables.live_names import live_locals, names_in
from holdfast.train.loop.variables.script_values import is_looked_at, is_script, loop_frame, values_around

__all__ = ["compare", "forget", "left"]

_MISSING, _CLOCK = "nothing", "a time"
_MOST = 256  #: values that are left
#: What tells that a script uses such: names in its code, and modules that what it has imported is from.
_MEASURES = frozenset(
    ("time", "datetime", "timeit", "perf_counter", "monotonic", "process_time", "getpid", "uuid", "socket", "psutil")
)


def left() -> dict[str, str]:
    """What this worker has in its script's variables here, as it is told to later ones."""
    clock, found = Clock(), values_around(loop_frame(), ahead=True)
    told = {name: _CLOCK if clock.is_near(value) else as_told(value) for name, value in found.items()}
    if len(told) > _MOST:
        warnings.warn(
            f"This script has {len(told)} simple values that it may read in its next training; nobody will see whether "
            f"a worker lacks {', '.join([*told][_MOST:][:3])} or what comes after. Hand over with run.keep what that "
            "follows from.", stacklevel=2,
        )  # fmt: skip
    return dict([*told.items()][:_MOST])


def compare(mine: Mapping[str, str], others: Sequence[Mapping[str, str]], number: int) -> None:
    """Look whether this worker has what others had at the end of training `number`. Raises NotKept."""
    known = {name for one in others for name in one}
    names = known if len(known) >= _MOST else known | mine.keys()
    clocks = {name for one in (mine, *others) for name, told in one.items() if told == _CLOCK}
    ours = {name: mine.get(name, _MISSING) for name in sorted(names - clocks)}
    tables = [{name: Left(one.get(name, _MISSING)) for name in ours} for one in others]
    unsure: list[NotKept] = []
    for one in differing(ours, tables):
        lack = NotKept.between(one.name, mine=one.mine, theirs=one.theirs, training=number)
        if one.sure or not _measures():
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


def _measures() -> bool:
    """Does the script use anything that differs from process to process, such as clocks, as far as its names tell?"""
    names: set[str] = set()
    frame = loop_frame()
    while frame is not None:
        if is_script(frame.f_code.co_filename):
            names |= names_in(frame.f_code)
        frame = frame.f_back
    for module in [*sys.modules.values()]:
        if is_script(getattr(module, "__file__", None) or "<frozen"):
            names |= {getattr(value, "__module__", None) or name for name, value in [*vars(module).items()]}
    return bool(names & _MEASURES)


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

