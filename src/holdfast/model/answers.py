"""Answers of a user's code as arrays: what NumPy makes of them, by the names that the signature has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from holdfast.errors import UsageError
from holdfast.model.signature import datatype_of, dtype_of

__all__ = ["as_arrays", "as_bytes", "as_datatype", "shapes_of"]

Array = numpy.ndarray[Any, Any]


def as_arrays(value: Any, names: Sequence[str] = ()) -> dict[str, Array]:
    """A dict of arrays out of what was returned: a dict, or one array, which is called `output` (or as it is named).

    Raises UsageError where there is no array in it, or one is missing.
    """
    if not isinstance(value, Mapping):
        value = {names[0] if len(names) == 1 else "output": value}
    for name in names:
        if name not in value:
            raise UsageError(f"The model returned {', '.join(map(str, value)) or 'nothing'}, and no {name}.")
    arrays = {}
    for name in names or value:
        item = value[name]
        if hasattr(item, "detach"):  # a tensor of torch, also on another device
            item = item.detach().cpu()
        array = numpy.asarray(item)
        try:
            datatype_of(array.dtype)
        except KeyError:
            raise UsageError(f"The model returned a {array.dtype} as {name}, for which there is no type.") from None
        arrays[str(name)] = as_bytes(array) if array.dtype.kind in "SUO" else array
    return arrays


def as_bytes(array: Array) -> Array:
    """Texts as objects of bytes, in UTF-8. Raises UsageError where something is no text."""
    made = numpy.empty(array.shape, dtype=object)
    flat = made.reshape(-1)
    for at, item in enumerate(array.reshape(-1).tolist()):
        if isinstance(item, str):
            item = item.encode()
        if not isinstance(item, bytes):
            raise UsageError(f"The model returned a {type(item).__name__} among texts.")
        flat[at] = item
    return made


def as_datatype(array: Array, datatype: str) -> Array:
    """The same numbers in the type that the signature has."""
    wanted = dtype_of(datatype)
    return array if array.dtype == wanted or wanted.kind == "O" else array.astype(wanted)


def shapes_of(arrays: Mapping[str, Array]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Datatype and shape of each."""
    return {name: (datatype_of(array.dtype), array.shape) for name, array in arrays.items()}
