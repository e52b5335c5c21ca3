"""An ONNX file, written by hand: y = x @ w, and a copy of x, as protocol buffers have it."""

from __future__ import annotations

import struct


def field(number: int, data: bytes | int | str) -> bytes:
    """One field of a message."""
    if isinstance(data, int):
        return varint(number << 3) + varint(data)
    raw = data.encode() if isinstance(data, str) else data
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def matmul(weights: list[list[float]], batch: str | int = "n", element: int = 1) -> bytes:
    """A model with this matrix; its batch is a name (any size) or a number."""
    rows, columns = len(weights), len(weights[0])

    def value(name: str, width: int) -> bytes:
        first = field(2, batch) if isinstance(batch, str) else field(1, batch)
        shape = field(1, first) + field(1, field(1, width))
        return field(1, name) + field(2, field(1, field(1, element) + field(2, shape)))

    raw = b"".join(struct.pack("<f", number) for row in weights for number in row)
    initializer = field(1, rows) + field(1, columns) + field(2, 1) + field(8, "w") + field(9, raw)
    multiply = field(1, "x") + field(1, "w") + field(2, "y") + field(3, "m") + field(4, "MatMul")
    copy = field(1, "x") + field(2, "same") + field(3, "i") + field(4, "Identity")
    graph = (
        field(1, multiply) + field(1, copy) + field(2, "g") + field(5, initializer) + field(11, value("x", rows))
        + field(12, value("y", columns)) + field(12, value("same", rows))
    )  # fmt: skip
    return field(1, 8) + field(7, graph) + field(8, field(2, 13))
