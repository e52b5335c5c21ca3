"""Tensors as bytes: how many a shape needs, whether they are what they say, and what they are as plain values.

Of numbers, what does not fit its datatype is refused and never wrapped, rounded to another whole number, or made
infinite. JSON has no NaN and no infinities: a request cannot have them there, and in an answer they are null. Binary
tensors carry them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy

from holdfast.model.signature import DATATYPES, dtype_of
from holdfast.serve.protocol.errors import BadRequest, shown
from holdfast.serve.protocol.limits import ProtocolLimits
from holdfast.serve.protocol.requests import Buffer

__all__ = [
    "ITEMSIZE", "check_lengths", "check_raw", "elements", "pack", "pack_bytes", "place", "unpack", "unpack_bytes",
]  # fmt: skip

#: Bytes of an element; 0 where that varies.
ITEMSIZE = {name: 0 if name == "BYTES" else numpy.dtype(code).itemsize for name, code in DATATYPES.items()}

#: How the standard library calls what is packed from plain values.
_CODES = {
    "BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "INT8": "b", "INT16": "h", "INT32": "i",
    "INT64": "q", "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip
_LENGTH = struct.Struct("<I")


def elements(datatype: str, shape: Sequence[int], field: str, limits: ProtocolLimits) -> int:
    """How many elements a tensor has that says it is of this datatype and shape.

    >>> elements("FP32", [2, 3], "inputs[0]", ProtocolLimits())
    6
    """
    if datatype not in ITEMSIZE:
        raise BadRequest(400, f"{shown(datatype)} is none of {', '.join(DATATYPES)}", f"{field}.datatype")
    if len(shape) > limits.dims:
        raise BadRequest(400, f"has {len(shape)} dimensions; at most {limits.dims} are taken", f"{field}.shape")
    found = 1
    for k, size in enumerate(shape):
        if not 0 <= size <= limits.elements:
            raise BadRequest(
                400, f"is {shown(size)}; a dimension is between 0 and {limits.elements}", f"{field}.shape[{k}]"
            )
        found *= size
    if found > limits.elements:
        raise BadRequest(413, f"has {found} elements; at most {limits.elements} are taken", f"{field}.shape")
    return found


def check_raw(
    datatype: str, shape: Sequence[int], count: int, data: Buffer, field: str, limits: ProtocolLimits
) -> None:
    """Are these the bytes of so many elements? `field` is where they came."""
    size = ITEMSIZE[datatype]
    if not size:
        _check_bytes(count, data, field, limits)
    elif len(data) != count * size:
        raise BadRequest(400, f"has {len(data)} bytes; {datatype} of shape {list(shape)} has {count * size}", field)
    elif datatype == "BOOL" and bytes(data).translate(None, b"\0\1"):
        raise BadRequest(400, "has a byte that is neither 0 nor 1 in a tensor of BOOL", field)


def _check_bytes(count: int, data: Buffer, field: str, limits: ProtocolLimits) -> None:
    at, most = 0, len(data)
    if count * 4 > most:  # before anything is looked at: each has a length at least
        raise BadRequest(400, f"has {most} bytes; {count} elements of BYTES need {count * 4} for their lengths", field)
    for k in range(count):
        if at + 4 > most:
            raise BadRequest(400, f"ends before the length of element {k} of {count}", field)
        (length,) = _LENGTH.unpack_from(data, at)
        if length > limits.bytes_length:
            raise BadRequest(413, f"element {k} has {length} bytes; at most {limits.bytes_length} are taken", field)
        at += 4 + length
        if at > most:
            raise BadRequest(400, f"element {k} says it has {length} bytes, and {most - at + length} are left", field)
    if at != most:
        raise BadRequest(400, f"has {most - at} bytes after its last element", field)


def pack(datatype: str, values: Sequence[Any], shape: Sequence[int], field: str) -> bytes:
    """Plain numbers as bytes. They are of the right Python type; that they are in range is seen here.

    `shape` is that in which they are written, to say where one stands.

    >>> pack("INT8", [1, -1], [2], "inputs[0].data")
    b'\\x01\\xff'
    """
    code = _CODES[datatype]
    try:
        return struct.pack(f"<{len(values)}{code}", *values)
    except (struct.error, OverflowError):
        bad = next(k for k, value in enumerate(values) if not _packs(code, value))
        message = f"{shown(values[bad])} is out of range for {datatype}"
        raise BadRequest(400, message, field + place(bad, shape)) from None


def _packs(code: str, value: Any) -> bool:
    try:
        struct.pack("<" + code, value)
    except (struct.error, OverflowError):
        return False
    return True


def place(index: int, shape: Sequence[int]) -> str:
    """Where an element stands that is written in this shape.

    >>> place(5, (2, 3)), place(5, (6,)), place(0, ())
    ('[1][2]', '[5]', '')
    """
    told = ""
    for size in reversed(shape):
        index, inside = divmod(index, size)
        told = f"[{inside}]{told}"
    return told


def pack_bytes(values: Sequence[bytes]) -> bytes:
    """Elements of type BYTES, one after the other.

    >>> pack_bytes([b"ab", b""])
    b'\\x02\\x00\\x00\\x00ab\\x00\\x00\\x00\\x00'
    """
    parts = []
    for value in values:
        parts.append(_LENGTH.pack(len(value)))
        parts.append(value)
    return b"".join(parts)


def check_lengths(values: Sequence[bytes], field: str, shape: Sequence[int], limits: ProtocolLimits) -> None:
    """Is every element of type BYTES short enough?"""
    for k, value in enumerate(values):
        if len(value) > limits.bytes_length:
            message = f"has {len(value)} bytes; at most {limits.bytes_length} are taken"
            raise BadRequest(413, message, field + place(k, shape))


def unpack_bytes(data: Buffer) -> list[bytes]:
    """The elements again, of data that is whole.

    >>> unpack_bytes(pack_bytes([b"ab", b""]))
    [b'ab', b'']
    """
    found, at = [], 0
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        found.append(bytes(data[at + 4 : at + 4 + length]))
        at += 4 + length
    return found


def unpack(name: str, datatype: str, data: Buffer) -> list[Any]:
    """An output as plain values, one after the other, for JSON."""
    if datatype == "BF16":
        raise BadRequest(400, "BF16 travels as bytes only: ask for binary_data", f"outputs[{name}]")
    if datatype != "BYTES":
        return numpy.frombuffer(data, dtype_of(datatype)).tolist()  # type: ignore[no-any-return]
    try:
        return [value.decode() for value in unpack_bytes(data)]
    except UnicodeDecodeError:
        raise BadRequest(400, "is not UTF-8, so JSON cannot hold it: ask for binary_data", f"outputs[{name}]") from None
