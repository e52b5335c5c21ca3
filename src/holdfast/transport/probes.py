"""Measurements over one connection: round trips, and bursts of bytes.

    Ping -> Pong          a small round trip
    Burst ... -> Got      as many bytes as go through in a moment; the receiver takes the time and says the rate
    Give -> Burst ...     the same in the other direction

* The receiver measures, because a sender only knows what its kernel took.
* A burst ends with its connection: closing it throws away what still lies in buffers, so that none disturbs the next.
* A burst is bounded in time and in bytes, whatever the other side asks for.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from holdfast.config.limits import NETWORK
from holdfast.core.routes import Offer, Trial, slope
from holdfast.errors import FrameError
from holdfast.transport.frames import Kind, pack
from holdfast.transport.stream import Stream, next_frame

__all__ = [
    "Burst", "Describe", "Described", "Give", "Got", "Message", "Ping", "Pong", "Survey", "Surveyed", "ask", "drink",
    "pour", "receive", "received", "reply", "round_trips", "sent",
]  # fmt: skip

#: The most that one burst may take, whoever asks for it.
_FIRST_READ, _LARGEST_READ = 4096, 2**20


class Message(msgspec.Struct, frozen=True, tag=True):
    """The meta of a PROBE frame."""


class Ping(Message, frozen=True):
    """Answer at once."""


class Pong(Message, frozen=True):
    """Here I am."""

    identity: str


class Burst(Message, frozen=True):
    """The body of this frame is to be measured by its receiver, who ends it after so many seconds."""

    seconds: float


class Give(Message, frozen=True):
    """Send me a burst."""

    seconds: float
    size: int


class Got(Message, frozen=True):
    """The rate at which your burst came in, in bits a second."""

    rate: float


class Describe(Message, frozen=True):
    """Tell me what you offer."""


class Described(Message, frozen=True):
    """What I offer."""

    offer: Offer


class Survey(Message, frozen=True):
    """Measure your ways to this host."""

    offer: Offer


class Surveyed(Message, frozen=True):
    """What I measured."""

    trials: list[Trial]


_decode = msgspec.msgpack.Decoder(Ping | Pong | Burst | Give | Got | Describe | Described | Survey | Surveyed).decode
_Answer = TypeVar("_Answer", bound=Message)


# ---------------------------------------------------------------- whoever wants to know


def ask(stream: Stream, question: Message, kind: type[_Answer], patience: float = NETWORK.probe_silence) -> _Answer:
    """Say one thing and wait for its answer. Raises OSError, EOFError, FrameError."""
    stream.settimeout(patience)
    reply(stream, question)
    return _expect(stream, kind)


def round_trips(stream: Stream, count: int) -> Iterator[float]:
    """Seconds of each."""
    for _ in range(count):
        begin = time.perf_counter()
        ask(stream, Ping(), Pong)
        yield time.perf_counter() - begin


def sent(stream: Stream, seconds: float, size: int) -> float:
    """The rate from here to there, in bits a second, as measured there. Closes the stream."""
    stream.settimeout(seconds + NETWORK.probe_silence)
    # The answer comes while we still send; it ends the connection, and that ends the thread.
    sender = threading.Thread(target=pour, args=(stream, seconds, size), name="holdfast-burst")
    sender.start()
    try:
        return _expect(stream, Got).rate
    finally:
        stream.close()
        sender.join()


def received(stream: Stream, seconds: float, size: int) -> float:
    """The rate from there to here, in bits a second. Closes the stream."""
    try:
        stream.settimeout(seconds + NETWORK.probe_silence)
        reply(stream, Give(seconds, size))
        message, length = receive(stream)
        if not isinstance(message, Burst):
            raise FrameError(f"a {type(message).__name__}, where a Burst is due")
        return drink(stream, seconds, length)
    finally:
        stream.close()


# ---------------------------------------------------------------- both


def pour(stream: Stream, seconds: float, size: int) -> None:
    """Send a burst until the receiver has enough, which it says by closing, or until the time is long up."""
    seconds, size = min(seconds, NETWORK.probe_seconds), max(0, min(size, NETWORK.probe_bytes))
    chunk = memoryview(os.urandom(2**18))  # random, because some tunnels compress
    until = time.perf_counter() + 2 * seconds + 1.0  # the receiver's clock starts later: a round trip, a slow start
    try:
        stream.send(pack(Kind.PROBE, 0, msgspec.msgpack.encode(Burst(seconds)), size))
        while size > 0 and time.perf_counter() < until:
            stream.send(chunk[:size])
            size -= len(chunk)
    except OSError:
        pass  # it has enough, or is gone: whoever waits for the rate finds out


def drink(stream: Stream, seconds: float, size: int) -> float:
    """Receive a burst; its steady rate. Reads grow with the rate, so that marks are dense and calls are few."""
    buffer = memoryview(bytearray(_LARGEST_READ))
    begin = now = time.perf_counter()
    until = begin + min(seconds, NETWORK.probe_seconds)
    marks, total, read = [(begin, 0)], 0, _FIRST_READ
    try:
        while total < size and now < until:
            stream.settimeout(until - now)
            view = buffer[: min(read, size - total)]
            stream.recv_into(view)
            before, now = now, time.perf_counter()
            total += len(view)
            marks.append((now, total))
            if now - before < 0.002:
                read = min(read * 2, _LARGEST_READ)
            elif now - before > 0.008:
                read = max(read // 2, _FIRST_READ)
    except (TimeoutError, EOFError):
        pass  # the time is up, or the sender came to its own limit
    return slope(marks)


def reply(stream: Stream, message: Message) -> None:
    """Send one message."""
    stream.send(pack(Kind.PROBE, 0, msgspec.msgpack.encode(message)))


def receive(stream: Stream) -> tuple[Message, int]:
    """The next message, and how many raw bytes follow it. Raises OSError, EOFError, FrameError."""
    header, meta = next_frame(stream)
    if header.kind is not Kind.PROBE:
        raise FrameError(f"its kind is {header.kind.name}, on a connection that measures")
    try:
        message = _decode(meta)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FrameError(f"its meta is no message of a measurement: {error}") from None
    if header.body and not isinstance(message, Burst):
        raise FrameError(f"a {type(message).__name__} with {header.body} bytes behind it")
    return message, header.body


def _expect(stream: Stream, kind: type[_Answer]) -> _Answer:
    message, _ = receive(stream)
    if not isinstance(message, kind):
        raise FrameError(f"a {type(message).__name__}, where a {kind.__name__} is due")
    return message
