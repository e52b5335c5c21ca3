"""Messages with their bytes over a stream, and what is refused of them."""

from __future__ import annotations

import threading

import pytest

from holdfast.errors import FrameError
from holdfast.serve.remote import carrier as module
from holdfast.serve.remote.carrier import Carrier
from holdfast.transport.frames import Kind, pack
from holdfast.transport.stream import PlainStream


class Room:
    """Memory that grows, as that of a batch."""

    def __init__(self) -> None:
        self.memory = memoryview(b"")

    def __call__(self, size: int) -> memoryview:
        if size > len(self.memory):
            self.memory = memoryview(bytearray(2 * size))
        return self.memory


@pytest.fixture
def both():
    ours, theirs = PlainStream.pair()
    yield Carrier(ours), Carrier(theirs), ours
    ours.close()
    theirs.close()


def test_a_message_comes_after_its_bytes(both):
    one, other, _ = both
    room = Room()
    one.send(b"first", b"abc")
    one.send(b"second")
    assert other.receive(room) == (b"first", 3)
    assert bytes(room.memory[:3]) == b"abc"
    assert other.receive(room) == (b"second", 0)


def test_many_bytes_come_in_parts(both, monkeypatch):
    monkeypatch.setattr(module, "_PART", 1000)
    one, other, _ = both
    data = bytes(range(256)) * 50
    sender = threading.Thread(target=one.send, args=(b"large", data))
    sender.start()
    room = Room()
    assert other.receive(room) == (b"large", len(data))
    assert bytes(room.memory[: len(data)]) == data
    sender.join()


def part(size: int, body: bytes, announced: bytes | None = None) -> bytes:
    return pack(Kind.PART, 0, size.to_bytes(8, "little") if announced is None else announced, len(body)) + body


MESSAGE = pack(Kind.REPLICA, 0, b"", 1) + b"m"


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (pack(Kind.BYE, 0), "BYE"),
        (pack(Kind.REPLICA, 1, b"", 1) + b"m", "generation 1"),
        (part(1 << 33, b"x"), "it announces 8589934592 bytes"),
        (part(0, b"x"), "it announces 0 bytes"),
        (part(1, b"x", b"1"), "it announces 49 bytes"),
        (part(1, b"xy"), "it has 2 bytes, where 1 are left of 1"),
        (part(3, b"x") + part(4, b"y"), "it announces 4 bytes"),
        (part(3, b"x") + MESSAGE, "3 bytes were announced, and 1 came before"),
        (b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n", "it begins with b'GET '"),
    ],
)
def test_what_cannot_be_is_refused(both, sent, told):
    _, other, stream = both
    stream.send(sent)
    with pytest.raises(FrameError, match=told):
        other.receive(Room())


def test_an_end_in_the_middle_is_an_end(both):
    _, other, stream = both
    stream.send(part(3, b"xyz")[:-1])
    stream.close()
    with pytest.raises(EOFError):
        other.receive(Room())
