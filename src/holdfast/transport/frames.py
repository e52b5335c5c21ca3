"""Frames: what travels between hosts. A checked header of 32 bytes, a little msgpack, and raw bytes. Pure.

    0      4     5    6       8             16        24     28     32
    | HFD1 | kind | 0 | meta | generation  | body    | 0    | crc  | meta ... | body ...

All numbers are little-endian and unsigned. Rules:

* every field is checked before anything is made of it: what a length says is never allocated before it
  was found to be within the bound of its kind;
* the checksum covers the header, so a reader that lost its place sees it at once. It is no proof of who
  sent the frame: who may speak at all is decided before the first frame (`handshake`);
* every frame carries its generation, and a connection belongs to one: a frame of another is refused;
* the meaning of meta and body is the receiver's business. Nothing is unpickled.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Container
from enum import IntEnum
from typing import NamedTuple

from holdfast.errors import FrameError

__all__ = ["HEADER", "MAX_BODY", "MAX_META", "Frame", "FrameParser", "Header", "Kind", "pack", "unpack"]

#: Bytes of a header.
HEADER = 32
#: Most bytes of the part that is msgpack.
MAX_META = 60_000

_MIB = 1 << 20
_MAGIC = b"HFD1"
_FIELDS = struct.Struct("<4sBBHQQI")
_CHECKSUM = struct.Struct("<I")
_MOST = (1 << 64) - 1


class Kind(IntEnum):
    """What a frame is."""

    CONTROL = 1  #: a message between the coordinator and a host's agent
    ROWS = 2  #: where a host's workers stand
    FACTS = 3  #: what a lane says beside its gradient: loss, count, presence, buffers
    SETTINGS = 4  #: learning rates and scheduler state of a step
    PIECE = 5  #: partial sums of a slice, on their way to its primary
    SUM = 6  #: the finished sum of a slice, on its way to every host
    TABLE = 7  #: results of the parts of an evaluation
    STATE = 8  #: a piece of the state
    PROBE = 9  #: a measurement of the network
    BYE = 10  #: the last frame: this end is meant
    PAST = 11  #: what an evaluation that is over has given
    PUSH = 12  #: a part of a lane's gradient, in relaxed modes, on its way to its owners
    PUSHED = 13  #: that all of it is there, and what the lane says beside it
    SLICES = 14  #: new parameters, on their way to a host that computes with them
    CLOCKS = 15  #: how far all lanes are, with what is published beside parameters
    HELD = 16  #: a replica holds this version
    STORE = 17  #: a message of the parameter store, with bytes of a value
    PART = 18  #: bytes that belong before the body of the next frame, where that is too large for one
    REPLICA = 19  #: what a server and a replica on another machine say to each other


#: Most bytes of the raw part, by kind.
MAX_BODY = {
    Kind.CONTROL: _MIB,
    Kind.ROWS: _MIB,
    Kind.FACTS: 64 * _MIB,
    Kind.SETTINGS: 16 * _MIB,
    Kind.PIECE: 64 * _MIB,
    Kind.SUM: 64 * _MIB,
    Kind.TABLE: 16 * _MIB,
    Kind.STATE: 64 * _MIB,
    Kind.PROBE: 64 * _MIB,
    Kind.BYE: 0,
    Kind.PAST: 64 * 1024,
    Kind.PUSH: 64 * _MIB,
    Kind.PUSHED: 64 * _MIB,
    Kind.SLICES: 64 * _MIB,
    Kind.CLOCKS: 64 * _MIB,
    Kind.HELD: 0,
    Kind.STORE: _MIB,
    Kind.PART: 64 * _MIB,
    Kind.REPLICA: 64 * 1024,
}


class Header(NamedTuple):
    """A header that was checked: `meta` and `body` are the lengths of what follows it."""

    kind: Kind
    meta: int
    generation: int
    body: int


class Frame(NamedTuple):
    """A whole frame."""

    header: Header
    meta: bytes
    body: bytes


def pack(kind: Kind, generation: int, meta: bytes = b"", body: int = 0) -> bytes:
    """Header and meta of a frame whose raw part has `body` bytes; that part is sent after it.

    >>> len(pack(Kind.SUM, 7, b"meta", 1000))
    36
    """
    if len(meta) > MAX_META:
        raise ValueError(f"{len(meta)} bytes of meta: at most {MAX_META}")
    if not 0 <= body <= MAX_BODY[kind]:
        raise ValueError(f"a body of {body} bytes: {kind.name} takes 0 to {MAX_BODY[kind]}")
    if not 0 <= generation <= _MOST:
        raise ValueError(f"generation {generation}: must be 0 to {_MOST}")
    fields = _FIELDS.pack(_MAGIC, kind, 0, len(meta), generation, body, 0)
    return fields + _CHECKSUM.pack(zlib.crc32(fields)) + meta


def unpack(data: bytes | bytearray | memoryview, *, generation: int | None = None) -> Header:
    """Check the 32 bytes of a header. With `generation`, a frame of any other is refused. Raises FrameError.

    >>> unpack(pack(Kind.SUM, 7, b"meta", 1000)[:HEADER])
    Header(kind=<Kind.SUM: 6>, meta=4, generation=7, body=1000)
    """
    if len(data) != HEADER:
        raise FrameError(f"a header of {len(data)} bytes, where {HEADER} are due")
    magic, number, zero, meta, sent_in, body, null = _FIELDS.unpack_from(data)
    if magic != _MAGIC:
        raise FrameError(f"it begins with {magic!r}, not with {_MAGIC!r}")
    (checksum,) = _CHECKSUM.unpack_from(data, _FIELDS.size)
    if checksum != zlib.crc32(memoryview(data)[: _FIELDS.size]):
        raise FrameError("the checksum of its header is wrong")
    if zero or null:
        raise FrameError("a field of its header that must be zero is not")
    if number not in _KINDS:
        raise FrameError(f"its kind is {number}, which nobody knows")
    kind = _KINDS[number]
    if meta > MAX_META:
        raise FrameError(f"it announces {meta} bytes of meta; at most {MAX_META} are taken")
    if body > MAX_BODY[kind]:
        raise FrameError(f"it announces a body of {body} bytes; {kind.name} takes at most {MAX_BODY[kind]}")
    if generation is not None and sent_in != generation:
        raise FrameError(f"it is of generation {sent_in}, on a connection of generation {generation}")
    return Header(kind, meta, sent_in, body)


_KINDS = {int(kind): kind for kind in Kind}


class FrameParser:
    """Frames out of a stream of bytes that comes in pieces of any size.

    >>> parser = FrameParser()
    >>> parser.feed(pack(Kind.CONTROL, 1, b"m", 2)), parser.wanted
    ([], 2)

    Who reads no more than `wanted` bytes at a time never holds more than one frame. The first FrameError is final:
    after it nobody knows where a frame begins, so every further call raises it again.
    """

    def __init__(self, *, kinds: Container[Kind] = frozenset(Kind), generation: int | None = None) -> None:
        self._kinds = kinds
        self._generation = generation
        self._buffer = bytearray()
        self._header: Header | None = None
        self._broken: FrameError | None = None

    @property
    def wanted(self) -> int:
        """How many bytes are missing for the header, or for all that follows the header."""
        due = HEADER if self._header is None else self._header.meta + self._header.body
        return due - len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """The frames that are whole now. Raises FrameError."""
        if self._broken is not None:
            raise self._broken
        self._buffer += data
        frames: list[Frame] = []
        try:
            while self.wanted <= 0:
                if self._header is None:
                    self._header = self._begin()
                else:
                    frames.append(self._end(self._header))
                    self._header = None
        except FrameError as error:
            self._broken = error
            self._buffer.clear()
            raise
        return frames

    def _begin(self) -> Header:
        header = unpack(self._buffer[:HEADER], generation=self._generation)
        if header.kind not in self._kinds:
            raise FrameError(f"its kind is {header.kind.name}, which has no business on this connection")
        del self._buffer[:HEADER]
        return header

    def _end(self, header: Header) -> Frame:
        end = header.meta + header.body
        frame = Frame(header, bytes(self._buffer[: header.meta]), bytes(self._buffer[header.meta : end]))
        del self._buffer[:end]
        return frame
