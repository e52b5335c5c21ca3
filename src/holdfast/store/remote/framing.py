"""Framing: messages of the store between hosts, each in a frame, with bytes of a value behind it.

A frame's meta is the message, its body the bytes. Who opens a letter reads the message first, and then says where the
bytes are to go; nothing is allocated for what a stranger announces. No torch here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from holdfast.errors import FrameError
from holdfast.store.messages import Answer, Say, answers, pack, says
from holdfast.transport.frames import Kind
from holdfast.transport.frames import pack as frame
from holdfast.transport.stream import Stream, next_frame

__all__ = ["FramedMessages", "head"]

_T = TypeVar("_T")


def head(message: Say | Answer, size: int = 0) -> bytes:
    """The beginning of a letter; `size` bytes of a value follow it."""
    return frame(Kind.STORE, 0, pack(message), size)


class FramedMessages:
    """Letters out of a stream, one after the other. For one thread."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._scrap = memoryview(bytearray(2**16))

    def said(self) -> tuple[Say, int]:
        """What a client says, and how many bytes come with it. Raises FrameError, EOFError, OSError."""
        return self._read(says, "message")

    def answered(self) -> tuple[Answer, int]:
        """What a server answers, and how many bytes come with it. Raises FrameError, EOFError, OSError."""
        return self._read(answers, "answer")

    def take(self, where: memoryview) -> None:
        """The bytes that come with the letter, or some of them. Raises EOFError, OSError."""
        if where.nbytes:
            self._stream.recv_into(where)

    def skip(self, size: int) -> None:
        """Throw away bytes that come with the letter."""
        while size:
            piece = self._scrap[: min(size, self._scrap.nbytes)]
            self._stream.recv_into(piece)
            size -= piece.nbytes

    def _read(self, decode: Callable[[bytes], Sequence[_T]], what: str) -> tuple[_T, int]:
        header, meta = next_frame(self._stream, generation=0)
        if header.kind is not Kind.STORE or not meta:
            raise FrameError(f"its kind is {header.kind.name}, which has no business on this connection")
        try:
            (message,) = decode(bytes(meta))
        except (msgspec.DecodeError, ValueError) as error:
            raise FrameError(f"it holds no {what} of a store ({error})") from None
        return message, header.body
