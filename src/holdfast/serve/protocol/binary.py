"""Bytes around JSON: compressed bodies, and tensors that follow the JSON as they are (`binary_tensor_data`)."""

from __future__ import annotations

import zlib

from holdfast.serve.protocol.errors import BadRequest, shown
from holdfast.serve.protocol.limits import ProtocolLimits
from holdfast.serve.protocol.requests import Buffer

__all__ = ["HEADER_LENGTH", "Tail", "header_length", "inflate"]

#: The header that says where the JSON ends and the tensors begin.
HEADER_LENGTH = "Inference-Header-Content-Length"

_WINDOW = {"gzip": 31, "x-gzip": 31, "deflate": 15}


def inflate(body: Buffer, encoding: str | None, limits: ProtocolLimits) -> Buffer:
    """The body as it was before it was compressed. No more is unpacked than may be.

    >>> inflate(zlib.compress(b"{}"), "deflate", ProtocolLimits())
    b'{}'
    """
    if len(body) > limits.body:
        raise BadRequest(413, f"has {len(body)} bytes; at most {limits.body} are taken", "body")
    if not encoding or (name := encoding.strip().lower()) in ("", "identity"):
        return body
    if name not in _WINDOW:
        raise BadRequest(415, f"{shown(encoding)} is none of gzip, deflate, identity", "Content-Encoding")
    unpacker = zlib.decompressobj(_WINDOW[name])
    try:
        found = unpacker.decompress(body, limits.body + 1)
    except zlib.error:
        raise BadRequest(400, f"is not what Content-Encoding says: {name}", "body") from None
    if len(found) > limits.body:
        raise BadRequest(413, f"has more than {limits.body} bytes once it is unpacked", "body")
    if not unpacker.eof:
        raise BadRequest(400, f"ends within what was compressed ({name})", "body")
    if unpacker.unused_data:  # a second member: who takes any number of them can be kept busy with empty ones
        raise BadRequest(400, f"has {len(unpacker.unused_data)} bytes after what was compressed", "body")
    return found


def header_length(value: str, body: int, limits: ProtocolLimits) -> int:
    """Where the JSON ends, as the header says it: digits and nothing else, and no more than there is.

    >>> header_length("12", 20, ProtocolLimits())
    12
    """
    if not (value.isascii() and value.isdigit() and len(value) <= 12):
        raise BadRequest(400, f"is {shown(value)}; it is a number of bytes, in digits", HEADER_LENGTH)
    length = int(value)
    if length > body:
        raise BadRequest(400, f"is {length}, and the body has {body} bytes", HEADER_LENGTH)
    if length > limits.json_head:
        raise BadRequest(413, f"is {length}; the JSON has at most {limits.json_head} bytes", HEADER_LENGTH)
    return length


class Tail:
    """The bytes after the JSON, of which each input takes its own."""

    def __init__(self, data: Buffer) -> None:
        self._data = memoryview(data)
        self._at = 0

    def take(self, size: int, field: str) -> memoryview:
        """The next bytes."""
        begin, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise BadRequest(
                400, f"is {size}, and {len(self._data) - begin} bytes are left after the JSON", field
            )  # fmt: skip
        return self._data[begin : self._at]

    def end(self) -> None:
        """All of them are somebody's."""
        if self._at != len(self._data):
            raise BadRequest(400, f"has {len(self._data) - self._at} bytes that belong to no input", "body")
