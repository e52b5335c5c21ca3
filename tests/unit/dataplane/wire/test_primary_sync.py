"""What is carried in relaxed modes: pushes to the host that holds the state, and what it publishes."""

from __future__ import annotations

import os
import random
import socket
import threading
import time

import pytest

from holdfast.control.protocol.messages import Install
from holdfast.core.sync.modes import TakenPush
from holdfast.dataplane.memory.board import StepFacts
from holdfast.dataplane.memory.host_memory import HostMemory
from holdfast.dataplane.relaxed.pushes import PushRecord
from holdfast.dataplane.wire.packing import Packer
from holdfast.dataplane.wire.primary_inbound import FromPrimary, ToPrimary
from holdfast.dataplane.wire.primary_outbound import MirrorQueue, NoQueue, ToPrimaryQueue
from holdfast.dataplane.wire.primary_sync import PushPart
from holdfast.dataplane.wire.receiver import Receiver
from holdfast.dataplane.wire.sender import SenderView
from holdfast.dataplane.wire.session import PeerSession
from holdfast.dataplane.wire.state_transfer import fetch, serve_mirror
from holdfast.errors import FrameError
from holdfast.transport.frames import HEADER, Kind, unpack
from holdfast.transport.stream import PlainStream
from tests.unit.dataplane.wire.ports import GENERATION, LANES, MINE, THEIRS, Port, Replay


class Caught:
    """A stream whose frames are looked at, and landed when the test says so."""

    def __init__(self) -> None:
        self.frames: list[tuple[Kind, bytes]] = []

    def send(self, *parts: bytes | memoryview) -> None:
        data = b"".join(bytes(part) for part in parts)
        while data:
            header = unpack(data[:HEADER])
            size = HEADER + header.meta + header.body
            self.frames.append((header.kind, data[:size]))
            data = data[size:]

    def kinds(self) -> list[str]:
        return [kind.name for kind, _ in self.frames if kind is not Kind.ROWS]

    def land(self, receiver: Receiver, number: int | None = None) -> None:
        """Let so many frames reach the other host; the rest is lost."""
        data, self.frames = b"".join(frame for _, frame in self.frames[:number]), []
        receiver.stream = Replay(data)  # type: ignore[assignment]
        with pytest.raises(EOFError):
            receiver.run()


def mirrored(primary: Port, other: Port, lanes: tuple[int, ...] = THEIRS):
    """What a generation begins with: the other host fetches what it needs."""
    ours, theirs = PlainStream.pair()
    sent: list[int] = []
    serving = threading.Thread(
        target=lambda: sent.extend(serve_mirror(primary.view, ours, GENERATION, lambda: False, lanes))
    )
    serving.start()
    got = fetch(other.view, theirs, GENERATION, lanes)
    serving.join()
    ours.close()
    theirs.close()
    assert got.clocks is not None
    return got.clocks, sent


class Crossing:
    """Both legs between the primary and another host, for one generation."""

    def __init__(self, primary: Port, other: Port, lanes: tuple[int, ...] = THEIRS) -> None:
        self.primary, self.other = primary, other
        begun, versions = mirrored(primary, other, lanes)
        self.out, self.back = Caught(), Caught()
        self.publishing = MirrorQueue(
            1,
            primary.view,
            self.out,
            Packer(primary.view, GENERATION, [0], lambda row: True),
            primary_sync=primary.primary_sync,
            most=1 << 20,
            sent=versions,
        )  # type: ignore[arg-type]
        self.homeward = ToPrimaryQueue(
            0, other.view, self.back, Packer(other.view, GENERATION, [1], lambda row: True),
            primary_sync=other.primary_sync,
            sent={lane: begun.pushed[lane] for lane in lanes}, op=begun.op, most=1 << 10,
        )  # type: ignore[arg-type]  # fmt: skip
        self._to_primary = self._receiver(primary, ToPrimary(primary.primary_sync, lanes))
        self._from_primary = self._receiver(other, FromPrimary(other.primary_sync, lanes, row=0))

    def _receiver(self, port: Port, relaxed: ToPrimary | FromPrimary) -> Receiver:
        return Receiver(
            port.view, Replay(b""), GENERATION, lambda: None, lambda: False, set(), lambda step: None, relaxed=relaxed
        )  # type: ignore[arg-type]

    def carry(self, leg: NoQueue, port: Port) -> None:
        while leg.carry(SenderView(port.view, [0])):
            pass

    def tell(self) -> list[str]:
        """The primary tells; what went, in order."""
        self.carry(self.publishing, self.primary)
        kinds = self.out.kinds()
        self.out.land(self._from_primary)
        return kinds

    def bring(self, number: int | None = None) -> list[str]:
        """The other host brings its pushes; with a number, the connection ends after so many frames."""
        self.carry(self.homeward, self.other)
        kinds = self.back.kinds()
        self.back.land(self._to_primary, number)
        return kinds


