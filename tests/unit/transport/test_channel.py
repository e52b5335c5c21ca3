"""Channels: whole messages in order, nobody who says something waits, and one end with one reason."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from holdfast.config.limits import NETWORK
from holdfast.transport import channel as channels
from holdfast.transport.channel import Channel
from holdfast.transport.frames import Frame, Kind, pack
from holdfast.transport.stream import PlainStream
from tests.unit.transport.lines import SOON, nothing_left


class End:
    """One end of a channel, and what it heard."""

    def __init__(self, stream: PlainStream) -> None:
        self.heard: queue.Queue[Frame] = queue.Queue()
        self.reasons: queue.Queue[str] = queue.Queue()
        self.channel = Channel(stream, self.heard.put, self.reasons.put)

    def hear(self) -> Frame:
        return self.heard.get(timeout=SOON)

    def end(self) -> str:
        return self.reasons.get(timeout=SOON)


@pytest.fixture
def ends() -> Iterator[tuple[End, End]]:
    with nothing_left():
        one, other = (End(stream) for stream in PlainStream.pair())
        yield one, other
        for end in (one, other):
            end.channel.close()
            end.channel.close()
            assert end.reasons.qsize() <= 1


@pytest.fixture
def raw() -> Iterator[tuple[End, PlainStream]]:
    """A channel, and a peer that need not play by the rules."""
    with nothing_left():
        ours, theirs = PlainStream.pair()
        end = End(ours)
        yield end, theirs
        end.channel.close()
        theirs.close()
        assert end.reasons.qsize() == 0


def test_messages_come_whole_and_in_order_both_ways(ends: tuple[End, End]) -> None:
    one, other = ends
    bodies = [b"", b"x", bytes(100_000), bytes(1 << 20)]
    for body in bodies:
        assert one.channel.send(body, generation=3, meta=b"about it")
        assert other.channel.send(body, kind=Kind.ROWS)
    for body in bodies:
        (header, meta, got) = other.hear()
        assert (header.kind, header.generation, meta, got) == (Kind.CONTROL, 3, b"about it", body)
        assert one.hear().header.kind is Kind.ROWS


def test_when_something_was_last_heard_is_known(ends: tuple[End, End]) -> None:
    one, other = ends
    before = other.channel.heard
    one.channel.send(b"x")
    other.hear()
    assert other.channel.heard > before


def test_the_other_side_hears_the_last_words_and_then_the_end(ends: tuple[End, End]) -> None:
    one, other = ends
    for number in range(100):
        one.channel.send(b"%d" % number)
    one.channel.close("the run is over")
    assert [other.hear().body for _ in range(100)] == [b"%d" % number for number in range(100)]
    assert other.end() == "the other side closed the connection"
    assert one.end() == "the run is over"
    assert not one.channel.send(b"more")
    assert not other.channel.send(b"more")


def test_a_goodbye_is_told_from_a_loss(ends: tuple[End, End]) -> None:
    one, other = ends
    one.channel.send(b"", kind=Kind.BYE)
    assert other.end() == "the other side said goodbye"
    assert one.end() == "the other side closed the connection"


def test_nobody_who_says_something_waits(raw: tuple[End, PlainStream], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "NETWORK", replace(NETWORK, close=0.01))
    end, _ = raw  # the other side does not read
    sent = 0
    while end.channel.send(bytes(1 << 20)):
        sent += 1
    assert sent == (NETWORK.queued_bytes >> 20) - 1  # what is on its way counts until the kernel has all of it
    end.channel.close("it does not read")
    assert end.end() == "it does not read"


def test_many_small_messages_are_bounded_too(raw: tuple[End, PlainStream], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "NETWORK", replace(NETWORK, close=0.01, queued_messages=10))
    end, _ = raw
    assert [end.channel.send(bytes(1 << 20)) for _ in range(12)] == [True] * 10 + [False] * 2
    end.channel.close("full")
    assert end.end() == "full"


def test_what_is_no_frame_ends_it_with_a_sentence(raw: tuple[End, PlainStream]) -> None:
    end, theirs = raw
    theirs.send(pack(Kind.CONTROL, 1, b"", 2) + b"ok" + b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n")
    assert end.hear().body == b"ok"
    assert end.end().startswith("What came over the connection is no frame of this run: it begins with b'GET ', not")


def test_a_frame_that_has_no_business_here_ends_it(raw: tuple[End, PlainStream]) -> None:
    end, theirs = raw
    theirs.send(pack(Kind.SUM, 1))
    assert "its kind is SUM, which has no business on this connection" in end.end()


def test_an_end_in_the_middle_of_a_message(raw: tuple[End, PlainStream]) -> None:
    end, theirs = raw
    theirs.send(pack(Kind.CONTROL, 1, b"", 100) + b"half")
    theirs.close()
    assert end.end() == "the other side closed the connection"
    assert end.heard.empty()


class Broken(PlainStream):
    """A connection of which one direction fails before the other has noticed anything."""

    def __init__(self, sock: socket.socket, sending: OSError | None, receiving: OSError | None) -> None:
        super().__init__(sock, "the other end")
        self.sending, self.receiving = sending, receiving

    def send(self, *buffers: bytes | bytearray | memoryview) -> None:
        if self.sending:
            raise self.sending
        super().send(*buffers)

    def recv_into(self, view: memoryview) -> None:
        if self.receiving:
            raise self.receiving
        super().recv_into(view)


@pytest.mark.parametrize(
    ("sending", "receiving", "reason"),
    [
        (None, ConnectionResetError(104, "Connection reset by peer"), "the other side closed the connection"),
        (BrokenPipeError(32, "Broken pipe"), None, "the other side closed the connection"),
        (ConnectionResetError(104, "Connection reset by peer"), None, "the other side closed the connection"),
        (OSError(110, "Connection timed out"), None, "the connection broke: Connection timed out"),
        (None, OSError(113, "No route to host"), "the connection broke: No route to host"),
    ],
)
def test_whoever_meets_the_end_first_the_reason_is_the_same(
    sending: OSError | None, receiving: OSError | None, reason: str
) -> None:
    """A process that is killed may be seen by a closed connection, a reset one, or a message that cannot go out."""
    with nothing_left():
        mine, other = socket.socketpair()
        theirs = PlainStream(other, "the first end")
        end = End(Broken(mine, sending, receiving))
        end.channel.send(b"x")
        if isinstance(sending, ConnectionError):
            theirs.send(pack(Kind.CONTROL, 1, b"", 4) + b"last")
            assert end.hear().body == b"last", "its last words are heard all the same"
            theirs.close()
        assert end.end() == reason
        end.channel.close()
        theirs.close()


def test_a_message_that_cannot_be_handled_is_the_reason_of_the_end() -> None:
    reasons: queue.Queue[str] = queue.Queue()
    with nothing_left():
        ours, theirs = PlainStream.pair()

        def handle(frame: Frame) -> None:
            raise KeyError("worker 3")

        channel = Channel(ours, handle, reasons.put)
        theirs.send(pack(Kind.CONTROL, 1))
        assert reasons.get(timeout=SOON) == "a message could not be handled: KeyError: 'worker 3'"
        with pytest.raises(EOFError):
            theirs.recv_into(memoryview(bytearray(1)))
        theirs.close()
        channel.close()


@pytest.mark.parametrize("where", ["on_frame", "on_closed"])
def test_it_may_be_closed_from_its_own_callbacks(where: str) -> None:
    over = threading.Event()
    reasons = []
    with nothing_left():
        ours, theirs = PlainStream.pair()

        def on_frame(frame: Frame) -> None:
            if where == "on_frame":
                channel.close("enough")

        def on_closed(reason: str) -> None:
            reasons.append(reason)
            channel.close("again")
            over.set()

        channel = Channel(ours, on_frame, on_closed)
        theirs.send(pack(Kind.CONTROL, 1))
        if where == "on_closed":
            theirs.close()
        assert over.wait(SOON)
        channel.close()
        theirs.close()
    assert reasons == ["enough" if where == "on_frame" else "the other side closed the connection"]


def test_a_message_that_is_too_long_is_the_caller_s_mistake(ends: tuple[End, End]) -> None:
    with pytest.raises(ValueError, match="CONTROL takes 0 to 1048576"):
        ends[0].channel.send(bytes((1 << 20) + 1))
