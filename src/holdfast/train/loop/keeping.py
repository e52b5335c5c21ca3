"""What a script keeps besides its model and optimizer (`run.keep`), so that a worker that comes late has it, too.

Objects with `state_dict` and `load_state_dict` (an EMA, a scaler, metrics) and small named values (the best so far, a
counter) are each worker's own; every worker's script does the same to them. At the top of each turn one worker of each
host writes all of it into the arena, into the copy that is not the newest whole one, and marks that as whole. So no
death loses it, and a worker that comes late enters at the turn of the newest copy.

Nothing is pickled: a copy is msgpack of plain values, and the bytes of tensors behind it.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy
import torch
from torch import Tensor

from holdfast.dataplane.memory.arena import Arena
from holdfast.errors import UsageError
from holdfast.train.loop.kept_modules import KeptModules
from holdfast.train.loop.variables.late_variables import is_clock

__all__ = ["Keeping", "Kept", "Stateful"]

_HEAD = 4 * 8  # of a copy: tag of its turn, bytes of the tree, version from which on it counts, spare
_LEAST = 256 << 10  #: bytes that each copy has at least: what is kept may grow
_ALIGN = 64
_TENSOR, _TUPLE = 1, 2  # msgpack extensions
_NAMED = 64  # things that are compared by name
_PLAIN = (bool, int, float, str, bytes)


class Stateful(Protocol):
    """What `run.keep` takes."""

    def state_dict(self) -> Mapping[str, Any]:
        """All that it is made of."""

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> object:
        """Become that."""


class Kept:
    """Named values that a script keeps: read and written as attributes."""

    def __init__(self) -> None:
        self.__dict__["_values"] = {}

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(f"nothing is kept under the name {name!r}: run.keep({name}=...) does that") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._values:
            raise AttributeError(f"nothing is kept under the name {name!r}: run.keep({name}=...) does that")
        self._values[name] = value

    def __repr__(self) -> str:
        return f"Kept({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"


class Keeping:
    """All that the script keeps, and its two copies in the arena."""

    def __init__(self) -> None:
        self.values = Kept()
        self.modules = KeptModules([])  #: what was handed over and is not trained
        self.asked = False  #: the script has called `run.keep`
        self._objects: list[Stateful] = []
        self._copies: list[memoryview] = []

    def __bool__(self) -> bool:
        return bool(self._objects or self.values._values)

    def add(self, objects: Sequence[Stateful], values: Mapping[str, Any]) -> None:
        """Keep these from now on."""
        for thing in objects:
            if not (callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))):
                raise UsageError(
                    f"run.keep got a {type(thing).__name__}, which has no state_dict and load_state_dict. Keep objects "
                    "that have both, and values by name: run.keep(best=0.0)."
                )
        self.asked = True
        self._objects += objects
        self.values._values.update(values)
        self._encoded()  # what cannot be stored is said now, not at the first step

    def add_modules(self, modules: KeptModules) -> None:
        """Keep these, too: before all that the script asks for."""
        self.modules = modules
        self._objects += modules
    def find(self, objects: Sequence[Stateful]) -> None:
        """Keep these as well, which the script need not name."""
        self._objects += [thing for thing in objects if not self.holds(thing)]

    def holds(self, thing: object) -> bool:
        """Is this object kept?"""
        return any(thing is one for one in self._objects)

    def any_of(self, kind: type) -> bool:
        """Is an object of this kind kept?"""
        return any(isinstance(one, kind) for one in self._objects)

    # ------------------------------------------------------------ the arena

    def nbytes(self) -> int:
        """How much two copies take, each with room for twice of what there is; modules do not grow."""
        if not self:
            return 0
        tree, tensors = self._encoded()
        size = _HEAD + len(tree) + sum(_aligned(t.numel() * t.element_size()) for t in tensors) + _ALIGN
        modules = sum(module.nbytes() for module in self.modules)
        return 2 * _aligned(max(_LEAST, 2 * size - modules))

    def attach(self, arena: Arena) -> None:
        """Use the copies of this arena from now on."""
        if "kept" in arena.sections.spans:
            both = arena.section("kept")
            self._copies = [both[: len(both) // 2], both[len(both) // 2 :]]

    def described(self) -> list[tuple[str, str]]:
        """What all workers must agree on."""
        parts = [(f"kept object {number}", type(thing).__name__) for number, thing in enumerate(self._objects)]
        return parts + ([("kept values", ", ".join(self.values._values))] if self.values._values else [])

    def tags(self, version: int) -> set[int]:
        """Of which places whole copies are here that count by this version."""
        heads = [_head(copy) for copy in self._copies]
        return {head[0] for head in heads if head[0] and head[2] <= version}

    def digests(self) -> dict[str, int]:
        """What it holds, by name, as hashes of what that is now; readings of a clock are left out."""
        things = {f"{type(thing).__name__} ({number}) in run.keep": thing.state_dict
                  for number, thing in enumerate(self._objects)}
        found = {name: _digest(state(), name) for name, state in things.items()}
        for name, value in self.values._values.items():
            if not is_clock(value):
                found[f"run.keep({name}=...)"] = _digest(value, name)
        if len(found) <= _NAMED:
            return found
        return {"what run.keep holds": zlib.crc32(msgspec.msgpack.encode(list(found.items())))}

    def newest(self) -> int:
        """The newest place of which a whole copy is here; 0: none is."""
        return max((_head(copy)[0] for copy in self._copies), default=0)

    def write(self, tag: int, version: int) -> None:
        """Write a copy for a place, over the older of the two; it counts from this version on."""
        tree, tensors = self._encoded()
        copy = min(self._copies, key=lambda one: _head(one)[0])
        need = _HEAD + len(tree) + sum(_aligned(t.numel() * t.element_size()) for t in tensors) + _ALIGN
        if need > len(copy):
            raise UsageError(
                f"What run.keep holds has grown to {need} bytes, and {len(copy)} were set aside when training began. "
                "Keep what has about its final size then, or less of it."
            )
        head = _head(copy)
        head[0] = 0
        copy[_HEAD : _HEAD + len(tree)] = tree
        at = _aligned(_HEAD + len(tree))
        for tensor in tensors:
            size = tensor.numel() * tensor.element_size()
            if size:
                place = torch.frombuffer(copy[at : at + size], dtype=tensor.dtype).view(tensor.shape)
                place.copy_(tensor)
            at += _aligned(size)
        head[1], head[2] = len(tree), version
        head[0] = tag

    def load(self, tag: int) -> bool:
        """Become what was kept at this place. False: it is not here (any more)."""
        found = [copy for copy in self._copies if tag and _head(copy)[0] == tag]
        copy = bytearray(found[0]) if found else None
        if copy is None or _head(found[0])[0] != tag:  # somebody writes there by now
            return False
        length = _head(memoryview(copy))[1]
        at = _aligned(_HEAD + length)

        def extension(code: int, data: memoryview) -> Any:
            nonlocal at
            if code == _TUPLE:
                return tuple(_decode(bytes(data), extension))
            name, shape = msgspec.msgpack.decode(data)
            tensor = torch.empty(shape, dtype=getattr(torch, name))
            size = tensor.numel() * tensor.element_size()
            if size:
                tensor.copy_(torch.frombuffer(copy[at : at + size], dtype=tensor.dtype).view(tensor.shape))
            at += _aligned(size)
            return tensor

        states, values = _decode(bytes(copy[_HEAD : _HEAD + length]), extension)
        for thing, state in zip(self._objects, states, strict=True):
            thing.load_state_dict(state)
        self.values._values.update(values)
        return True

    def _encoded(self) -> tuple[bytes, list[Tensor]]:
        tensors: list[Tensor] = []
        states = [
            _plain(thing.state_dict(), tensors, f"object {number} ({type(thing).__name__})")
            for number, thing in enumerate(self._objects)
        ]
        values = {name: _plain(value, tensors, name) for name, value in self.values._values.items()}
        return msgspec.msgpack.encode([states, values]), tensors


def _plain(value: Any, tensors: list[Tensor], where: str) -> Any:
    """What msgpack knows; tensors are set aside, in order."""
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.device.type != "cpu":
            raise UsageError(f"run.keep cannot store {where}: a tensor that is {value.layout} on {value.device}.")
        tensors.append(value.detach())
        told = [str(value.dtype).removeprefix("torch."), list(value.shape)]
        return msgspec.msgpack.Ext(_TENSOR, msgspec.msgpack.encode(told))
    if isinstance(value, numpy.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: _plain(item, tensors, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, tuple):
        inner = [_plain(item, tensors, f"{where}[{number}]") for number, item in enumerate(value)]
        return msgspec.msgpack.Ext(_TUPLE, msgspec.msgpack.encode(inner))
    if isinstance(value, list):
        return [_plain(item, tensors, f"{where}[{number}]") for number, item in enumerate(value)]
    raise UsageError(
        f"run.keep cannot store {where}: a {type(value).__name__}. What is kept are numbers, strings, lists, dicts and "
        "tensors, and objects whose state_dict is made of those."
    )


def _digest(value: Any, where: str) -> int:
    tensors: list[Tensor] = []
    found = zlib.crc32(msgspec.msgpack.encode(_plain(value, tensors, where)))
    for tensor in tensors:
        if tensor.numel():
            found = zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data, found)
    return found


def _decode(data: bytes, extension: Any) -> Any:
    return msgspec.msgpack.decode(data, ext_hook=extension, strict=False)


def _head(copy: memoryview) -> memoryview:
    return copy[:_HEAD].cast("q")


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
