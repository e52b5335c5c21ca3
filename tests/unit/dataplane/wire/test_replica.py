"""Replicas in a chain, over real sockets: what each of them holds is a whole version, whatever is cut."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest

from holdfast.dataplane.memory import board as cells
from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.wire.replica import Replica, ReplicaChain, replicate
from holdfast.errors import FrameError
from holdfast.transport.frames import Kind, pack
from holdfast.transport.stream import PlainStream
from tests.unit.dataplane.wire.ports import GENERATION, LANES, Port


class Counting(PlainStream):
    """A stream that counts what goes out, and may end after so many bytes."""

    sent, most = 0, 1 << 60

    def send(self, *buffers: bytes | bytearray | memoryview) -> None:
        self.sent += sum(memoryview(buffer).nbytes for buffer in buffers)
        if self.sent > self.most:
            self.close()
        super().send(*buffers)


class Chain:
    """A primary and its replicas, for one generation."""

    def __init__(self, primary: Port, ports: list[Port], replicas: list[Replica], last: int = -1) -> None:
        self.primary, self.replicas = primary, replicas
        self.held: list[int] = []
        self.errors: list[Exception] = []
        self._closed = threading.Event()
        self._passages = [ReplicaChain() for _ in replicas[1:]]
        pairs = [Counting.pair() for _ in replicas]
        self.down = [one for one, _ in pairs]  #: each towards the next replica
        self.up = [other for _, other in pairs]
        closing = self._closed.is_set
        primary.pushes.guard(min(primary.board.versions()))
        self._threads = [
            self._thread(lambda: replicate(primary.view, self.down[0], GENERATION, closing, self._view, last))
        ]
        for at, replica in enumerate(replicas):
            onward = self._passages[at] if at < len(self._passages) else None
            receive = partial(replica.receive, ports[at].view, self.up[at], GENERATION, closing, onward)
            self._threads.append(self._thread(receive))
            if onward is not None:
                self._threads.append(self._thread(lambda at=at, on=onward: on.run(self.down[at + 1], GENERATION)))

    def _thread(self, act: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                act()
            except (OSError, EOFError, FrameError) as error:
                self.errors.append(error)

        thread = threading.Thread(target=run, name="chain")
        thread.start()
        return thread

    def _view(self, version: int) -> None:
        holding = [replica.version for replica in self.replicas]
        assert min(holding) >= version, f"{holding} hold less than version {version}, which is to be shown"
        self.primary.pushes.hold(version)
        self.held.append(version)

    def until(self, done: Callable[[], object]) -> None:
        deadline = time.monotonic() + 20
        while not done():
            assert time.monotonic() < deadline, (self.held, self.errors, [replica.version for replica in self.replicas])
            time.sleep(0.0005)

    def close(self) -> None:
        self._closed.set()
        for stream in (*self.down, *self.up):
            stream.close()
        for replica_chain in self._passages:
            replica_chain.end()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def primary() -> Port:
    port = Port(primary=True)
    port.pushes.begin(0, 1000, 0)
    return port


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert not [thread.name for thread in threading.enumerate() if thread.name == "chain"]


def publish(primary: Port, value: int) -> None:
    for lane in range(LANES):
        primary.push(lane, value)
    assert primary.publish(value)


def inherited(replica: Replica) -> Port:
    """The host of a replica becomes the primary."""
    port = Port(primary=True)
    replica.install(port.view)
    return port


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_version_counts_when_the_last_of_the_chain_holds_it(primary: Port, number: int) -> None:
    replicas = [Replica() for _ in range(number)]
    chain = Chain(primary, [Port(primary=False) for _ in replicas], replicas)
    try:
        for version in range(4):
            chain.until(lambda version=version: primary.pushes.held(version))
            assert [replica.version for replica in replicas] == [version] * number
            publish(primary, version + 1)
            assert not primary.pushes.held(version + 1) or chain.held[-1] == version + 1
        chain.until(lambda: primary.pushes.held(4))
        sent = [stream.sent for stream in chain.down]
        assert len(set(sent)) == 1, "the primary sends one copy, and every replica passes it on as it came"
    finally:
        chain.close()
    for replica in replicas:
        port = inherited(replica)
        assert (port.shown(), port.board.level()) == ({4}, 4)
        assert port.pushes.clocks(4, 1000).applied == [4] * LANES


def test_nothing_is_shown_while_the_last_of_the_chain_does_not_hold_it(primary: Port) -> None:
    replicas = [Replica(), Replica()]
    chain = Chain(primary, [Port(primary=False) for _ in replicas], replicas)
    try:
        chain.until(lambda: primary.pushes.held(0))
        chain.down[1].close()
        publish(primary, 1)
        chain.until(lambda: replicas[0].version == 1 and chain.errors)
        assert not primary.pushes.held(1) and primary.pushes.shown(1) == 0
        assert primary.primary_sync.published().version == 0
    finally:
        chain.close()
    assert [replica.version for replica in replicas] == [1, 0], "the first is ahead of the last, by one"
    assert inherited(replicas[0]).shown() == {1}


@pytest.mark.parametrize("seed", range(12))
def test_what_a_replica_holds_is_whole_wherever_the_chain_is_cut(primary: Port, seed: int) -> None:
    """Connections end in the middle of frames, generation after generation; the replicas keep what they hold."""
    chance = random.Random(seed)
    replicas = [Replica() for _ in range(chance.choice((2, 3)))]
    ports = [Port(primary=False) for _ in replicas]
    shown = 0
    for _ in range(4):
        chain = Chain(primary, ports, replicas)
        try:
            chance.choice(chain.down).most = chance.randrange(1, 1 << 18)
            while not chain.errors:
                version = min(primary.board.versions())
                chain.until(lambda version=version, chain=chain: primary.pushes.held(version) or chain.errors)
                if primary.pushes.held(version):
                    publish(primary, (version + 1) % 256)
        finally:
            chain.close()
        made, held = min(primary.board.versions()), [replica.version for replica in replicas]
        assert primary.pushes.shown(made) >= shown, "what was shown is not taken back"
        shown = primary.pushes.shown(made)
        assert made >= held[0] and sorted(held, reverse=True) == held and held[-1] >= shown, (made, held, shown)
        for replica in replicas:
            if replica.version >= 0:
                port = inherited(replica)
                assert port.shown() == {replica.version % 256} and port.board.level() == replica.version
                assert port.pushes.clocks(replica.version, 1000).applied == [replica.version] * LANES


@pytest.mark.parametrize(
    ("kind", "meta", "why"),
    [
        (Kind.HELD, msgspec.msgpack.encode(7), "a HELD about version 7, where a HELD about 0 is due"),
        (Kind.SUM, msgspec.msgpack.encode(0), "a SUM about version 0, where a HELD about 0 is due"),
        (Kind.HELD, b"\xa1a", "its meta is not what a HELD has"),
    ],
)
def test_a_replica_that_says_something_else(primary: Port, kind: Kind, meta: bytes, why: str) -> None:
    ours, theirs = PlainStream.pair()
    theirs.send(pack(kind, GENERATION, meta))
    reading = threading.Thread(target=_swallow, args=(theirs,), name="chain")
    reading.start()
    try:
        with pytest.raises(FrameError, match=why):
            replicate(primary.view, ours, GENERATION, lambda: False, lambda version: None)
    finally:
        ours.close()
        theirs.close()
        reading.join()


def _swallow(stream: PlainStream) -> None:
    rest = memoryview(bytearray(1))
    try:
        while True:
            stream.recv_into(rest)
    except (OSError, EOFError):
        pass


def test_a_replica_that_is_made_the_primary_shows_nothing_before_those_that_are_left_hold_as_much(
    primary: Port,
) -> None:
    """Else the loss of one more host would take back what was seen."""
    replicas = [Replica(), Replica()]
    ports = [Port(primary=False) for _ in replicas]
    chain = Chain(primary, ports, replicas)
    try:
        chain.until(lambda: primary.pushes.held(0))
        chain.down[1].close()
        publish(primary, 1)
        chain.until(lambda: replicas[0].version == 1)
    finally:
        chain.close()
    heir, mirror = inherited(replicas[0]), Port(primary=False)
    heir.pushes.guard(1)
    assert not heir.pushes.settled
    mirror.primary_sync.mirror(heir.primary_sync.published().clocks, memoryview(b""), ())
    assert not mirror.pushes.settled, "nor does anybody who mirrors it"
    rest = Chain(heir, ports[1:], replicas[1:])
    try:
        rest.until(lambda: heir.pushes.held(1))
    finally:
        rest.close()
    assert heir.pushes.settled and replicas[1].version == 1
    mirror.primary_sync.mirror(heir.primary_sync.published().clocks, memoryview(b""), ())
    assert mirror.pushes.settled


def test_a_replica_that_is_made_the_primary_and_has_none_itself(primary: Port) -> None:
    replica = Replica()
    chain = Chain(primary, [Port(primary=False)], [replica])
    try:
        chain.until(lambda: primary.pushes.held(0))
    finally:
        chain.close()
    heir = inherited(replica)
    heir.pushes.guard(None)
    assert heir.pushes.settled and heir.pushes.held(0) and heir.pushes.shown(0) == 0


# ---------------------------------------------------------------- a replica that is new


def whole(primary: Port) -> int:
    """Bytes of the state."""
    return sum(primary.view.manifest.sections[name][1] for name in primary.view.manifest.whole())


def fill(primary: Port) -> None:
    """Nothing of the state is empty: what is, is not sent."""
    for name in primary.view.manifest.whole():
        primary.view.section(name)[:] = bytes([7]) * primary.view.manifest.sections[name][1]


def test_who_holds_a_version_is_not_sent_it_again(primary: Port) -> None:
    """A generation begins: nothing travels before there is something new."""
    fill(primary)
    replica = Replica()
    chain = Chain(primary, [Port(primary=False)], [replica], last=0)
    try:
        primary.pushes.hold(0)
        assert primary.pushes.free(0) and primary.pushes.held(0)
        publish(primary, 1)
        chain.until(lambda: primary.pushes.held(1))
        assert chain.held == [1] and whole(primary) <= chain.down[0].sent < 1.5 * whole(primary)
    finally:
        chain.close()


class Slow(Counting):
    """A stream that stops in the middle of the first copy until it is let go; those further on stop sooner."""

    frames, made = 0, 0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.reached, self.go = threading.Event(), threading.Event()
        self._stop = {0: 5, 2: 1}.get(Slow.made)  # the other ends answer at once
        Slow.made += 1

    def send(self, *buffers: bytes | bytearray | memoryview) -> None:
        self.frames += 1
        if self.frames == self._stop:
            self.reached.set()
            assert self.go.wait(20)
        super().send(*buffers)


@pytest.mark.parametrize("number", [1, 2])
def test_nobody_waits_for_the_first_copy_of_a_new_replica(
    primary: Port, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was shown before is gone on from at once. Then that copy is given up, and the next one is whole."""
    fill(primary)
    monkeypatch.setattr(Counting, "pair", Slow.pair)
    monkeypatch.setattr(Slow, "made", 0)
    replicas = [Replica() for _ in range(number)]
    chain = Chain(primary, [Port(primary=False) for _ in replicas], replicas)
    first, *others = chain.down
    try:
        assert all(stream.reached.wait(20) for stream in chain.down)
        assert primary.pushes.free(0) and not primary.pushes.held(0)
        publish(primary, 1)
        assert not primary.pushes.free(1) and primary.pushes.shown(1) == 0, "it is shown when all of them hold it"
        first.go.set()
        chain.until(
            lambda: replicas[0].version == 1
        )  # of which the next one has nothing yet, but all that was given up
        for stream in others:
            stream.go.set()
        chain.until(lambda: primary.pushes.held(1) or chain.errors)
        assert chain.held == [1] and [replica.version for replica in replicas] == [1] * number
        assert chain.down[0].sent < 2 * whole(primary), "the rest of the first copy never went"
        assert not chain.errors
    finally:
        for stream in chain.down:
            stream.go.set()
        chain.close()
    for replica in replicas:
        port = inherited(replica)
        assert port.shown() == {1}
        sections = [name for name in primary.view.manifest.whole() if not name.startswith("parameters/")]
        assert all(port.view.section(name) == primary.view.section(name) for name in sections)


