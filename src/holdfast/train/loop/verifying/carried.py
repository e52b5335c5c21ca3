"""Carried values: tensors that the units of one phase have set, and that a unit of a later phase of the turn could use.

A turn may go through its units several times. What a variable holds after the first time is of this worker's last unit,
and each crew has other last units; a unit that uses it later gives something else on each crew. Computing such a unit
twice does not show it, as the variable is the same both times. So it is computed with other numbers in it.

Looked at are the variables of the function that holds the inner loop and the attributes of the objects in them:
tensors, arrays that are no views, and lists, tuples and dicts of both. Told are those that an inner loop has set, by
name or in place and each time to something else, and that are still the same when a later unit begins. So what is set
between inner loops is not told, nor is a constant that a unit makes when it needs it first. A plain number is neither:
a frame cannot be written to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from types import FrameType, FunctionType, ModuleType
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from holdfast.train.loop.variables.script_values import loop_frame
from holdfast.train.loop.verifying.digests import digest

__all__ = ["Carried", "Found", "disturbed"]

_Key = tuple[int, int]  # which memory, and how often it was written to
_Leaf = Any  # a tensor or an array
_DEEP, _MOST = 3, 256  # containers are looked into so deep; so many items of each
_SIDE = 16  # so much of each side of a tensor is hashed
_CLOSED = (type, ModuleType, FunctionType, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
_OF_MODULES = ("_parameters", "_buffers", "_modules")
_DTYPES = frozenset(map(numpy.dtype, "?bhilBefdFD"))  #: of arrays that torch can take


class Found:
    """What a unit could take over from earlier phases."""

    def __init__(self) -> None:
        self.phases: dict[str, int] = {}  #: variable -> the phase that has set it
        self.leaves: dict[str, list[_Leaf]] = {}  #: variable -> what was set of it

    def __bool__(self) -> bool:
        return bool(self.phases)

    def all(self) -> list[_Leaf]:
        """Of all variables."""
        return [leaf for leaves in self.leaves.values() for leaf in leaves]


class Carried:
    """What the inner loops of one turn leave behind in one worker."""

    def __init__(self, ours: Callable[[], Iterable[Tensor]]) -> None:
        """`ours`: parameters, their gradients, buffers and what is kept, which are the same in every worker."""
        self._ours = ours
        self._looking = False
        self._phase = 0
        self._before: dict[_Key, Any] = {}  # what was there when the inner loop began, with what holds the key
        self._left: dict[_Key, tuple[int, Any]] = {}  # what inner loops have left behind, by which phase
        self._seen: dict[tuple[Any, ...], int] = {}  # (phase, variable, shape, dtype) -> what a unit has set it to
        self._varying: set[tuple[int, str]] = set()  # (phase, variable) that units have set to different things

    def begin_turn(self, *, look: bool) -> None:
        """A turn begins, whose units are looked at or not."""
        self._looking, self._left = look, {}

    def begin_units(self, phase: int) -> None:
        """An inner loop begins."""
        if self._looking:
            self._phase, self._before = phase, {key: held for _, _, key, held in _reachable(loop_frame())}

    def end_unit(self) -> None:
        """A unit is through."""
        for name, leaf, _ in self._new():
            kind = self._phase, name, tuple(leaf.shape), leaf.dtype
            value = _sampled(leaf)
            if self._seen.setdefault(kind, value) != value:
                self._varying.add((self._phase, name))

    def end_units(self) -> None:
        """The inner loop is through."""
        for name, leaf, held in self._new():
            if (self._phase, name) in self._varying:
                self._left[_key(leaf, held)] = self._phase, held
        self._before = {}

    def _new(self) -> Iterator[tuple[str, _Leaf, Any]]:
        """What the inner loop at hand has set so far."""
        if self._looking:
            for name, leaf, key, held in _reachable(loop_frame()):
                if key not in self._before:
                    yield name, leaf, held

    def found(self) -> Found:
        """A unit begins: what it could use of earlier phases."""
        found = Found()
        earlier = {key: phase for key, (phase, _) in self._left.items() if phase < self._phase}
        if not (self._looking and earlier):
            return found
        ours = {tensor.untyped_storage()._cdata for tensor in self._ours()}
        for name, leaf, key, _ in _reachable(loop_frame()):
            if key in earlier and not (isinstance(leaf, Tensor) and key[0] in ours):
                found.phases.setdefault(name, earlier[key])
                found.leaves.setdefault(name, []).append(leaf)
        return found


@contextmanager
def disturbed(leaves: Iterable[_Leaf]) -> Iterator[None]:
    """Have other numbers in these. Afterwards they are what they were."""
    undo: list[Callable[[], None]] = []
    try:
        for leaf in {id(leaf): leaf for leaf in leaves}.values():
            undo.append(_disturb_array(leaf) if isinstance(leaf, numpy.ndarray) else _disturb(leaf))
        yield
    finally:
        for back in undo:
            back()


def _disturb(tensor: Tensor) -> Callable[[], None]:
    """Other memory for it: what it had may also be a data set's."""
    before = tensor.data

    def undo() -> None:
        tensor.data = before

    with suppress(RuntimeError, TypeError):  # of a kind that torch cannot compute with here: it is left as it is
        tensor.data = _others(before)

    return undo


