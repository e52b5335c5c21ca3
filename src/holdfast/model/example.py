"""An example: a request for a model, as the Open Inference Protocol writes it in JSON, and arrays out of one.

    {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [0.1, 0.2, 0.3]}]}

Whoever writes one by hand may leave the protocol away: {"x": [[0.1, 0.2, 0.3]]}. Numbers with a point are FP32 then,
whole ones INT64, texts BYTES.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy

from holdfast.errors import UsageError
from holdfast.model.signature import DATATYPES, dtype_of

__all__ = ["Example", "decode_example", "encode_example", "of_size"]

Array = numpy.ndarray[Any, Any]


class Example(NamedTuple):
    """What goes into a model, by name."""

    arrays: dict[str, Array]
    datatypes: dict[str, str]

    def rows(self) -> int:
        """How many items it has; 0: the inputs do not agree on it."""
        sizes = {array.shape[0] if array.ndim else 0 for array in self.arrays.values()}
        return sizes.pop() if len(sizes) == 1 else 0


def of_size(example: Example, rows: int, wider: Mapping[str, tuple[int, ...]] | None = None) -> Example:
    """The same with so many items, repeated where there are fewer, and one more in each of those `wider` dimensions."""
    arrays = {}
    for name, array in example.arrays.items():
        if rows >= 0:
            array = numpy.take(array, numpy.arange(rows) % max(len(array), 1), axis=0)
        for dimension in (wider or {}).get(name, ()):
            array = numpy.concatenate([array, numpy.take(array, [0], axis=dimension)], axis=dimension)
        arrays[name] = numpy.ascontiguousarray(array).reshape(array.shape)
    return Example(arrays, example.datatypes)


def encode_example(example: Example) -> bytes:
    """The request, in JSON."""
    inputs = [
        {"name": name, "shape": list(array.shape), "datatype": example.datatypes[name],
         "data": _plain(array, example.datatypes[name])}
        for name, array in example.arrays.items()
    ]  # fmt: skip
    return json.dumps({"inputs": inputs}, allow_nan=False).encode() + b"\n"


def decode_example(data: bytes, where: object) -> Example:
    """What is in such a file. Raises UsageError, which says what is wrong with it."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON ({error}). {_FORM}") from None
    if not isinstance(tree, dict) or not tree:
        raise UsageError(f"{where} is a {type(tree).__name__} without names. {_FORM}")
    inputs = tree.get("inputs")
    if not isinstance(inputs, list) or not all(isinstance(item, dict) and "datatype" in item for item in inputs):
        return _by_hand(tree, where)
    arrays, datatypes = {}, {}
    for item in inputs:
        try:
            name, datatype = str(item["name"]), item["datatype"]
            if datatype not in DATATYPES:
                raise ValueError(f"there is no type {datatype!r}")
            arrays[name] = _array(item["data"], datatype).reshape(item["shape"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise UsageError(f"{where}: input {item.get('name')!r} cannot be read ({error}). {_FORM}") from None
        datatypes[name] = datatype
    return Example(arrays, datatypes)


_FORM = 'Write a request as {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [0.1, 0.2]}]}.'


def _by_hand(tree: dict[str, Any], where: object) -> Example:
    arrays, datatypes = {}, {}
    for name, value in tree.items():
        try:
            array = numpy.array(value)
        except ValueError as error:
            raise UsageError(f"{where}: {name!r} is no array ({error}). {_FORM}") from None
        if array.dtype.kind not in "bifU":
            raise UsageError(f"{where}: {name!r} has no numbers or texts in it. {_FORM}")
        datatypes[name] = {"b": "BOOL", "i": "INT64", "f": "FP32", "U": "BYTES"}[array.dtype.kind]
        arrays[name] = _array(value, datatypes[name])
    return Example(arrays, datatypes)


def _array(value: Any, datatype: str) -> Array:
    made: Array
    if datatype == "BYTES":
        texts = numpy.array(value, dtype=object)
        flat = [item.encode() if isinstance(item, str) else item for item in texts.reshape(-1)]
        if not all(isinstance(item, bytes) for item in flat):
            raise ValueError("BYTES are texts in JSON")
        made = numpy.empty(len(flat), dtype=object)
        made[:] = flat
        return made.reshape(texts.shape)
    if datatype == "BF16":  # the upper half of an FP32, rounded to even
        bits = numpy.array(value, dtype="<f4").view("<u4").astype("<u8")
        made = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")
        return made
    made = numpy.array(value, dtype=dtype_of(datatype))
    return made


def _plain(array: Array, datatype: str) -> list[Any]:
    flat = array.reshape(-1)
    if datatype == "BYTES":
        return [bytes(item).decode("utf-8", "replace") for item in flat]
    if datatype == "BF16":
        flat = (flat.astype("<u4") << 16).view("<f4")
    if flat.dtype.kind == "f":
        flat = numpy.nan_to_num(flat)
        if flat.dtype.itemsize < 8:  # the shortest that reads back as the same number
            return [float(str(item)) for item in flat]
    return list(flat.tolist())
