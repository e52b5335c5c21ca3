"""Barriers and broadcasts among the crew of a run, whoever that is at the moment."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest
import torch

from holdfast import store
from holdfast.errors import Mismatch, StoreTimeout
from holdfast.store.server.rounds import Clients
from holdfast.store.server.server import Server
from holdfast.store.server.server_main import hear
from holdfast.store.server.supervisor import ServerSupervisor
from holdfast.transport.link import Link

Tell = Callable[[Clients], None]


@pytest.fixture
def served() -> Iterator[tuple[str, Tell]]:
    """The address of a server in a thread, and how it is told of the crew."""
    supervisor = ServerSupervisor(1, 2, crew=Clients())
    server = Server(0, 1, supervisor.listeners[0].dup(), memory=os.dup(supervisor.memories[0]))
    ours, theirs = Link.pair()
    theirs.setblocking(False)
    thread = threading.Thread(target=server.serve, args=(theirs.fileno(), partial(hear, theirs, server)))
    thread.start()
    yield str(supervisor.address), lambda crew: ours.send(msgspec.msgpack.encode(crew)) and None
    ours.close()
    thread.join()
    supervisor.release()


def of(*clients: str, newcomers: tuple[str, ...] = ()) -> Clients:
    return Clients(clients, newcomers, complete=True)


def test_a_barrier_is_over_when_all_are_there_who_are_left(served: tuple[str, Tell]) -> None:
    address, tell = served
    with store.connect(address, "a", timeout=10.0) as a, store.connect(address, "b", timeout=10.0) as b:
        first = a.barrier("x")
        assert not first.done, "nobody has said who is in the crew"
        tell(of("a", "b", "c"))
        second = b.barrier("x")
        with pytest.raises(StoreTimeout) as caught:
            second.wait(0.05)
        assert str(caught.value) == (
            "Server 0 did not answer in time: client 'b' waits for the crew of the run at barrier 'x'. Only 'a', 'b' "
            "are there, and 'c' is not. Allow more time (timeout=), or see what keeps it."
        )
        tell(of("a", "b"))
        first.wait()
        second.wait()


def test_a_barrier_waits_for_all_who_have_joined(served: tuple[str, Tell]) -> None:
    address, tell = served
    tell(of("a"))
    with store.connect(address, "a", timeout=10.0) as a, store.connect(address, "b", timeout=10.0) as b:
        a.barrier("x").wait()
        tell(of("a", newcomers=("b",)))
        b.barrier("x").wait()  # the others were here before it came
        tell(of("a", "b"))
        again = a.barrier("x")
        with pytest.raises(StoreTimeout):
            again.wait(0.05)
        b.barrier("x").wait()
        again.wait()


@pytest.mark.parametrize("newcomers", [("b",), ()], ids=["who comes to a first round", "who is to leave"])
def test_who_is_not_awaited_passes_with_the_crew_and_not_before(served: tuple[str, Tell], newcomers: Any) -> None:
    address, tell = served
    tell(of("a", newcomers=newcomers))
    with store.connect(address, "a", timeout=10.0) as a, store.connect(address, "b", timeout=10.0) as b:
        early = b.barrier("x")
        with pytest.raises(StoreTimeout):
            early.wait(0.05)
        a.barrier("x").wait()
        early.wait()


def test_a_broadcast_to_the_crew(served: tuple[str, Tell]) -> None:
    address, tell = served
    tell(of("a", "b"))
    with store.connect(address, "a", timeout=10.0) as a, store.connect(address, "b", timeout=10.0) as b:
        waiting = b.broadcast("w", root="a")
        a.broadcast("w", torch.ones(3), root="a").wait()
        assert waiting.result().tolist() == [1, 1, 1]


def test_a_number_and_the_crew_are_not_the_same(served: tuple[str, Tell]) -> None:
    address, tell = served
    tell(of("a", "b"))
    with store.connect(address, "a", timeout=10.0) as a, store.connect(address, "b", timeout=10.0) as b:
        a.barrier("alone", clients=1).wait()
        waiting = a.barrier("x")
        with pytest.raises(StoreTimeout):
            waiting.wait(0.05)
        with pytest.raises(Mismatch) as caught:
            b.barrier("x", clients=3).wait()
        assert str(caught.value) == (
            "Clients at barrier x wait for different numbers of clients: 'a' for the crew, 'b' for 3. Say the same."
        )
