"""A state in parts over a connection: what comes out is what went in, and what makes no sense is refused."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.checkpoint.capture import State, Taken, progress, put_state
from holdfast.config.limits import AGENT
from holdfast.dataplane.memory.snapshot import SnapshotRoom
from holdfast.errors import FrameError, NetworkError
from holdfast.hosts import orders
from holdfast.hosts.orders import StateEnd, StateHead, StatePart
from holdfast.hosts.state_parts import StateParts, cut_state, cut_taken, send_parts, state_of_parts, taken_of
from holdfast.hosts.state_source import LocalState, RemoteState
from holdfast.hosts.state_transfers import StateTransfers
from tests.unit.checkpoint.test_capture import trained
from tests.unit.dataplane.members import Worker
from tests.unit.dataplane.memory.test_snapshot import taken, view_of

Parts = list[StateHead | StatePart | StateEnd]


def room(name: str, size: int) -> memoryview:
    return memoryview(bytearray(b"\xff" * size))


def over_the_wire(parts: Parts) -> Parts:
    return [orders.decode_report(orders.encode(part)) for part in parts]  # type: ignore[misc]


def test_a_state_that_was_taken() -> None:
    view = view_of(trained(3))
    snapshot = taken(view)
    given = Taken(view.manifest, snapshot, progress(view, snapshot.version))
    parts = StateParts(7, room)
    sent = over_the_wire(list(cut_taken(7, given)))
    assert [parts.take(part) for part in sent] == [False] * (len(sent) - 1) + [True] and parts.whole
    came = taken_of(parts)
    assert came.manifest == given.manifest and came.at == given.at
    assert {name: bytes(data) for name, data in came.snapshot.sections.items()} == {
        name: bytes(data) for name, data in snapshot.sections.items()
    }
    assert came.snapshot._replace(sections={}) == snapshot._replace(sections={})
    assert sum(not part.data for part in sent if isinstance(part, StatePart)) > 8, "zeros are not sent"


def test_a_state_that_is_to_be_put_in_place() -> None:
    one = trained(3)
    view, other = view_of(one), Worker(0, 0)
    snapshot = taken(view)
    parts = StateParts(0, room)
    for part in cut_state(State(snapshot.sections, memoryview(snapshot.words), b"", False, "there")):
        parts.take(part)
    assert put_state(state_of_parts(parts), view_of(other)) == 3
    other.buffers.load(3, everything=True)
    assert other.state() == one.state()


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ([StateHead(0, b"x", {"a": -1})], "it announces a state of -1 bytes"),
        ([StateHead(0, b"x", {"a": AGENT.state_bytes + 1})], "it announces a state of"),
        ([StatePart(0, "a", 0, 1, b"", 0)], "it brings bytes 0 to 1 of 'a', which has 0"),
        ([StateHead(0, b"x", {"a": 4}), StatePart(0, "a", 2, 3, b"", 0)], "it brings bytes 2 to 5 of 'a', which has 4"),
        ([StateHead(0, b"x", {"a": 4}), StatePart(0, "a", -1, 3, b"", 0)], "it brings bytes -1 to 2 of 'a'"),
        ([StateHead(0, b"x", {"a": 4}), StatePart(0, "a", 0, 3, b"ab", 0)], "it brings bytes 0 to 3 of 'a'"),
        ([StateHead(0, b"x", {"a": 4}), StatePart(0, "a", 0, 2, b"ab", 1)], "the checksum of 'a' from byte 0 on is"),
    ],
)  # fmt: skip
def test_parts_that_make_no_sense(parts: Parts, told: str) -> None:
    collected = StateParts(0, room)
    with pytest.raises(FrameError, match=re.escape(told)):
        for part in parts:
            collected.take(part)


def test_a_state_for_which_there_is_no_room() -> None:
    def full(name: str, size: int) -> memoryview:
        raise MemoryError

    with pytest.raises(FrameError, match="there is no room here for a state of 4 bytes"):
        StateParts(0, full).take(StateHead(0, b"x", {"a": 4}))


@pytest.mark.parametrize("read", [taken_of, state_of_parts])
def test_heads_that_make_no_sense(read: Callable[[StateParts], Any]) -> None:
    collected = StateParts(0, room)
    for part in (StateHead(0, b"\xc1", {"board": 0, "clocks": 0}), StateEnd(0)):
        collected.take(part)
    with pytest.raises(FrameError, match="the head of a state makes no sense"):
        read(collected)
    collected.take(StateHead(0, msgspec.msgpack.encode([False, "there"]), {"clocks": 0}))
    told = "the head of a state makes no sense" if read is taken_of else "a state without 'board'"
    with pytest.raises(FrameError, match=told):
        read(collected)


def test_an_end_before_all_is_there_is_no_state() -> None:
    collected = StateParts(0, room)
    collected.take(StateHead(0, b"x", {"a": 4}))
    assert collected.take(StateEnd(0)) and not collected.whole
    assert StateParts(0, room).take(StateEnd(0)), "nor is one without a head"


def test_no_more_is_sent_than_the_other_side_takes() -> None:
    backlog, sent = [AGENT.state_backlog + 1], Parts()
    parts: Parts = [StateEnd(number) for number in range(3)]

    def send(part: StateHead | StatePart | StateEnd) -> bool:
        sent.append(part)
        return len(sent) < 2

    looks = iter([False, True])
    send_parts(iter(parts), send, lambda: backlog[0], lambda: next(looks))
    assert not sent, "it was stopped while it waited"
    backlog[0] = 0
    send_parts(iter(parts), send, lambda: backlog[0], lambda: False)
    assert sent == parts[:2], "the connection has ended"


class Wire:
    """A launcher and an agent that hear each other at once."""

    def __init__(self, worker: Worker, first: State | None = None) -> None:
        view = view_of(worker)
        self.there = LocalState(lambda: view, lambda: None)
        self.remote = RemoteState(self.order)
        self.agent = StateTransfers(self.report, lambda: 0)
        self.first, self.mute = first, False

    def order(self, order: orders.Order) -> bool:
        assert isinstance(order, orders.TakeState)
        if not self.mute:
            self.agent.give(order.number, self.there, still=order.still)
        return True

    def report(self, report: orders.Report) -> bool:
        if isinstance(report, orders.WantState):
            for part in cut_state(self.first) if self.first is not None else (StateEnd(0),):
                self.agent.came(part)
        else:
            self.remote.came(report)  # type: ignore[arg-type]
        return True


def test_a_checkpoint_of_another_machine() -> None:
    wire = Wire(trained(2))
    assert wire.remote.step() == -1, "nothing was shown of it"
    wire.remote.showed(2)
    assert wire.remote.step() == wire.there.step() == 2
    for _ in range(2):
        came = wire.remote.take(SnapshotRoom(), lambda: False, still=True)
        assert came is not None and came.at.step == came.snapshot.version == 2
    wire.agent.close()


def test_a_machine_without_a_state_says_so() -> None:
    wire = Wire(Worker(0, 0))
    wire.there = LocalState(lambda: None, lambda: None)
    assert wire.remote.take(SnapshotRoom(), lambda: False, still=False) is None
    wire.agent.close()


def test_a_machine_that_is_lost_meanwhile() -> None:
    wire = Wire(trained(1))
    wire.mute = True
    wire.remote.showed(1)
    threading.Timer(0.05, wire.remote.lost).start()
    assert wire.remote.take(SnapshotRoom(), lambda: False, still=False) is None and wire.remote.step() == -1
    wire.remote.came(StateEnd(1))  # it comes too late to be of use, and does no harm
    wire.agent.close()


def test_the_state_to_go_on_with_comes_from_the_launcher() -> None:
    one, other = trained(2), Worker(0, 0)
    snapshot = taken(view_of(one))
    wire = Wire(other, State(snapshot.sections, memoryview(snapshot.words), b"", False, "there"))
    wire.agent.fetch(view_of(other))
    other.buffers.load(2, everything=True)
    assert other.state() == one.state()
    wire.first = None
    with pytest.raises(NetworkError, match="The coordinator ended the run's state before all of it was here"):
        wire.agent.fetch(view_of(other))
    wire.agent._send = lambda report: True
    wire.agent.close()
    with pytest.raises(NetworkError, match="ended while the run's state came over it"):
        wire.agent.fetch(view_of(other))
    wire.agent._send = lambda report: False
    with pytest.raises(NetworkError, match="takes nothing any more"):
        wire.agent.fetch(view_of(other))
