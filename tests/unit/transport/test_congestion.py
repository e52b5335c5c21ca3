"""Congestion control: by loss on short ways, the system's own on long ones, and no trouble where none can be chosen."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from holdfast.config.limits import NETWORK
from holdfast.transport import congestion

SYSTEM = congestion._system()


def of(sock: socket.socket) -> str:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


@pytest.fixture
def both() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Who called, and who was called, made as the listener and `dial` make them."""
    with socket.socket() as listener, socket.socket() as caller:
        congestion.prefer_short(listener)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        congestion.prefer_short(caller)
        caller.connect(listener.getsockname())
        with listener.accept()[0] as called:
            yield caller, called


def test_a_short_way_goes_by_loss(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(congestion, "_system", lambda: "bbr")
    caller, called = request.getfixturevalue("both")
    for sock in (caller, called):
        congestion.settle(sock)
        assert of(sock) in ("cubic", "reno"), "those who are let in inherit it"
        assert 0.0 < congestion.round_trip(sock) < NETWORK.long_round_trip


def test_a_long_way_is_given_back(both: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(congestion, "round_trip", lambda sock: 0.08)
    for sock in both:
        congestion.settle(sock)
        assert of(sock) == SYSTEM


def test_what_the_system_has_stays_if_it_goes_by_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(congestion, "_system", lambda: "cubic")
    with socket.socket() as sock:
        before = of(sock)
        congestion.prefer_short(sock)
        assert of(sock) == before


def test_where_nothing_can_be_chosen_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(congestion, "_system", lambda: "bbr")
    monkeypatch.setattr(congestion, "_BY_LOSS", ("no-such-algorithm",))
    with socket.socket() as sock:
        before = of(sock)
        congestion.prefer_short(sock)
        assert of(sock) == before
    one, other = socket.socketpair()
    with one, other:
        assert congestion.round_trip(one) == 0.0, "there is no TCP in it"
        congestion.settle(one)


def test_a_receiver_that_takes_nothing_more_answers_all_the_same(both: tuple[socket.socket, socket.socket]) -> None:
    """Whoever waits for his turn must not be taken for one who is gone."""
    caller, _ = both
    caller.setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            caller.send(bytes(1 << 20))
    deadline = time.monotonic() + 1.5
    while time.monotonic() < deadline:
        assert congestion.unanswered(caller) <= 1, "a question is on its way, or none"
        time.sleep(0.01)
    one, other = socket.socketpair()
    with one, other:
        assert congestion.unanswered(one) == 0, "where there is no TCP"
