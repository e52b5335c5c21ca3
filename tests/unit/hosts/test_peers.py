"""Data connections of a host: early ones wait, late ones are turned away, and a fence lets nobody wait."""

from __future__ import annotations

import asyncio
import mmap
import threading
import time
from collections.abc import Callable

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.config.limits import NETWORK
from holdfast.control.protocol.messages import Install, Reached
from holdfast.core.routes import Address, Choice, NoRoute, Offer, Trial
from holdfast.dataplane.memory import board as cells
from holdfast.dataplane.memory.host_memory import HostMemory
from holdfast.dataplane.wire.replica import Replica
from holdfast.errors import Unreachable
from holdfast.hosts import peers as peers_module
from holdfast.hosts.peers import Peers
from holdfast.transport.auth.credentials import Credentials
from holdfast.transport.auth.handshake import Hello
from holdfast.transport.stream import PlainStream, Stream
from tests.unit.dataplane.memories import Stepped, inner_of, make_a_round, parameters_of, state_of

HERE = Offer("me", "host 1", 5001, (Address("127.0.0.1", "lo", "loopback"),))
THERE = Offer("you", "host 0", 5000, (Address("127.0.0.1", "lo", "loopback"),))


class FakeSession:
    """Remembers who came; dials like the real one, in a thread that `close` waits for."""

    made: list[FakeSession] = []  # noqa: RUF012

    def __init__(self, arena: memoryview, me: int, install: Install, **given: Callable[..., object]) -> None:
        self.generation, self.given = install.generation, given
        self.came: list[tuple[int, str]] = []
        self.closed = self.fetched = False
        self.bells = (7, 8)
        FakeSession.made.append(self)
        self.dialled: list[object] = []
        self.thread = threading.Thread(target=self._dial)
        self.thread.start()

    def _dial(self) -> None:
        try:
            self.dialled.append(self.given["dial"](0, "peer"))
        except OSError as error:
            self.dialled.append(error)

    def admit(self, host: int, kind: str, stream: Stream) -> None:
        self.came.append((host, kind))
        stream.close()

    def close(self) -> None:
        self.closed = True
        self.thread.join()


class Callbacks:
    def __init__(self) -> None:
        self.heard: list[tuple[object, ...]] = []

    def ring(self) -> None:
        self.heard.append(("ring",))

    def carried(self, sentence: str) -> None:
        self.heard.append(("carried", sentence))

    def told(self, sentence: str) -> None:
        self.heard.append(("told", sentence))

    def donor_lost(self, sentence: str) -> None:
        self.heard.append(("donor_lost", sentence))

    def cut_off(self, host: int, sentence: str) -> None:
        self.heard.append(("cut off", host, sentence))

    def failed(self, error: Exception) -> None:
        self.heard.append(("failed", error))

    def stranded(self, host: int, sentence: str) -> None:
        self.heard.append(("stranded", host, sentence))


def install(generation: int, sources: dict[int, int] | None = None) -> Install:
    return Install(generation, [0, 1], [0, 1], [0, 0, 1, 1], [0, 1], sources or {})


def peer(generation: int, kind: str = "peer") -> Hello:
    return Hello(kind, run="run", host=0, generation=generation)


@pytest.fixture
def arena() -> mmap.mmap:
    return mmap.mmap(-1, 4096)  # a peers looks into it to the end


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeSession.made = []
    monkeypatch.setattr(peers_module, "PeerSession", FakeSession)
    monkeypatch.setattr(peers_module, "connect", _nobody)


def _nobody(*_: object) -> Stream:
    raise Unreachable("Nothing listens there.")


def peers(arena: mmap.mmap, callbacks: Callbacks) -> Peers:
    it = Peers(1, run="run", credentials=Credentials("t" * 40), offer=HERE)
    it.moor(HostMemory(arena), callbacks)
    it.learn({0: THERE, 1: HERE})
    it._ways[0] = "127.0.0.1"
    return it


def test_connections_wait_for_their_generation_and_those_of_the_past_are_turned_away(arena: mmap.mmap) -> None:
    async def play() -> None:
        it = peers(arena, Callbacks())
        early, (ours, theirs) = PlainStream.pair(), PlainStream.pair()
        it.came(peer(2), early[0])
        it.came(peer(1, "fetch"), ours)
        assert it.bells == ()
        it.embark(install(1), frozenset({1}))
        first = FakeSession.made[0]
        assert first.came == [(0, "fetch")] and it.bells == (7, 8)
        assert it.admits(peer(1)) is None and it.admits(peer(2)) is None
        it.disembark()
        assert first.closed and it.bells == ()
        assert it.admits(peer(1)) == "generation 1 is over"
        assert it.admits(Hello("probe")) is None and it.admits(peer(1, "follow")) is None
        assert it.admits(Hello("join")) == "nothing of the kind 'join' is taken here"
        late, other = PlainStream.pair()
        it.came(peer(1), late)
        with pytest.raises(EOFError):
            other.recv_into(memoryview(bytearray(1)))
        it.embark(install(2), frozenset({1}))
        assert FakeSession.made[1].came == [(0, "peer")]
        it.close()
        it.close()
        for stream in (theirs, other, early[1]):
            stream.close()

    asyncio.run(play())


