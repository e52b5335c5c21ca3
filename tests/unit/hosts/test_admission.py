"""Who wants a part in the run must be reachable from it: that is tried before it is let in."""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path

from holdfast.config.limits import CrewConfig
from holdfast.config.worker_spec import WorkerSpec
from holdfast.control.protocol.ports import HostPort
from holdfast.core.routes import Address, Offer
from holdfast.dataplane.memory.board_snapshot import BoardPlan, BoardRow
from holdfast.hosts import orders
from holdfast.hosts.admission import Admission
from holdfast.transport.auth.credentials import Credentials
from holdfast.transport.auth.dial import connect
from holdfast.transport.auth.handshake import Hello
from holdfast.transport.channel import Channel
from holdfast.transport.network import Responder
from tests.unit.transport.lines import door

LOCAL = Address("127.0.0.1", "lo", "loopback")
CREDENTIALS = Credentials("t" * 40)


class Callbacks:
    over = False

    def __init__(self) -> None:
        self.admitted: list[HostPort] = []
        self.notes: list[str] = []
        self.gone_: list[int] = []

    def number(self) -> int:
        return 3

    def admit(self, host: HostPort) -> None:
        self.admitted.append(host)

    def note(self, sentence: str, *, aloud: bool) -> None:
        assert aloud
        self.notes.append(sentence)

    def showed(self, host: int, rows: list[BoardRow], plan: BoardPlan) -> None:
        raise AssertionError("nothing is shown here")

    def keep(self, name: str, data: bytes) -> None:
        raise AssertionError("nothing is kept here")

    def gone(self, host: int) -> None:
        self.gone_.append(host)


class Joiner:
    """A machine that wants to join and says what the test wants it to."""

    def __init__(self, admission: Admission) -> None:
        hello = Hello("join", facts={"name": "far", "slots": 1})
        self.orders: queue.Queue[orders.Order] = queue.Queue()
        self.stream = connect(admission.address, hello, CREDENTIALS, 10.0)
        self.channel = Channel(
            self.stream, lambda frame: self.orders.put(orders.decode_order(frame.body)), lambda reason: None
        )

    async def next(self) -> orders.Order:
        return await asyncio.to_thread(self.orders.get, timeout=20)

    def settle(self, offer: Offer) -> None:
        self.channel.send(orders.encode(orders.Settled(offer, ["host 3 and host 0 talk over lo"])))


def play(
    tmp_path: Path, act: Callable[[Admission, Callbacks, Joiner], Awaitable[None]], host: str | None = "here"
) -> None:
    """With a gate, and a machine that has been briefed."""
    (tmp_path / "train.py").write_text("")
    spec = WorkerSpec(worker=-1, row=-1, script=str(tmp_path / "train.py"), args=(), dir=str(tmp_path))

    async def both() -> None:
        callbacks = Callbacks()
        admission = Admission(
            ("127.0.0.1", 0), CREDENTIALS, run="r", spec=spec, crew=CrewConfig(), callbacks=callbacks, host=host
        )
        joiner = await asyncio.to_thread(Joiner, admission)
        try:
            assert isinstance(await joiner.next(), orders.Brief)
            await act(admission, callbacks, joiner)
        finally:
            admission.close()
            if admission.peers is not None:
                admission.peers.close()
            await asyncio.to_thread(joiner.channel.close)

    asyncio.run(asyncio.wait_for(both(), 60))


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


async def until(met: Callable[[], object]) -> None:
    while not met():
        await asyncio.sleep(0.01)


def test_a_machine_that_cannot_be_reached_is_refused_with_a_sentence(tmp_path: Path) -> None:
    port = unused_port()

    async def act(admission: Admission, callbacks: Callbacks, joiner: Joiner) -> None:
        joiner.settle(Offer("me", "host 3 (far)", port, (LOCAL,)))
        sentence = (
            f"host 0 cannot reach host 3 (far) at any of its addresses, port {port} (lo to 127.0.0.1: Nothing listens "
            f"at 127.0.0.1:{port}). Let that port through the firewalls between them, or have host 3 (far) listen on "
            "an address and a port that host 0 can reach (--listen ADDRESS:PORT)."
        )
        assert await joiner.next() == orders.Dismiss(sentence, "refused")
        (note,) = callbacks.notes
        assert note.startswith("far (127.0.0.1:") and note.endswith(f") may not join: {sentence}")
        assert callbacks.admitted == [] and callbacks.gone_ == [3]
        assert admission.peers is not None and admission.peers._offers == {}, "nobody is told of it"

    play(tmp_path, act)


def test_one_that_can_be_reached_joins(tmp_path: Path) -> None:
    async def act(admission: Admission, callbacks: Callbacks, joiner: Joiner) -> None:
        with door(CREDENTIALS) as opened:
            offer = Offer("me", "host 3 (far)", opened.address[1], (LOCAL,))

            def answer() -> None:
                _, stream = opened.came.get(timeout=20)
                Responder(offer).answer(stream)

            answering = threading.Thread(target=answer)
            answering.start()
            joiner.settle(offer)
            await until(lambda: callbacks.admitted)
            await asyncio.to_thread(answering.join)
        assert callbacks.notes == ["host 3 and host 0 talk over lo"]

    play(tmp_path, act)


def test_one_that_leaves_meanwhile_is_not_waited_for(tmp_path: Path) -> None:
    async def act(admission: Admission, callbacks: Callbacks, joiner: Joiner) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            joiner.settle(Offer("me", "host 3 (far)", silent.getsockname()[1], (LOCAL,)))
            caller, _ = await asyncio.to_thread(silent.accept)
            with closing(caller):
                await asyncio.to_thread(joiner.channel.close)
                await until(lambda: callbacks.gone_)
            with suppress(OSError):
                silent.shutdown(socket.SHUT_RDWR)
        assert callbacks.admitted == []
        assert [note.partition(" (")[0] for note in callbacks.notes] == ["far"]

    play(tmp_path, act)


def test_where_only_others_train_it_is_for_them_to_try(tmp_path: Path) -> None:
    async def act(admission: Admission, callbacks: Callbacks, joiner: Joiner) -> None:
        joiner.settle(Offer("me", "host 3 (far)", unused_port(), (LOCAL,)))
        await until(lambda: callbacks.admitted)

    play(tmp_path, act, host=None)
