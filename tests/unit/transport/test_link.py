from __future__ import annotations

import os
import resource
import socket

import pytest

from holdfast.transport.link import MAX_MESSAGE, DescriptorsLost, Link, LinkMessage, Outcome
from tests.unit.transport.lines import nothing_left


@pytest.fixture
def pair():
    with nothing_left():
        ours, theirs = Link.pair()
        with ours, theirs:
            yield ours, theirs


def test_messages_keep_their_boundaries(pair: tuple[Link, Link]) -> None:
    ours, theirs = pair
    for data in (b"a", b"bb" * 100, b"c" * MAX_MESSAGE):
        assert ours.send(data)
    assert [theirs.recv() for _ in range(3)] == [
        LinkMessage(b"a", ()), LinkMessage(b"bb" * 100, ()), LinkMessage(b"c" * MAX_MESSAGE, ()),
    ]


def test_descriptors_travel_and_are_close_on_exec(pair: tuple[Link, Link]) -> None:
    ours, theirs = pair
    read, write = os.pipe()
    ours.send(b"take it", [write])
    frame = theirs.recv()
    assert frame is not None
    (copy,) = frame.fds
    assert not os.get_inheritable(copy)
    os.write(copy, b"through")
    assert os.read(read, 7) == b"through"
    for fd in (read, write, copy):
        os.close(fd)


def test_a_whole_crew_of_descriptors(pair: tuple[Link, Link]) -> None:
    ours, theirs = pair
    bells = [os.eventfd(0) for _ in range(250)]
    assert ours.send(b"bells", bells)
    frame = theirs.recv()
    assert frame is not None and len(frame.fds) == 250
    for fd in (*bells, *frame.fds):
        os.close(fd)


def test_an_end_is_seen_at_once_after_what_was_said(pair: tuple[Link, Link]) -> None:
    ours, theirs = pair
    ours.send(b"last words")
    ours.close()
    assert theirs.recv() == LinkMessage(b"last words", ())
    assert theirs.recv() is None
    assert not theirs.send(b"anybody?")


def test_last_words_are_heard_though_ours_were_not(pair: tuple[Link, Link]) -> None:
    ours, theirs = pair
    ours.send(b"unread")
    theirs.send(b"last words")
    theirs.close()
    assert ours.recv() == LinkMessage(b"last words", ())
    assert ours.recv() is None


def test_full_is_told_from_gone(pair: tuple[Link, Link]) -> None:
    ours, theirs = pair
    ours.setblocking(False)
    while (outcome := ours.offer(b"x" * 10_000)) is Outcome.TAKEN:
        pass
    assert outcome is Outcome.FULL
    theirs.close()
    assert ours.offer(b"x") is Outcome.GONE


def test_descriptors_that_find_no_place_are_told(pair: tuple[Link, Link]) -> None:
    ours, theirs = pair
    assert ours.send(b"take it", [0])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        with pytest.raises(DescriptorsLost, match=r"Raise the limit \(ulimit -n\)") as lost:
            theirs.recv()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert lost.value.data == b"take it"


def test_a_full_link_says_so_and_never_blocks(pair: tuple[Link, Link]) -> None:
    ours, theirs = pair
    ours.setblocking(False)
    theirs.setblocking(False)
    taken = 0
    while ours.send(b"x" * 1000):
        taken += 1
    assert 10 < taken < 10_000
    theirs.recv()
    assert ours.send(b"x")
    with pytest.raises(BlockingIOError):
        ours.recv()


@pytest.mark.parametrize("data", [b"", b"x" * (MAX_MESSAGE + 1)])
def test_what_is_no_message_is_refused(pair: tuple[Link, Link], data: bytes) -> None:
    with pytest.raises(ValueError, match=f"a message of {len(data)} bytes"):
        pair[0].send(data)


def test_what_is_too_long_on_arrival_is_refused(pair: tuple[Link, Link]) -> None:
    with socket.socket(fileno=os.dup(pair[0].fileno())) as raw:
        raw.send(b"x" * (MAX_MESSAGE + 1))
    with pytest.raises(ValueError, match="longer than"):
        pair[1].recv()


def test_an_end_can_be_handed_over() -> None:
    ours, theirs = Link.pair()
    with ours, Link.from_fd(theirs.detach()) as again:
        ours.send(b"hello")
        assert again.recv() == LinkMessage(b"hello", ())