@pytest.fixture
def primary() -> Port:
    port = Port(primary=True)
    port.pushes.begin(0, 100, 0)
    return port


@pytest.fixture
def other() -> Port:
    return Port(primary=False)


def test_a_mirror_shows_what_the_primary_has_and_holds_nothing_of_its_own(primary: Port, other: Port) -> None:
    for lane in range(LANES):
        primary.push(lane, 1)
    primary.publish(7)
    mirrored(primary, other)
    assert other.shown() == {7}
    assert other.board.versions() == primary.board.versions()
    assert other.pushes.published == 1
    assert other.pushes.clocks(99, 100) == primary.pushes.clocks(1, 100), "whatever version is asked for"
    assert other.board.step_facts(1) == StepFacts(0.25, 8, 0.0)
    assert (other.board.level(), primary.board.level()) == (-1, 1)


def test_a_push_counts_when_all_of_it_is_there(primary: Port, other: Port) -> None:
    crossing = Crossing(primary, other)
    crossing.tell()
    push = other.push(2, 9)
    assert (other.pushes.pushed(2), primary.pushes.pushed(2)) == (1, 0)
    kinds = crossing.bring()
    assert kinds[-1] == "PUSHED" and set(kinds[:-1]) == {"PUSH"} and len(kinds) > 2, "in several parts, then that it is"
    assert primary.pushes.pushed(2) == 1
    assert primary.pushes.record(2) == other.pushes.record(2)
    for part in primary.primary_sync.parts(push, 0, 1 << 20):
        assert set(bytes(primary.primary_sync.part(part))) == {9}
    assert crossing.bring() == [], "once"


def test_what_did_not_arrive_as_a_whole_is_computed_again(primary: Port, other: Port) -> None:
    crossing = Crossing(primary, other)
    crossing.tell()
    other.push(3, 9)
    kinds = crossing.bring(number=2)
    assert len(kinds) > 2 and primary.pushes.pushed(3) == 0
    again = Crossing(primary, other)
    assert other.pushes.pushed(3) == 0, "the other host knows what the primary has, and no more"
    again.tell()
    other.push(3, 8)
    again.bring()
    assert primary.pushes.pushed(3) == 1


def test_a_share_travels_once_and_counts_for_all_its_lanes(primary: Port, other: Port) -> None:
    crossing = Crossing(primary, other)
    crossing.tell()
    push = other.push(2, 9, lanes=2)
    assert crossing.bring(number=1) and primary.pushes.all_pushed() == [0] * LANES, "not all of it came"
    crossing = Crossing(primary, other)
    crossing.tell()
    other.push(2, 9, lanes=2)
    assert crossing.bring().count("PUSHED") == 1
    assert primary.pushes.all_pushed() == [0, 0, 1, 1]
    assert [primary.pushes.record(lane)[2:] for lane in THEIRS] == [(16, 0.5, 0.0, 0.0, 2), (0, 0.0, 0.0, 0.0, 0)]
    for part in primary.primary_sync.parts(push, 0, 1 << 20):
        assert set(bytes(primary.primary_sync.part(part))) == {9}
    assert primary.publish(7) == [TakenPush(2, 0), TakenPush(3, 0)]
    crossing.tell()
    other.push(3, 8)
    assert crossing.bring()[-1] == "PUSHED" and primary.pushes.all_pushed() == [0, 0, 1, 2], "each by itself again"
    assert crossing.bring() == [], "once"


def test_clocks_come_after_the_parameters_of_their_version(primary: Port, other: Port) -> None:
    crossing = Crossing(primary, other)
    assert crossing.tell()[-1] == "CLOCKS"
    for lane in MINE:
        primary.push(lane, 1)
    assert crossing.tell() == ["CLOCKS"], "nothing but clocks has moved"
    assert other.pushes.clocks(0, 100).pushed == [1, 1, 0, 0]
    for lane in THEIRS:
        other.push(lane, 1)
    crossing.bring()
    primary.publish(7)
    kinds = crossing.tell()
    assert kinds[-1] == "CLOCKS" and set(kinds[:-1]) == {"SLICES"}
    assert other.shown() == {7} and other.pushes.published == 1
    assert other.pushes.clocks(0, 100).applied == [1, 1, 1, 1]
    assert crossing.tell() == [], "once"