def _disturb_array(array: numpy.ndarray[Any, Any]) -> Callable[[], None]:
    before = array.copy()
    array[...] = _others(torch.from_numpy(before)).numpy()

    def undo() -> None:
        array[...] = before

    return undo


def _others(values: Tensor) -> Tensor:
    """The same numbers at other places, real ones a little smaller: so indices stay indices, and shares shares."""
    moved = values.flatten().roll(1).view(values.shape)
    return moved * (63 / 64) if values.is_floating_point() or values.is_complex() else moved


# ---------------------------------------------------------------- what can be reached


def _reachable(frame: FrameType | None) -> Iterator[tuple[str, _Leaf, _Key, Any]]:
    """Tensors and arrays, each with the variable that leads to it, its key, and what keeps that its own."""
    for name, value in list(frame.f_locals.items()) if frame is not None else ():
        if name.startswith("__"):
            continue
        for path, leaf in _of_variable(name, value):
            held = _hold(leaf)
            if held is not None:
                yield path, leaf, _key(leaf, held), held


def _of_variable(name: str, value: Any) -> Iterator[tuple[str, _Leaf]]:
    if isinstance(value, Tensor | numpy.ndarray | dict | list | tuple | deque):
        yield from _within(name, value, _DEEP)
        return
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict) and not isinstance(value, _CLOSED):
        if type(value).__module__.partition(".")[0] == "holdfast":
            return
        for attribute, item in list(attributes.items()):
            if attribute not in _OF_MODULES:
                yield from _within(f"{name}.{attribute}", item, _DEEP)


def _within(name: str, value: Any, deep: int) -> Iterator[tuple[str, _Leaf]]:
    if isinstance(value, Tensor | numpy.ndarray):
        yield name, value
    elif deep and isinstance(value, dict):
        for key, item in islice(list(value.items()), _MOST):
            yield from _within(f"{name}[{key!r}]" if isinstance(key, str | int) else name, item, deep - 1)
    elif deep and isinstance(value, list | tuple | deque):
        for item in islice(reversed(value), _MOST):
            yield from _within(name, item, deep - 1)


def _hold(leaf: _Leaf) -> Any:
    """What keeps the key of a leaf from becoming another's, without keeping a tensor's memory; None: it has no key."""
    if isinstance(leaf, numpy.ndarray):
        return leaf if leaf.base is None and leaf.flags.writeable and leaf.dtype in _DTYPES else None
    plain = leaf.layout == torch.strided and not (leaf.is_nested or leaf.is_quantized or leaf.is_meta)
    return StorageWeakRef(leaf.untyped_storage()) if plain else None


def _key(leaf: _Leaf, held: Any) -> _Key:
    if isinstance(leaf, numpy.ndarray):
        return id(leaf), -1
    return held.cdata, 0 if leaf.is_inference() else leaf._version


def _sampled(leaf: _Leaf) -> int:
    """A hash of a part of it."""
    tensor = torch.from_numpy(leaf) if isinstance(leaf, numpy.ndarray) else leaf.detach()
    return digest(tensor[tuple(slice(_SIDE) for _ in tensor.shape)])
