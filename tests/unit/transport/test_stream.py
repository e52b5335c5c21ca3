"""Streams: all bytes or an error, two threads at once, and an end that nobody sleeps through. Plain and TLS alike."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.transport.auth import token
from holdfast.transport.auth.credentials import Credentials
from holdfast.transport.auth.tls import Authority
from holdfast.transport.stream import PlainStream, Stream, name_of
from tests.unit.transport.lines import SOON, door, nothing_left

MIB = 1 << 20


@pytest.fixture(params=["plain", "tls"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Stream, Stream]]:
    material = Authority("run").issue("host") if request.param == "tls" else None
    with nothing_left(), door(Credentials(token.make(), material)) as opened:
        ours, theirs = opened.joined()
        ours.settimeout(SOON)
        theirs.settimeout(SOON)
        yield ours, theirs
        ours.close()
        theirs.close()


def receive(stream: Stream, size: int) -> bytes:
    got = bytearray(size)
    stream.recv_into(memoryview(got))
    return bytes(got)


def pattern(size: int, salt: int) -> bytes:
    return bytes((salt + number * number) % 251 for number in range(1009)) * (size // 1009 + 1)


def test_several_buffers_arrive_as_one_row_of_bytes(pair: tuple[Stream, Stream]) -> None:
    ours, theirs = pair
    ours.send(b"head", memoryview(b"body"), b"", bytearray(b"tail"))
    assert receive(theirs, 4) == b"head"
    assert receive(theirs, 8) == b"bodytail"
    receive(theirs, 0)


def test_more_buffers_than_the_kernel_takes_at_once(pair: tuple[Stream, Stream]) -> None:
    ours, theirs = pair
    ours.send(*(bytes([number % 256]) * 3 for number in range(3000)))
    assert receive(theirs, 9000) == b"".join(bytes([number % 256]) * 3 for number in range(3000))


def test_buffers_of_other_types_are_sent_as_their_bytes(pair: tuple[Stream, Stream]) -> None:
    ours, theirs = pair
    ours.send(memoryview(b"abcdefgh").cast("Q"))
    got = memoryview(bytearray(8)).cast("I")
    theirs.recv_into(got)
    assert got.tobytes() == b"abcdefgh"


@pytest.mark.parametrize("sizes", [(8 * MIB,), (1, 100_000, 17, 3 * MIB, 16384, 16385, 262144, 262145)])
def test_both_directions_at_once_with_bodies_of_any_size(pair: tuple[Stream, Stream], sizes: tuple[int, ...]) -> None:
    texts = [[pattern(size, salt)[:size] for size in sizes] for salt in (1, 2)]

    def say(stream: Stream, text: list[bytes]) -> bool:
        for part in text:
            stream.send(b"head", part)
        return True

    def hear(stream: Stream, text: list[bytes]) -> bool:
        return all(receive(stream, 4 + len(part)) == b"head" + part for part in text)

    with ThreadPoolExecutor(4) as threads:
        jobs = [threads.submit(say, stream, text) for stream, text in zip(pair, texts, strict=True)]
        jobs += [threads.submit(hear, stream, text) for stream, text in zip(pair, reversed(texts), strict=True)]
        assert all(job.result(SOON) for job in jobs)


def test_how_fast_bytes_get_there_is_known_once_there_were_enough(pair: tuple[Stream, Stream]) -> None:
    ours, theirs = pair
    with ThreadPoolExecutor(1) as threads:
        job = threads.submit(receive, theirs, 16 * MIB)
        ours.send(bytes(16 * MIB))
        job.result(SOON)
    assert 1e6 < ours.rate() < 1e12
    one, other = PlainStream.pair()
    assert one.rate() == 0.0, "this is no TCP"
    one.close()
    other.close()


def test_what_comes_together_is_received_in_one_call() -> None:
    with nothing_left():
        ours, theirs = PlainStream.pair()
        calls: list[int] = []
        real, theirs._call = theirs._call, lambda act: calls.append(1) or real(act)  # type: ignore[method-assign]
        small, large = pattern(3000, 1)[:3000], pattern(65536, 2)[:65536]
        ours.send(b"head", b"meta", small, b"head", b"meta", large)
        assert [receive(theirs, size) for size in (4, 4, 3000, 4, 4)] == [b"head", b"meta", small, b"head", b"meta"]
        assert len(calls) == 1
        assert receive(theirs, 65536) == large
        assert len(calls) == 2
        ours.send(b"head", b"meta")
        receive(theirs, 4)
        theirs.close()
        with pytest.raises(ConnectionAbortedError, match=r"was closed on this side$"):
            receive(theirs, 4)  # though it is here
        ours.close()


def test_an_end_is_seen_at_once_after_what_was_said(pair: tuple[Stream, Stream]) -> None:
    ours, theirs = pair
    ours.send(b"last words")
    ours.close()
    assert receive(theirs, 10) == b"last words"
    with pytest.raises(EOFError, match=r"^127\.0\.0\.1:\d+ closed the connection$"):
        receive(theirs, 1)


def test_an_end_in_the_middle_is_an_end(pair: tuple[Stream, Stream]) -> None:
    ours, theirs = pair
    ours.send(b"half")
    ours.close()
    with pytest.raises(EOFError):
        receive(theirs, 8)


def test_who_sends_to_nobody_hears_of_it(pair: tuple[Stream, Stream]) -> None:
    ours, theirs = pair
    theirs.close()
    with pytest.raises(OSError):
        for _ in range(100):
            ours.send(bytes(MIB))


@pytest.mark.parametrize("what", ["receives", "sends"])
def test_closing_ends_a_call_of_another_thread(pair: tuple[Stream, Stream], what: str) -> None:
    ours, theirs = pair
    ours.settimeout(None)
    errors: list[BaseException] = []
    inside = threading.Event()

    def call() -> None:
        inside.set()
        try:
            if what == "receives":
                receive(ours, 1)
            else:
                ours.send(bytes(64 * MIB))  # more than the buffers of both kernels hold
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    inside.wait(SOON)
    if what == "sends":
        receive(theirs, 2 * MIB)  # it is under way now
    ours.close()
    thread.join(SOON)
    assert not thread.is_alive()
    (error,) = errors
    assert isinstance(error, ConnectionAbortedError)
    assert str(error).endswith(f"the connection to {ours.peer} was closed on this side")


def test_a_closed_stream_says_so_and_closes_twice(pair: tuple[Stream, Stream]) -> None:
    ours, _ = pair
    ours.close()
    ours.close()
    for call in (lambda: ours.send(b"x"), lambda: receive(ours, 1), lambda: ours.settimeout(1)):
        with pytest.raises(ConnectionAbortedError):
            call()


def test_a_time_limit_is_for_standing_still(pair: tuple[Stream, Stream]) -> None:
    ours, _ = pair
    ours.settimeout(0.05)
    with pytest.raises(TimeoutError, match="no byte to or from"):
        receive(ours, 1)
    with pytest.raises(TimeoutError):
        while True:
            ours.send(bytes(8 * MIB))  # nobody reads
    with pytest.raises(ValueError, match=r"a time limit of 0 s: must be more than 0"):
        ours.settimeout(0)


def test_the_descriptor_is_kept_while_somebody_is_inside_a_call() -> None:
    ours, theirs = socket.socketpair()
    stream = PlainStream(ours, "the other end")
    number = ours.fileno()
    inside, go_on = threading.Event(), threading.Event()

    def call() -> None:
        def action() -> None:
            inside.set()
            go_on.wait(SOON)

        stream._call(action)

    thread = threading.Thread(target=call)
    thread.start()
    inside.wait(SOON)
    stream.close()
    assert ours.fileno() == number  # nobody else can get this number
    assert theirs.recv(1) == b""  # and yet it is over
    go_on.set()
    thread.join(SOON)
    assert ours.fileno() == -1
    theirs.close()


@pytest.mark.parametrize(
    ("address", "name"),
    [
        (("10.0.0.5", 4000), "10.0.0.5:4000"),
        (("fe80::1%eth0", 1, 0, 2), "[fe80::1%eth0]:1"),
        (("::ffff:10.0.0.5", 4000, 0, 0), "10.0.0.5:4000"),
        (("host.example", 80), "host.example:80"),
    ],
)
def test_addresses_are_named_as_people_write_them(address: tuple[object, ...], name: str) -> None:
    assert name_of(address) == name