def test_streams_that_nobody_ever_wants_are_closed(arena: mmap.mmap) -> None:
    async def play() -> None:
        it = peers(arena, Callbacks())
        pairs = [PlainStream.pair() for _ in range(NETWORK.early + 1)]
        for number, (ours, _) in enumerate(pairs):
            it.came(peer(5 + number), ours)
        with pytest.raises(EOFError):
            pairs[0][1].recv_into(memoryview(bytearray(1)))
        it.close()
        for _, theirs in pairs:
            with pytest.raises(EOFError):
                theirs.recv_into(memoryview(bytearray(1)))
            theirs.close()

    asyncio.run(play())


def test_the_fence_waits_for_no_call_that_is_under_way(arena: mmap.mmap, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()
    pairs: list[tuple[PlainStream, PlainStream]] = []

    def slow(*_: object) -> Stream:
        begun.set()
        go.wait(10)
        pairs.append(PlainStream.pair())
        return pairs[0][0]

    monkeypatch.setattr(peers_module, "connect", slow)

    async def play() -> None:
        it = peers(arena, Callbacks())
        it.embark(install(1), frozenset({1}))
        await asyncio.to_thread(begun.wait)
        began = time.monotonic()
        it.disembark()
        assert time.monotonic() - began < 1.0
        assert isinstance(FakeSession.made[0].dialled[0], ConnectionAbortedError)
        go.set()
        while not pairs:
            await asyncio.sleep(0.01)
        with pytest.raises(EOFError):  # made all the same, and closed
            await asyncio.to_thread(pairs[0][1].recv_into, memoryview(bytearray(1)))
        it.close()
        pairs[0][1].close()

    asyncio.run(play())


def test_errors_of_a_greeting_are_for_the_session_to_try_again_and_in_the_end_told(arena: mmap.mmap) -> None:
    async def play() -> None:
        callbacks = Callbacks()
        it = peers(arena, callbacks)
        it.patience = 0.0
        it.embark(install(1), frozenset({1}))
        session = FakeSession.made[0]
        await asyncio.to_thread(session.thread.join)
        assert isinstance(session.dialled[0], ConnectionError)
        await asyncio.to_thread(session._dial)
        session.given["report"]("the state has come")
        session.given["broke"](0, EOFError("it hung up"))
        wrong = ValueError("nobody has thought of this")
        session.given["broke"](0, wrong)
        await asyncio.sleep(0.01)
        assert callbacks.heard == [
            ("stranded", 0, "host 1 cannot reach host 0: Nothing listens there"), ("carried", "the state has come"),
            ("cut off", 0, "the connection to host 0 has ended (it hung up)"), ("failed", wrong),
        ]  # fmt: skip
        it.disembark()
        session.given["report"]("of the past")
        await asyncio.sleep(0.01)
        assert len(callbacks.heard) == 4, "what comes after the fence is not told"
        it.close()

    asyncio.run(play())


def test_where_one_network_fails_the_next_try_looks_for_another(
    arena: mmap.mmap, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = [PlainStream.pair()]

    def dial(address: tuple[str, int], *_: object) -> Stream:
        if address[0] == "127.0.0.1":
            raise Unreachable("No answer.")
        return pairs[0][0]

    second = Trial("127.0.0.2", Address("127.0.0.2", "lo", "loopback"))
    monkeypatch.setattr(peers_module, "connect", dial)
    monkeypatch.setattr(peers_module, "probe", lambda *_, **__: Choice(second, "host 1 and host 0 talk over another"))

    async def play() -> None:
        callbacks = Callbacks()
        it = peers(arena, callbacks)
        it.embark(install(1), frozenset({1}))
        with pytest.raises(ConnectionError, match=r"^host 1 cannot reach host 0: No answer$"):
            await asyncio.to_thread(FakeSession.made[0].thread.join)
            raise FakeSession.made[0].dialled[0]  # type: ignore[misc]
        assert await asyncio.to_thread(it._dial, 0, "peer") is pairs[0][0]
        await asyncio.sleep(0.01)
        assert ("told", "host 1 and host 0 talk over another") in callbacks.heard
        it.close()
        for stream in pairs[0]:
            stream.close()

    asyncio.run(play())


def test_who_does_not_answer_is_tried_again_until_patience_ends_or_it_is_forgotten(
    arena: mmap.mmap, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = Choice(Trial("127.0.0.1", Address("127.0.0.1", "lo", "loopback")), "over the loopback")
    answers: list[Choice | None] = []

    def probe(*_: object, **__: object) -> Choice:
        answer = answers.pop(0) if answers else None
        if answer is None:
            raise NoRoute("It does not answer.")
        return answer

    monkeypatch.setattr(peers_module, "probe", probe)
    monkeypatch.setattr(peers_module, "NETWORK", replace(NETWORK, dial_again=0.01))
    it = Peers(1, run="run", credentials=Credentials("t" * 40), offer=HERE)
    it.learn({0: THERE})
    answers[:] = [None, None, way]
    assert it.survey() == ["over the loopback"] and it.survey() == [], "which is known from now on"
    it.learn({2: THERE, 3: THERE})
    answers[:] = [way]
    threading.Timer(0.05, it.forget, [3]).start()
    assert it.survey() == ["over the loopback"], "and nobody minds that host 3 was lost"
    it.learn({4: THERE})
    it.patience = 0.05
    with pytest.raises(NoRoute, match="does not answer"):
        it.survey()


def test_a_host_that_nobody_told_of_cannot_be_dialled(arena: mmap.mmap) -> None:
    async def play() -> None:
        it = peers(arena, Callbacks())
        it.embark(install(1), frozenset({1}))
        with pytest.raises(ConnectionError, match="nobody has said how host 9 can be reached"):
            await asyncio.to_thread(it._dial, 9, "peer")
        it.close()

    asyncio.run(play())


def test_a_host_says_of_which_generation_its_state_is(arena: mmap.mmap) -> None:
    """Of the last in which it held the state: all hosts do in exact, else the primary; or in which its copy came."""

    def relaxed(generation: int, primary: int) -> Install:
        sources = {0: 1} if primary == 1 else {1: 0}
        members = [0, 1]
        return Install(
            generation, members, members, [0, 0, 1, 1], members, sources, replicas=[1 - primary],
            reached=Reached(sync="async"),
        )  # fmt: skip

    async def play() -> None:
        it = peers(arena, Callbacks())
        assert it.level(0) == (0, 0)
        it.embark(install(1), frozenset({1}))
        assert it.level(5) == (5, 1)
        it.embark(relaxed(2, primary=1), frozenset({1}))
        assert it.level(6) == (6, 2)
        it.embark(relaxed(3, primary=0), frozenset({1}))
        assert it.level(7) == (7, 2), "until it mirrors the new primary"
        assert it.level(-1) == (-1, 0), "of which it has no copy yet"
        replica = FakeSession.made[-1].given["replica"]
        assert isinstance(replica, Replica)
        replica.version, replica.generation = 9, 3
        it.embark(relaxed(4, primary=0), frozenset({1}))
        assert it.level(-1) == (9, 3), "which it keeps until the next one is here"
        again = msgspec.structs.replace(relaxed(5, primary=0), abreast=[1])
        it.embark(again, frozenset({1}))
        assert it.level(-1) == (9, 5), "or says that it holds what the primary begins with"
        it.embark(install(6, {1: 0}), frozenset({1}))
        assert it.level(8) == (8, 2), "in exact, until the state has come"
        FakeSession.made[-1].fetched = True
        assert it.level(8) == (8, 6)
        it.close()

    asyncio.run(play())


def test_a_copy_that_is_abreast_takes_each_mode_up_as_the_primary_does(arena: mmap.mmap) -> None:
    """From local steps to local steps again, and no step is made in between; then the primary is lost."""
    primary, here = Stepped(), Stepped()
    view = primary.turn(1, "local:4", 1)
    here.turn(1, "local:4", 1).board.words[cells.H_MIRROR] = 1
    make_a_round(view, 1)
    view.section("outer/ready")[0] = 1
    replica = Replica()
    replica.keep(view, 4, 2, 20)

    async def play() -> None:
        it = peers(arena, Callbacks())
        it.moor(here.host_memory, Callbacks())
        it._replica, now = replica, view
        for generation, sync in ((5, "bounded:2"), (6, "local:4"), (7, "local:4")):
            serial = min(generation - 3, 3)
            now, _ = primary.turn(serial, sync, 2), here.turn(serial, sync, 2)
            lost, reached = generation == 7, Reached(serial, sync, 2, 20)
            sources = {0: 1} if lost else {1: 0}
            it.embark(
                Install(
                    generation, [0, 1], [0, 1], [0, 0, 1, 1], [0, 1], sources, replicas=[0 if lost else 1],
                    reached=reached, abreast=[] if lost else [1],
                ),
                frozenset({1}),
            )  # fmt: skip
            assert it.level(-1) == ((-1, 7) if lost else (2, generation))
        then = here.host_memory.view()
        assert then is not None and then.board.level() == 2
        assert state_of(then) == state_of(now) and parameters_of(then) == parameters_of(now)
        assert inner_of(then).since == inner_of(now).since == 2 and not any(then.section("outer/ready"))
        it.close()

    asyncio.run(play())
