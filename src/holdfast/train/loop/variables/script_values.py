"""Simple values around a script's loop: numbers, strings and booleans, under the names by which the script has them.

Looked at are the frame of the loop, those of its callers in the script's own files, the globals of these files, and
what lies one or two levels deep there in objects of the script's own classes and in small dicts: `best`,
`best (in main)`, `self.best`, `counters['steps']`. Modules, optimizers and data sets are no such objects, unless the
loop is in a method of theirs: they are handed over, or each worker's own.
"""

from __future__ import annotations

import argparse
import collections
import sys
import sysconfig
import types
from collections.abc import Mapping
from inspect import CO_GENERATOR
from pathlib import Path
from types import FrameType
from typing import Any

import numpy
import torch

from holdfast.train.loop.variables.live_names import live_locals

__all__ = ["holder", "is_looked_at", "is_script", "loop_frame", "script_line", "values_around"]

_HERE = Path(__file__).resolve()
_OURS = str(_HERE.parents[2])
_TORCH = str(Path(torch.__file__).parent)
_STRANGE = (str(_HERE.parents[3]), _TORCH, *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib")))
_PACKAGES = ("/site-packages/", "/dist-packages/")

_LEVELS = 2  #: objects and dicts within one another
_SMALL = 64  #: entries of a dict, or attributes; a larger one is a table
_OTHER, _SIMPLE, _NUMPY, _DICT, _OBJECT, _HANDED = range(6)
_kinds: dict[type, int] = {
    **dict.fromkeys((bool, int, float, str, type(None)), _SIMPLE),
    **dict.fromkeys((dict, collections.Counter, collections.defaultdict, collections.OrderedDict), _DICT),
    **dict.fromkeys((types.SimpleNamespace, argparse.Namespace), _OBJECT),
}  # of what was met so far
_slots: dict[type, tuple[str, ...]] = {}
_scripts: dict[str, bool] = {}  # file -> is it one of the script's own?


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


def values_around(loop: FrameType | None, *, ahead: bool = False) -> dict[str, Any]:
    """The simple values of a loop with this frame, of its callers, and of what they hold.

    With `ahead`, those that the script may still read before it sets them anew, wherever it stands; and lists of them.
    """
    found: dict[str, Any] = {}
    if loop is None:
        return found
    seen: set[int] = set()
    free: set[str] = set()  # variables that an inner function has of an outer one
    modules: dict[int, tuple[dict[str, Any], str]] = {}
    read: dict[int, set[str] | None] = {}  # of modules that are being run: what they may still read
    frame: FrameType | None = loop
    while frame is not None:
        code, in_file = frame.f_code, frame.f_globals
        if frame is loop or is_script(code.co_filename):
            if id(in_file) not in modules and is_script(code.co_filename):
                modules[id(in_file)] = in_file, code.co_filename
            live = live_locals(frame) if ahead else None
            if frame.f_locals is not in_file:
                values = _only(frame.f_locals, live)
                if free:
                    values = {name: value for name, value in values.items() if name not in free}
                free.update(code.co_freevars)
                _add(found, values, "" if frame is loop else f" (in {code.co_name})", seen, lists=ahead)
            elif frame is loop:
                _add(found, _only(in_file, live), "", seen, lists=ahead)
                modules[id(in_file)] = {}, ""
            else:
                read[id(in_file)] = live
        frame = frame.f_back
    for number, (in_file, file) in modules.items():
        main = in_file.get("__name__") == "__main__"
        _add(found, _only(in_file, read.get(number)), "" if main else f" (in {Path(file).name})", seen, lists=ahead)
    return found


def _only(values: Mapping[str, Any], names: set[str] | None) -> Mapping[str, Any]:
    return values if names is None else {name: value for name, value in values.items() if name in names}


def holder(name: str) -> str:
    """What a value lies in, by the value's name; nothing if it is a variable, or an attribute of `self`.

    >>> holder("losses.count (in train)"), holder("counters['n']"), holder("self.best"), holder("best (in main)")
    ('losses (in train)', 'counters', '', '')
    """
    path, frame, where = name.partition(" (in ")
    cut = max(path.rfind("."), path.rfind("["))
    return f"{path[:cut]}{frame}{where}" if cut > 0 and path[:cut] != "self" else ""


def _add(
    found: dict[str, Any], values: Mapping[Any, Any], after: str, seen: set[int], before: str = "", close: str = "",
    level: int = 0, *, lists: bool = False,
) -> None:  # fmt: skip
    """Add simple values, and what is simple in objects and dicts among them; `lists` of simple values as one."""
    kinds, bare = _kinds, not (before or after)
    for name, value in [*values.items()]:  # threads may add to it
        kind = kinds.get(type(value))
        if kind is None:
            kind = kinds[type(value)] = _kind(type(value))
        if lists and type(value) in (list, tuple) and all(kinds.get(type(one)) == _SIMPLE for one in value):
            kind = _SIMPLE
        if not kind or type(name) is not str or name[:2] == "__":
            continue
        if kind <= _NUMPY:
            full = name if bare else f"{before}{name}{close}{after}"
            if full in found:
                full = f"{full} (global)"
            found[full] = value if kind == _SIMPLE else value.item()
        elif level < _LEVELS and id(value) not in seen and not (level and name.startswith("_")):
            if kind == _HANDED and name != "self":
                continue  # it is told to others by what is prepared or kept
            seen.add(id(value))
            within = f"{before}{name}{close}"
            if kind != _DICT:
                _add(found, _members(value), after, seen, f"{within}.", "", level + 1, lists=lists)
            elif len(value) <= _SMALL:
                _add(found, value, after, seen, f"{within}['", "']", level + 1, lists=lists)


def is_looked_at(name: str, value: Any) -> bool:
    """Is a variable one of those that are compared, or may hold such?"""
    found: dict[str, Any] = {}
    _add(found, {name: value}, "", set())
    return bool(found)


def _members(thing: Any) -> Mapping[str, Any]:
    kind = type(thing)
    slots = _slots.get(kind)
    if slots is None:
        names = [one.__dict__.get("__slots__", ()) for one in kind.__mro__]
        slots = tuple(name for some in names for name in ((some,) if isinstance(some, str) else some))
        _slots[kind] = slots
    own: dict[str, Any] = getattr(thing, "__dict__", {})
    if type(own) is not dict or len(own) > _SMALL:
        return {}
    without = getattr(kind, "not_kept", None)  # its class says that nothing follows from these
    without = (without,) if isinstance(without, str) else without
    if isinstance(without, tuple | list | set | frozenset):
        own = {name: value for name, value in own.items() if name not in without}
        slots = tuple(name for name in slots if name not in without)
    if slots:
        missing = object()
        held = {name: getattr(thing, name, missing) for name in slots if not name.startswith("__")}
        return {**own, **{name: value for name, value in held.items() if value is not missing}}
    return own


def _kind(kind: type) -> int:
    if issubclass(kind, numpy.number | numpy.bool_ | numpy.str_):
        return _NUMPY
    if isinstance(kind, type) and issubclass(kind, type):
        return _OTHER
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    if kind.__module__ != "__main__" and (file is None or not is_script(file)):
        return _OTHER
    if not hasattr(kind, "__dict__") or issubclass(kind, types.FunctionType | types.ModuleType):
        return _OTHER
    return _HANDED if any(one.__module__.partition(".")[0] == "torch" for one in kind.__mro__) else _OBJECT


def is_script(file: str) -> bool:
    """Is this file one of the script's own?"""
    known = _scripts.get(file)
    if known is None:
        known = _scripts[file] = not (
            file.startswith((*_STRANGE, "<frozen")) or any(part in file for part in _PACKAGES)
        )
    return known
