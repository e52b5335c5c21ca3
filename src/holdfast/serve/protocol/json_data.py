"""The `data` of a tensor in JSON: flat or nested as its shape is, row-major. Text in, bytes out.

The text is decoded straight into lists of the right type, so that a wrong element is refused where it stands.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec

from holdfast.serve.protocol.errors import BadRequest, malformed
from holdfast.serve.protocol.limits import ProtocolLimits
from holdfast.serve.protocol.tensors import check_lengths, pack, pack_bytes, place

__all__ = ["from_json"]

_OPENING = re.compile(rb"[\[ \t\r\n]*")


def from_json(
    text: msgspec.Raw, datatype: str, shape: Sequence[int], count: int, field: str, limits: ProtocolLimits
) -> bytes:
    """The bytes of `count` elements that are written as JSON.

    >>> from_json(msgspec.Raw(b"[[1, 2], [3, 4]]"), "UINT8", [2, 2], 4, "inputs[0].data", ProtocolLimits())
    b'\\x01\\x02\\x03\\x04'
    """
    if datatype == "BF16":
        raise BadRequest(400, "BF16 travels as bytes only: send it as binary data", field)
    opening = _OPENING.match(text)
    depth = opening[0].count(b"[") if opening else 0
    # Of an array without elements, the innermost lists are those of its first dimension without any.
    full = len(shape) if count else list(shape).index(0) + 1
    if depth != 1 and depth != full:
        raise BadRequest(
            400, f"is nested {depth} deep; shape {list(shape)} is written flat or nested {full} deep", field
        )
    try:
        values = _decoder(_KINDS[datatype], depth).decode(text)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise malformed(error, field) from None
    if depth != full:
        if len(values) != count:
            raise BadRequest(400, f"has {len(values)} values; shape {list(shape)} has {count}", field)
        shape = (count,)
    elif depth == 0:
        values = [values]
    else:
        values = _flat(values, shape[:depth], field)
    if datatype == "BYTES":
        return _strings(values, shape, field, limits)
    return pack(datatype, values, shape, field)


#: What an element is in JSON.
_KINDS: dict[str, type] = {
    "BOOL": bool, "FP16": float, "FP32": float, "FP64": float, "BYTES": str,
    **dict.fromkeys(("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"), int),
}  # fmt: skip


@functools.cache
def _decoder(kind: Any, depth: int) -> msgspec.json.Decoder[Any]:
    for _ in range(depth):
        kind = list[kind]
    return msgspec.json.Decoder(kind)


def _flat(values: list[Any], shape: Sequence[int], field: str) -> list[Any]:
    """One list of all elements; every list has the length that the shape says."""
    if len(values) != shape[0]:
        raise BadRequest(400, f"has {len(values)} values; shape {list(shape)} has {shape[0]} there", field)
    for k in range(1, len(shape)):
        size = shape[k]
        for at, inner in enumerate(values):
            if len(inner) != size:
                raise BadRequest(
                    400, f"has {len(inner)} values; shape {list(shape)} has {size} there", field + place(at, shape[:k])
                )
        values = list(chain.from_iterable(values))
    return values


def _strings(values: list[str], shape: Sequence[int], field: str, limits: ProtocolLimits) -> bytes:
    encoded = [value.encode() for value in values]
    check_lengths(encoded, field, shape, limits)
    return pack_bytes(encoded)