def test_a_version_that_nobody_has_seen_is_waited_for(primary: Port) -> None:
    """Where a replica was made the primary, and where a version was on its way to replicas when a generation ended."""
    primary.pushes.guard(0)
    publish(primary, 1)
    assert not primary.pushes.free(1)
    primary.pushes.guard(1)
    assert not primary.pushes.free(1) and primary.pushes.shown(1) == 0, "said again, by the next generation"
    replica = Replica()
    replica.keep(primary.view, 4, version=1, step=1)
    port = inherited(replica)
    port.pushes.guard(1)
    assert not port.pushes.settled and not port.pushes.free(1)
    port.pushes.hold(1)
    assert port.pushes.settled and port.pushes.free(1)


# ---------------------------------------------------------------- another mode


def test_where_every_host_held_the_state_a_replica_begins_with_that(primary: Port) -> None:
    """The primary of the new mode is lost before its first version has come: its first replica has the beginning."""
    for lane in range(LANES):
        primary.push(lane, 3)
    assert primary.publish(3)
    replica = Replica()
    replica.keep(primary.view, 4, version=2, step=2)
    assert replica.version == -1, "what is here is not what the mode began with"
    replica.keep(primary.view, 4, version=1, step=7)
    assert (replica.version, replica.generation) == (1, 4)
    port = inherited(replica)
    assert (port.shown(), port.board.level()) == ({3}, 1)
    assert not port.pushes.begun(0) and port.pushes.committed(lambda: 0) == 7
    port.pushes.begin(0, 9, 1, done=3)
    assert port.pushes.base == 4 and port.pushes.clocks(1, 9).applied == [3] * LANES


def test_in_exact_a_replica_becomes_the_state_of_its_host(primary: Port) -> None:
    replica = Replica()
    chain = Chain(primary, [Port(primary=False)], [replica])
    try:
        chain.until(lambda: primary.pushes.held(0))
        publish(primary, 1)
        chain.until(lambda: primary.pushes.held(1))
    finally:
        chain.close()
    port = Port(primary=True)
    port.board.words[cells.H_MIRROR] = 1
    exact = ArenaView(port.view.memory, msgspec.structs.replace(port.view.manifest, relaxed=False))
    replica.install(exact)
    assert (port.shown(), port.board.level(), port.board.versions()) == ({1}, 1, [1] * len(port.board.versions()))
    assert port.pushes.op == 0, "there are no clocks in exact"
