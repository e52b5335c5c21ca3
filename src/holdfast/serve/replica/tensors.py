"""Tensors of a batch in memory: as arrays for the model, as bytes for the front door.

Strings (BYTES) lie there as the Open Inference Protocol has them: four bytes of length before each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from holdfast.model.signature import DATATYPES, TensorSpec
from holdfast.serve.replica.batch_memory import aligned
from holdfast.serve.replica.messages import Placed

__all__ = ["arrays", "not_finite", "pack", "place"]

Array = numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.generic]]


def arrays(specs: Sequence[TensorSpec], placed: Sequence[Placed], memory: memoryview) -> dict[str, Array]:
    """The inputs of a batch, read where they lie; they are valid until the next batch."""
    made: dict[str, Array] = {}
    for spec, one in zip(specs, placed, strict=True):
        data = memory[one.begin : one.begin + one.size]
        if spec.datatype == "BYTES":
            made[spec.name] = _strings(data, one.shape)
        else:
            made[spec.name] = numpy.frombuffer(data, DATATYPES[spec.datatype]).reshape(one.shape)
    return made


def _strings(data: memoryview, shape: tuple[int, ...]) -> Array:
    found, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        found.append(bytes(data[at + 4 : at + 4 + size]))
        at += 4 + size
    made = numpy.empty(len(found), object)
    made[:] = found
    return made.reshape(shape)


def pack(spec: TensorSpec, given: object, items: int, *, batched: bool) -> tuple[Array | bytes, Placed]:
    """An output as it is to be placed, with the shape that it has. Raises ValueError: it is not what it should be."""
    array = numpy.asarray(given)
    if spec.datatype == "BYTES":
        if array.dtype.kind not in "SUO":
            raise ValueError(f"output {spec.name} is {array.dtype}, and its signature says BYTES")
    elif array.dtype != numpy.dtype(DATATYPES[spec.datatype]):
        raise ValueError(f"output {spec.name} is {array.dtype}, and its signature says {spec.datatype}")
    if not spec.fits(array.shape):
        raise ValueError(f"output {spec.name} has the shape {list(array.shape)}, and its signature says "
                         f"{list(spec.shape)}")  # fmt: skip
    if batched and array.shape[0] != items:
        raise ValueError(f"output {spec.name} has {array.shape[0]} items, and the batch has {items}")
    if spec.datatype != "BYTES":
        plain = numpy.ascontiguousarray(array)
        return plain, Placed(0, plain.nbytes, array.shape)
    return _packed(array, items if batched else 1)


def _packed(array: Array, items: int) -> tuple[bytes, Placed]:
    data, ends = bytearray(), []
    for item in array.reshape(items, -1) if array.size else []:
        for text in item:
            raw = text if isinstance(text, bytes) else str(text).encode()
            data += len(raw).to_bytes(4, "little") + raw
        ends.append(len(data))
    return bytes(data), Placed(0, len(data), array.shape, tuple(ends))


def place(packed: Sequence[tuple[Array | bytes, Placed]]) -> tuple[list[Placed], int]:
    """Where outputs go, one behind the other, and how much room they take."""
    placed, at = [], 0
    for _, one in packed:
        placed.append(Placed(at, one.size, one.shape, one.ends))
        at = aligned(at + one.size)
    return placed, at


def not_finite(packed: Sequence[tuple[Array | bytes, Placed]], *, batched: bool) -> tuple[int, ...]:
    """The items in whose outputs there is a value that is NaN or infinite; of a model without batches item 0."""
    found: set[int] = set()
    for array, _ in packed:
        if isinstance(array, bytes) or array.dtype.kind != "f":
            continue
        if numpy.isfinite(array).all():
            continue
        if not batched:
            return (0,)
        rows = ~numpy.isfinite(array.reshape(len(array), -1)).all(axis=1)
        found.update(numpy.flatnonzero(rows).tolist())
    return tuple(sorted(found))
