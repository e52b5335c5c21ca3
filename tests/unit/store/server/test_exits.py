"""A server that is given up: when, and what its clients are told."""

from __future__ import annotations

import contextlib
import secrets
import select
import signal
import socket
import threading
from collections.abc import Iterator

import pytest
import torch

from holdfast import store
from holdfast.errors import ServerLost
from holdfast.store.messages import Meta
from holdfast.store.region import Region, create
from holdfast.store.remote.store_listener import StoreListener
from holdfast.store.server.exits import ServerExit, exit_reason, given_up, row_of
from holdfast.store.server.ledger import Ledger
from holdfast.store.server.supervisor import _turn_away, listen
from holdfast.transport.auth.credentials import secrets_for

PUSH = ("a", "w")


def test_a_server_is_given_up_when_it_dies_again_and_again_and_nothing_changes() -> None:
    deaths: list[ServerExit] = []
    for changes, row in [(5, 1), (5, 2), (6, 1), (6, 2), (6, 3)]:
        deaths = row_of(deaths, ServerExit(changes, 1))
        assert len(deaths) == row and given_up(deaths) == (row == 3)


def test_what_is_said_of_a_push_that_kills_its_server() -> None:
    assert exit_reason(0, 1, [ServerExit(2, 1, PUSH)] * 3, ["w", "v"]) == (
        "Server 0 of the store ended 3 times in a row, each time while its handler applied a push of client 'a' on key "
        "'w', the last time with exit status 1; it is not started again. That push was not applied; its keys ('w', "
        "'v') cannot be reached any more. See what the handler does with it, correct it, and start the store anew."
    )
    keys = [f"k{i}" for i in range(9)]
    assert exit_reason(1, 2, [ServerExit(2, -signal.SIGSEGV, PUSH)] * 3, keys).endswith(
        "the last time by SIGSEGV; it is not started again. That push was not applied; its keys ('k0', 'k1', 'k2', "
        "'k3', 'k4', ...) cannot be reached any more. Keys of the other servers go on. See what the handler does with "
        "it, correct it, and start the store anew."
    )


def test_what_is_said_where_it_is_not_known() -> None:
    assert exit_reason(0, 1, [ServerExit(2, -99)] * 3, []) == (
        "Server 0 of the store ended 3 times in a row and applied nothing in between, and its handler was at no push; "
        "the last time by signal 99; it is not started again. What was not answered may or may not have been applied; "
        "it had no keys. See what ended it, and start the store anew."
    )
    deaths = [
        ServerExit(2, -signal.SIGKILL, PUSH),
        ServerExit(2, -signal.SIGKILL),
        ServerExit(2, -signal.SIGKILL, ("b", "v")),
    ]
    assert exit_reason(0, 1, deaths, ["w"]).startswith(
        "Server 0 of the store ended 3 times in a row and applied nothing in between; pushes that were under way: one "
        "of client 'a' on key 'w', one of client 'b' on key 'v'; the last time by SIGKILL; it is not started again. "
        "What was not answered"
    )


def test_the_ledger_says_which_push_the_handler_is_at() -> None:
    region = Region(create(), writable=True)
    ledger = Ledger(region)
    client, key = ledger.add_client("a"), ledger.add_key("w", Meta("float32", (3,), "a"))
    assert ledger.push is None
    ledger.note_push(key, client)
    other = Ledger(region)  # whoever buries the server
    assert other.push == PUSH and other.valued == []
    other.note_push()
    assert ledger.push is None
    other.close()
    ledger.close()
    region.close()


@pytest.mark.parametrize("reach", ["near", "far"])
def test_who_comes_to_a_server_that_was_given_up_is_told_why(reach: str) -> None:
    """As often as it comes: on a busy machine a client may hear of the end before it hears why, and come again."""
    name = f"holdfast-store-{secrets.token_hex(16)}"
    socket_ = listen(f"{name}.0")
    ours, theirs = secrets_for(name, None, tls=False)
    listener = StoreListener(("127.0.0.1", 0), name, 1, ours, theirs)
    with contextlib.closing(socket_), _turning_away(socket_, "It ended three times."):
        try:
            address = name if reach == "near" else listener.place
            mine = store.Store(f"{address}/1/1", "a", credentials=None if reach == "near" else theirs, timeout=10.0)
            for _ in range(2):
                with pytest.raises(ServerLost) as caught:
                    mine.init("w", torch.zeros(1)).wait()
                assert str(caught.value) == "It ended three times."
            mine.close()
        finally:
            listener.close()


@contextlib.contextmanager
def _turning_away(listener: socket.socket, why: str) -> Iterator[None]:
    """Tell every client that comes, as the supervisor does for a server that it has given up."""
    ends, wakes = socket.socketpair()

    def tell() -> None:
        while ends not in (ready := select.select([listener, ends], [], [])[0]):
            if listener in ready:
                _turn_away(listener, why)

    thread = threading.Thread(target=tell)
    thread.start()
    try:
        yield
    finally:
        wakes.send(b"x")
        thread.join()
        ends.close()
        wakes.close()