def test_a_lane_of_its_own_is_not_set_back_by_old_news(primary: Port, other: Port) -> None:
    crossing = Crossing(primary, other)
    crossing.tell()
    other.push(2, 1)
    primary.push(0, 1)
    crossing.tell()
    assert other.pushes.clocks(0, 100).pushed == [1, 0, 1, 0]


def test_another_pass_begins_with_no_push(primary: Port, other: Port) -> None:
    crossing = Crossing(primary, other)
    crossing.tell()
    other.push(2, 1)
    crossing.bring()
    primary.pushes.begin(1, 100, 0)
    crossing.tell()
    assert other.pushes.begun(1) and other.pushes.pushed(2) == 0
    other.push(2, 1)
    assert crossing.bring()[-1] == "PUSHED"
    assert primary.pushes.pushed(2) == 1


def test_a_slice_that_is_being_changed_is_not_copied(primary: Port) -> None:
    primary.board.claim(1, 1, 1)
    primary.board.begin_undo(0, 0)
    assert primary.primary_sync.copied(0) is None
    primary.board.clear_undo(1)
    assert primary.primary_sync.copied(0) is not None


def test_a_slice_whose_owner_has_died_keeps_nobody_who_publishes(primary: Port, other: Port) -> None:
    """A sender that waited for it would never end, and neither would its generation."""
    crossing = Crossing(primary, other)
    crossing.tell()
    for lane in range(LANES):
        primary.push(lane, 1)
    primary.publish(7)
    primary.board.claim(1, 1, 1)
    primary.board.begin_undo(0, 1)
    assert "CLOCKS" not in crossing.tell(), "a version that is not there as a whole"
    primary.board.clear_undo(1)
    assert crossing.tell()[-1] == "CLOCKS"
    assert other.shown() == {7}


@pytest.mark.parametrize(
    ("push", "part", "why"),
    [
        (TakenPush(0, 0), PushPart("push/0/0/float32", 0, 8), "it pushes for lane 0, which is not its own"),
        (TakenPush(2, 1), PushPart("push/2/1/float32", 0, 8), "it brings push 1 of lane 2, where 0 is due"),
        (
            TakenPush(2, 0),
            PushPart("push/2/1/float32", 0, 8),
            "it brings bytes 0 to 8 of 'push/2/1/float32' for lane 2",
        ),
        (
            TakenPush(2, 0),
            PushPart("parameters/float32", 0, 8),
            "it brings bytes 0 to 8 of 'parameters/float32' for lane 2",
        ),
        (
            TakenPush(2, 0),
            PushPart("push/2/0/float32", 8, 8),
            "it brings bytes 8 to 8 of 'push/2/0/float32' for lane 2",
        ),
        (TakenPush(2, 0), PushPart("push/2/0/float32", 0, 1 << 40), "of 'push/2/0/float32' for lane 2"),
    ],
)
def test_what_is_not_due_is_refused(primary: Port, push: TakenPush, part: PushPart, why: str) -> None:
    with pytest.raises(FrameError) as error:
        primary.primary_sync.place_for_part(push, 0, part, THEIRS)
    assert why in str(error.value)


def test_nonsense_is_refused(primary: Port, other: Port) -> None:
    mirrored(primary, other)
    with pytest.raises(FrameError, match="slices 0 to 0 have 3 bytes"):
        other.primary_sync.land_slices(0, 0, [4], memoryview(b"abc"))
    with pytest.raises(FrameError, match="the record of lane 2 has 1 bytes"):
        primary.primary_sync.land_record(2, PushRecord(0, 0, 8, 0.5, 0.0, 0.0), memoryview(b"a"), THEIRS)
    for lane, lanes, why in (
        (2, 3, "it pushes for lane 4, which is not its own"),
        (2, 0, "it brings push 0 of lane 2 by itself, which lies with another lane's"),
    ):
        with pytest.raises(FrameError, match=why):
            record = PushRecord(0, 0, 8, 0.5, 0.0, 0.0, lanes)
            primary.primary_sync.land_record(lane, record, memoryview(b"a"), THEIRS)
    other.primary_sync.land_slices(0, 0, [4], memoryview(bytes(other.view.run("parameters", 0, 1).nbytes)))
    with pytest.raises(FrameError, match="slice 0 would go back from version 4 to 3"):
        other.primary_sync.land_slices(0, 0, [3], memoryview(bytes(other.view.run("parameters", 0, 1).nbytes)))
    clocks = primary.primary_sync.published().clocks
    with pytest.raises(FrameError, match="clocks of 4 lanes with 1 bytes of buffers"):
        other.primary_sync.mirror(clocks, memoryview(b"a"), ())


