"""Where bytes become tensors: values in shared memory, and rows of a table.

A tensor over shared memory keeps a *hold* on it: an object that lives for as long as any tensor looks at those
bytes (a slice of it, a reshaped view, what autograd has saved). With it goes the tie of the place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import UsageError
from holdfast.store.heap import Extent
from holdfast.store.messages import Meta
from holdfast.store.region import Region, Tie

__all__ = [
    "Rows", "TensorCache", "checked_rows", "checked_tensor", "coalesced", "copy_in_pieces", "meta_of", "nbytes",
    "row_numbers", "tensor_at",
]  # fmt: skip


_MOST_MADE = 256  #: tensors that are kept, per region
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
        torch.uint8, torch.bool,
    )
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
#: What NumPy calls them; it has no bfloat16, but numbers of the same size.
_TYPES = {name: np.dtype("int16" if name == "bfloat16" else name).str for name in _DTYPES}


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Some rows of a table: a row-sparse value. A row may be named twice: then its values are added.

    >>> Rows([3, 5], torch.ones(2, 4)).indices
    tensor([3, 5])
    """

    indices: Tensor
    values: Tensor

    def __init__(self, indices: Any, values: Tensor) -> None:
        object.__setattr__(self, "indices", row_numbers(indices))
        object.__setattr__(self, "values", values)
        if values.dim() == 0 or values.shape[0] != len(self.indices):
            raise UsageError(
                f"Rows has {len(self.indices)} indices and values of shape {tuple(values.shape)}: give one row of "
                "values for each index."
            )


class _TiedBytes:
    """A stretch of a region, and its tie, alive for as long as a tensor looks at it."""

    def __init__(self, region: Region, place: Extent, meta: Meta, tie: Tie | None = None) -> None:
        self._looking = memoryview(region.run(place))  # a mapping that somebody looks at must not go away
        self._tie = tie
        # "False": may be written. Where it may not, the mapping says so (torch knows no tensors that are read-only).
        data = region.start(place), False
        self.__array_interface__ = {"shape": meta.shape, "typestr": _TYPES[meta.dtype], "data": data, "version": 3}


def tensor_at(region: Region, place: Extent, meta: Meta, tie: Tie | None = None) -> Tensor:
    """The value that lies there. Raises UsageError where no such value can."""
    if nbytes(meta) != place.size:
        raise UsageError(f"{meta} does not fit {place.size} bytes. Both sides must be of one version.")
    if not place.size:
        return torch.empty(meta.shape, dtype=_DTYPES[meta.dtype])
    tensor = torch.from_numpy(np.asarray(_TiedBytes(region, place, meta, tie)))
    return tensor.view(torch.bfloat16) if meta.dtype == "bfloat16" else tensor


class TensorCache:
    """Tensors over places of a region that come up again and again: making one costs more than a small copy."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._made: dict[tuple[Extent, str, tuple[int, ...]], Tensor] = {}

    def at(self, place: Extent, meta: Meta) -> Tensor:
        """The value that lies there."""
        found = self._made.get((place, meta.dtype, meta.shape))
        if found is None:
            if len(self._made) >= _MOST_MADE:
                self._made.clear()
            found = self._made[place, meta.dtype, meta.shape] = tensor_at(self._region, place, meta)
        return found

    def clear(self) -> None:
        """Look away, so that the memory can be unmapped."""
        self._made.clear()


def meta_of(tensor: Tensor, by: str) -> Meta:
    """What the store notes of a value."""
    return Meta(_NAMES.get(tensor.dtype) or str(tensor.dtype), tuple(tensor.shape), by)


def nbytes(meta: Meta) -> int:
    """How many bytes a value has."""
    if meta.dtype not in _DTYPES or min(meta.shape, default=0) < 0:
        raise UsageError(f"There is no value like {meta}. Both sides must be of one version.")
    return math.prod(meta.shape) * _DTYPES[meta.dtype].itemsize


def checked_tensor(value: object, verb: str, key: str) -> Tensor:
    """A tensor whose bytes can be stored as they are. Raises UsageError."""
    if not isinstance(value, Tensor):
        raise UsageError(
            f"{verb} of key {key!r} was given a {type(value).__name__}: give a torch.Tensor"
            f"{', or Rows(indices, values)' if verb == 'push' else ''}."
        )
    if value.layout is not torch.strided or value.dtype not in _DTYPES.values():
        raise UsageError(
            f"{verb} of key {key!r} was given a tensor of layout {value.layout} and dtype {value.dtype}: give a dense "
            "one of real numbers; for rows of a table there is Rows(indices, values)."
        )
    return value.detach()


def row_numbers(rows: Any) -> Tensor:
    """Numbers of rows, in whatever they were given. Raises UsageError where they are anything but whole numbers."""
    if isinstance(rows, range):
        return torch.arange(rows.start, rows.stop, rows.step) if rows else torch.empty(0, dtype=torch.int64)
    if isinstance(rows, slice):
        raise UsageError(
            f"Row numbers were given as {rows}, which leaves out silently what does not exist. Give a range, such as "
            f"range({rows.start or 0}, {rows.stop if rows.stop is not None else 1000})."
        )
    try:
        given = torch.as_tensor(rows).detach().flatten()
    except (TypeError, ValueError, RuntimeError):
        raise UsageError(
            f"Row numbers were given as a {type(rows).__name__} that is no list of numbers. Give a list of ints, or an "
            "int64 tensor."
        ) from None
    if given.dtype is torch.bool and len(given):
        raise UsageError(
            f"Row numbers were given as a mask of {len(given)} bools. Give the numbers of the rows that are meant: "
            "mask.nonzero().flatten()."
        )
    if (given.is_floating_point() or given.is_complex()) and len(given):  # an empty list is one of floats
        kind, first = str(given.dtype).removeprefix("torch."), given[0].item()
        raise UsageError(
            f"Row numbers were given as {kind}, the first is {first:g}. Give whole numbers: a list of ints, or an "
            "int64 tensor."
        )
    return given.to(torch.int64)


def checked_rows(indices: Tensor, meta: Meta, key: str) -> None:
    """Do these rows exist? Raises UsageError."""
    if not meta.shape:
        raise UsageError(f"Key {key!r} is a single number and has no rows. Push and pull it whole.")
    if len(indices) and (int(indices.min()) < 0 or int(indices.max()) >= meta.shape[0]):
        bad = indices[(indices < 0) | (indices >= meta.shape[0])]
        raise UsageError(
            f"Row {int(bad[0])} of key {key!r} does not exist: it has rows 0 to {meta.shape[0] - 1}. "
            f"{len(bad)} of the {len(indices)} row numbers are wrong."
        )


def coalesced(indices: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Every row once, in order of its number; the values of a row that was named twice are added."""
    unique, place = torch.unique(indices, return_inverse=True)
    total = torch.zeros((len(unique), *values.shape[1:]), dtype=values.dtype)
    return unique, total.index_add_(0, place, values)


def copy_in_pieces(target: Tensor, source: Tensor, size: int, told: Callable[[int], None]) -> None:
    """Copy, and say after each `size` bytes how many are there. The two are of one shape and dtype."""
    if source.is_contiguous() and source.device.type == "cpu":
        flat, out, step = source.view(-1), target.view(-1), max(1, size // target.element_size())
        for begin in range(0, flat.numel(), step):
            out[begin : begin + step].copy_(flat[begin : begin + step])
            told(min(flat.numel(), begin + step) * target.element_size())
    else:
        target.copy_(source)
        told(target.nbytes)
