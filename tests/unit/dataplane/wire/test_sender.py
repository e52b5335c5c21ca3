"""A leg of the sender: what is due is sent load by load, and it looks again only when that can have changed."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.roles import Assignment
from holdfast.core.transfers import TransferRoute
from holdfast.core.transfers import due as due_
from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.memory.manifest import read_manifest
from holdfast.dataplane.wire import sender
from holdfast.dataplane.wire.packing import Packer
from holdfast.dataplane.wire.sender import PeerRoute, SenderView
from holdfast.transport.frames import HEADER, Kind, unpack
from tests.unit.dataplane.members import LANES, Worker, work_of


class Wire:
    """A stream that keeps what kinds of frames are sent."""

    def __init__(self) -> None:
        self.sent: list[list[Kind]] = []

    def send(self, *buffers: bytes) -> None:
        heads = [bytes(buffer[:HEADER]) for buffer in buffers if bytes(buffer[:4]) == b"HFD1"]
        self.sent.append([unpack(head).kind for head in heads])

    def rate(self) -> float:
        return 5e8


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps at which somebody has asked what is due."""
    found: list[int] = []

    def due(route: Any, view: Any, sent: Any) -> Any:
        found.append(sent.step)
        return due_(route, view, sent)

    monkeypatch.setattr(sender, "due", due)
    return found


def test_a_leg_sends_load_by_load_and_looks_once_for_a_ring_and_once_for_a_new_step(looks: list[int]) -> None:
    worker, wire = Worker(0, 0), Wire()
    memory = memoryview(worker.arena._map)
    manifest = read_manifest(memory)
    assert manifest is not None
    view, slices = ArenaView(memory, manifest), len(manifest.slices)
    here, lanes = tuple(index % 2 == 0 for index in range(slices)), frozenset({0, 1})
    there = tuple(not one for one in here)
    route = TransferRoute(lanes, LANES, here, there, manifest.spaces(), manifest.sizes(), most=1 << 20)
    longest = {5e8: 1}.__getitem__  # on a network of that rate every slice is a load
    leg = PeerRoute(1, view, wire, route, Packer(view, 3, [0], lambda row: True), longest, 0)  # type: ignore[arg-type]

    def rung() -> list[list[Kind]]:
        """What goes over the wire after a ring, until nothing more is to be done."""
        before = len(wire.sent)
        while leg.carry(SenderView(view, [0])):
            pass
        return wire.sent[before:]

    worker.member.install(0, Assignment([0, 1], [0, 1], [0, 0, 1, 1], [0, 1]))
    assert not any(Kind.PIECE in load or Kind.SUM in load for load in rung())
    looks.clear()
    work = work_of(0)
    while worker.turn(work) == "computed":
        pass
    loads = rung()
    assert [kind for load in loads for kind in load].count(Kind.PIECE) == sum(there) > 1 == len(looks)
    assert looks == [0]
    for index in range(slices):
        worker.board.publish_norm(index, 1, 0.0)
        worker.board.publish(index, 1)
    assert [kind for load in rung() for kind in load].count(Kind.SUM) == sum(here)
    assert looks == [0, 0, 1], "all that was left of step 0, and then step 1"
    assert rung() == [] and looks == [0, 0, 1, 1]