@pytest.mark.parametrize("seed", range(30))
def test_every_push_counts_once_whatever_is_lost(primary: Port, other: Port, seed: int) -> None:
    """Connections end in the middle of frames, lanes change hands, generations come and go.

    Two lanes of a host that stand at the same step push together now and then.
    """
    chance = random.Random(seed)
    crossing, theirs = Crossing(primary, other), THEIRS
    counted, samples = [0] * LANES, 0
    for _ in range(120):
        what = chance.choice(("push", "push", "push", "bring", "tell", "publish", "cut"))
        if what == "push":
            lane = chance.randrange(LANES)
            port = other if lane in theirs else primary
            version = min(primary.board.versions())
            clocks = port.pushes.clocks(version, 100)
            lanes = 1 + ((lane + 1 in theirs) == (lane in theirs) and lane + 1 < LANES and chance.random() < 0.7)
            run = range(lane, lane + lanes)
            if len({clocks.pushed[one] for one in run} | {clocks.applied[one] for one in run}) == 1:
                port.push(lane, chance.randrange(256), lanes)
        elif what == "bring":
            crossing.bring()
        elif what == "tell":
            crossing.tell()
        elif what == "publish":
            for push in primary.publish(chance.randrange(256)):
                assert push.step == counted[push.lane], "in the order of its lane"
                counted[push.lane] += 1
                samples += primary.pushes.record(push.lane).samples
        else:
            crossing.bring(number=chance.randrange(3))
            theirs = tuple(sorted(chance.sample(range(LANES), 2)))
            primary.pushes.part()  # a generation begins
            crossing = Crossing(primary, other, theirs)
    assert primary.pushes.clocks(min(primary.board.versions()), 100).applied == counted
    assert samples == 8 * sum(counted) and sum(counted) >= LANES


def test_clocks_do_not_go_back(primary: Port, other: Port) -> None:
    old = primary.primary_sync.published().clocks
    for lane in range(LANES):
        primary.push(lane, 1)
    primary.publish(7)
    mirrored(primary, other)
    with pytest.raises(FrameError, match="the clocks would go back from version 1 to 0"):
        other.primary_sync.mirror(old, memoryview(b""), ())


def test_a_mirror_gets_no_news_that_are_older_than_what_it_begins_with(primary: Port, other: Port) -> None:
    """Its connections are there before it has fetched anything, and the primary goes on meanwhile."""
    install = Install(GENERATION, [0, 1], [0, 1], [0, 0, 1, 1], [0, 1], {1: 0})
    asked, go, news, said = threading.Event(), threading.Event(), threading.Event(), []
    sessions: dict[int, PeerSession] = {}

    class Watched(PlainStream):
        def send(self, *buffers: bytes | bytearray | memoryview) -> None:
            news.set()
            super().send(*buffers)

    def dial(to: int, kind: str) -> PlainStream:
        if kind == "fetch":
            asked.set()
            go.wait()
        ours, theirs = socket.socketpair()
        sessions[to].admit(1, kind, (Watched if kind == "peer" else PlainStream)(theirs))
        return PlainStream(ours)

    for number, port in ((0, primary), (1, other)):
        sessions[number] = PeerSession(
            HostMemory(port.arena._map), number, install, dial=dial, ring=lambda: None, report=said.append,
            broke=lambda host, error: said.append(str(error)),
        )  # fmt: skip
    try:
        asked.wait()
        assert not news.wait(0.2), "nothing goes before the mirror has what it begins with"
        for lane in range(LANES):
            primary.push(lane, 1)
        primary.publish(7)
        go.set()
        deadline = time.monotonic() + 20
        while other.pushes.published != 1 or other.shown() != {7}:
            assert time.monotonic() < deadline, said
            time.sleep(0.001)
        for lane in MINE:
            primary.push(lane, 1)
        os.eventfd_write(sessions[0].bells[0], 1)
        while other.pushes.clocks(1, 100).pushed != [2, 2, 1, 1]:
            assert time.monotonic() < deadline, said
            time.sleep(0.001)
        assert len(said) == 1 and "the state at step 1 has come from host 0" in said[0], "and no connection has ended"
    finally:
        go.set()
        for session in sessions.values():
            session.close()
