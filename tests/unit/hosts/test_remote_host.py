"""A host elsewhere: what the agent and the launcher's end of it do that a local host need not. No processes."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.control.protocol.commands import EndRun, FailRun, ReleaseHost
from holdfast.control.protocol.events import HostLeaving, HostLost, HostUnreached, RunStarted, WorkerLost, WorkerStarted
from holdfast.control.protocol.messages import Paused, Ready, Refuse
from holdfast.control.protocol.ports import WatchOrder
from holdfast.core.routes import Address, Choice, Offer
from holdfast.dataplane.memory.board_snapshot import BoardPlan
from holdfast.hosts import agent as agents
from holdfast.hosts import orders
from holdfast.hosts import peers as peers_module
from holdfast.hosts.agent import AgentEnd
from holdfast.hosts.state_parts import StateParts
from tests.contract.staged import Ear, Far, far
from tests.unit.observe.rows import row

Play = Callable[[Far, asyncio.Task[AgentEnd], Ear], Awaitable[None]]


def play(tmp_path: Path, act: Play) -> tuple[Far, Ear, AgentEnd]:
    """Run a coroutine function beside an agent and the launcher's end of it."""
    ear = Ear()
    found: list[tuple[Far, asyncio.Task[AgentEnd]]] = []

    async def both() -> None:
        async with far(tmp_path, ear) as (one, stay):
            found.append((one, stay))
            await asyncio.wait_for(act(one, stay, ear), 20)

    asyncio.run(both())
    one, stay = found[0]
    assert one.site.spec is None or one.site.spawner.closed, "whatever ends a visit ends its processes"
    assert stay.result().settled
    return one, ear, stay.result()._replace(settled=False)


def test_it_settles(tmp_path: Path) -> None:
    async def act(one: Far, stay: asyncio.Task[AgentEnd], ear: Ear) -> None:
        assert one.agent.number == 1
        assert not any(sentence.startswith("joined") for sentence in one.said), "the run may still refuse it"
        for now in (0.0, 0.2):
            await one.host.look(WatchOrder(limit=30.0), now)
        await ear.until(lambda: one.said)

    one, ear, _ = play(tmp_path, act)
    spec = one.site.spec
    assert spec is not None
    assert (spec.script, spec.args, spec.dir) == (str(tmp_path / "train.py"), ("a",), str(tmp_path / "far"))
    assert spec.scratch == str(tmp_path / "far" / "tmp")
    (offer,) = ear.offers
    assert offer.name == "host 1 (far)" and [address.ip for address in offer.addresses] == ["127.0.0.1"]
    assert one.said.count("joined run run-1 as host 1, with room for 2 workers") == 1


def test_the_script_is_sent_where_it_is_another(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(b"#" * 1_300_000)  # more than one message takes
    (tmp_path / "beside.py").write_text("")
    real = agents.has_same
    agents.has_same = lambda *_: False  # type: ignore[assignment]
    try:

        async def act(one: Far, stay: asyncio.Task[AgentEnd], ear: Ear) -> None:
            assert one.site.spec is not None
            folder = tmp_path / "far" / "script"
            assert one.site.spec.script == str(folder / "train.py")
            assert (folder / "train.py").read_bytes() == b"#" * 1_300_000
            assert (folder / "beside.py").read_bytes() == b""

        one, _, _ = play(tmp_path, act)
    finally:
        agents.has_same = real
    assert any("was sent along: this machine has not the same" in sentence for sentence in one.said)


# ---------------------------------------------------------------- ends


@pytest.mark.parametrize(
    ("end", "agent_end"),
    [
        (EndRun("the script has ended", {}), AgentEnd("over", "the run has ended (the script has ended)", 0)),
        (
            EndRun("ended early (SIGTERM)", {}, signal.SIGTERM),
            AgentEnd("over", "the run has ended (ended early (SIGTERM))", 143),
        ),
        (
            FailRun("Stopped", "killed by a second Ctrl-C", signal=signal.SIGINT),
            AgentEnd("over", "the run has failed (Stopped: killed by a second Ctrl-C)", 130),
        ),
        (FailRun("NonFinite", "a nan.\nmore"), AgentEnd("over", "the run has failed (NonFinite: a nan.)", 4)),
        (FailRun("Bug", ""), AgentEnd("over", "the run has failed (Bug: Bug)", 70)),
        (ReleaseHost(1, "SIGTERM"), AgentEnd("released", "SIGTERM", 0)),
        (ReleaseHost(1, "no way to it", "refused"), AgentEnd("refused", "no way to it", 11)),
        (ReleaseHost(1, "no way to it any more", "lost"), AgentEnd("lost", "no way to it any more", 0)),
        (None, AgentEnd("lost", "the coordinator is gone (the other side closed the connection)", 0)),
    ],
)  # fmt: skip
def test_the_end_is_told_to_the_people_there(
    tmp_path: Path, end: EndRun | FailRun | ReleaseHost | None, agent_end: AgentEnd
) -> None:
    async def act(one: Far, stay: asyncio.Task[AgentEnd], ear: Ear) -> None:
        one.host.start(0, 0)
        await ear.until_heard(WorkerStarted)
        one.host.close(end)
        await stay

    _, ear, said = play(tmp_path, act)
    assert said == agent_end
    assert ear.gone == ["closed"] and not ear.of(HostLost), "who is let go is not lost"


def test_a_machine_that_does_not_fit_is_told_why(tmp_path: Path) -> None:
    async def act(one: Far, stay: asyncio.Task[AgentEnd], ear: Ear) -> None:
        one.host.start(0, 0)
        one.host.send(0, Refuse(0, "threads is 2, but 1 on worker 0."))
        one.host.close(ReleaseHost(1, "all its workers were refused"))
        await stay

    assert play(tmp_path, act)[2] == AgentEnd("refused", "threads is 2, but 1 on worker 0.", 11)


def test_who_joins_later_and_cannot_be_reached_is_told_of_before_that_matters(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    async def act(one: Far, stay: asyncio.Task[AgentEnd], ear: Ear) -> None:
        one.host.meet({2: Offer("you", "host 2 (new)", port, (Address("127.0.0.1", "lo", "loopback"),))})
        await ear.until_heard(HostUnreached)

    assert play(tmp_path, act)[1].of(HostUnreached) == [
        HostUnreached(
            1, 2, f"host 1 cannot reach host 2 (new) at any of its addresses, port {port} (lo to 127.0.0.1: Nothing "
            f"listens at 127.0.0.1:{port})",
        )
    ]  # fmt: skip


@pytest.mark.parametrize("when", ["before it has the script", "while it looks for a way"])
def test_a_host_that_is_lost_while_this_one_settles_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        lost = Offer("you", "host 2", free.getsockname()[1], (Address("127.0.0.1", "lo", "loopback"),))
    ear, tried, real = Ear(), threading.Event(), peers_module.probe

    def probe(*words: Any, **options: Any) -> Choice:
        tried.set()
        return real(*words, **options)

    monkeypatch.setattr(peers_module, "probe", probe)
    monkeypatch.setattr(agents, "has_same", lambda *_: when == "while it looks for a way")

    async def both() -> None:
        one = Far(tmp_path, ear, {2: lost})

        async def lose() -> None:
            if when == "while it looks for a way":
                await asyncio.to_thread(tried.wait)
            one.host.forget(2)

        losing = asyncio.create_task(lose())
        async with far(tmp_path, ear, one) as (_, stay):
            await losing
            assert not stay.done(), stay.result()

    asyncio.run(both())
    assert len(ear.offers) == 1 and ear.gone == ["closed"] and not ear.errors
    assert tried.is_set() == (when == "while it looks for a way"), "nobody looks for a way to who is not there"


def test_leaving_is_said_until_it_is_heard(tmp_path: Path) -> None:
    async def act(one: Far, stay: asyncio.Task[AgentEnd], ear: Ear) -> None:
        one.agent.leave("Ctrl-C")
        await ear.until(lambda: len(ear.of(HostLeaving)) > 1)
        one.host.close(ReleaseHost(1, "Ctrl-C"))
        await stay

    _, ear, said = play(tmp_path, act)
    assert ear.of(HostLeaving)[0] == HostLeaving(1, "Ctrl-C") and said == AgentEnd("released", "Ctrl-C")


def test_an_agent_that_ends_is_a_lost_host(tmp_path: Path) -> None:
    async def act(one: Far, stay: asyncio.Task[AgentEnd], ear: Ear) -> None:
        one.agent.abort("a second Ctrl-C")
        await stay
        await ear.until_heard(HostLost)

    assert play(tmp_path, act)[1].of(HostLost) == [HostLost(1, "the other side closed the connection")]


@pytest.mark.parametrize("ended", ["the other side closed the connection", ""])
def test_an_order_that_is_not_taken_is_the_loss_of_the_host(tmp_path: Path, ended: str) -> None:
    async def act(one: Far, stay: asyncio.Task[AgentEnd], ear: Ear) -> None:
        channel = one.host._channel
        channel._on_closed = lambda reason: None  # the reader is slower than the order
        if ended:
            channel.close(ended)
        else:
            channel.send = lambda *args, **kinds: False  # type: ignore[method-assign]  # the other side does not read
        one.host.kill(0)
        await ear.until_heard(HostLost)

    assert play(tmp_path, act)[1].of(HostLost) == [HostLost(1, ended or "it takes no more orders")]


def test_what_an_agent_cannot_do_is_told_as_the_loss_of_its_host(tmp_path: Path) -> None:
    async def act(one: Far, stay: asyncio.Task[AgentEnd], ear: Ear) -> None:
        one.host.make_arena(1 << 50)
        await ear.until_heard(HostLost)

    _, ear, said = play(tmp_path, act)
    (lost,) = ear.of(HostLost)
    assert "of shared memory" in lost.reason and "free" in lost.reason
    assert said.kind == "broken" and said.code == 7


def test_so_is_what_went_wrong_in_carrying_data_there(tmp_path: Path) -> None:
    async def act(one: Far, stay: asyncio.Task[AgentEnd], ear: Ear) -> None:
        assert one.agent._host is not None
        one.agent._host.failed(ValueError("a body of 70000000 bytes"))
        await ear.until_heard(HostLost)

    _, ear, said = play(tmp_path, act)
    (lost,) = ear.of(HostLost)
    assert lost.reason.startswith("holdfast itself failed (ValueError: a body of 70000000 bytes). This is a bug.")
    assert said.kind == "broken" and said.code == 70


# ---------------------------------------------------------------- silence


def test_a_silent_host_is_lost(tmp_path: Path) -> None:
    async def act(one: Far, stay: asyncio.Task[AgentEnd], ear: Ear) -> None:
        one.agent._report = lambda report: True  # type: ignore[method-assign]  # it is cut off
        now = 0.0
        while not ear.of(HostLost):
            now += 0.2
            await one.host.look(WatchOrder(limit=1.5), now)
            await asyncio.sleep(0.001)
            assert now < 3.0

    lost = play(tmp_path, act)[1].of(HostLost)
    assert lost == [HostLost(1, "no sign of life for 1.6 s, limit 1.5 s")]


def test_whoever_was_stopped_himself_blames_nobody(tmp_path: Path) -> None:
    async def act(one: Far, stay: asyncio.Task[AgentEnd], ear: Ear) -> None:
        one.agent._report = lambda report: True  # type: ignore[method-assign]
        await one.host.look(WatchOrder(limit=1.5), 1.0)
        await one.host.look(WatchOrder(limit=1.5), 3600.0)
        assert not ear.of(HostLost)

    play(tmp_path, act)


def test_an_agent_that_does_not_hear_the_coordinator_ends_its_workers(tmp_path: Path) -> None:
    async def act(one: Far, stay: asyncio.Task[AgentEnd], ear: Ear) -> None:
        one.host.start(0, 0)
        await ear.until_heard(WorkerStarted)
        await one.host.look(WatchOrder([0], [], 0.3), 0.0)
        await asyncio.wait_for(stay, 5)  # nothing is said any more

    _, _, said = play(tmp_path, act)
    assert said.kind == "lost" and said.sentence.startswith("nothing was heard of the coordinator for 0.")


# ---------------------------------------------------------------- what comes from there


def test_logs_come_before_the_news_of_an_end(tmp_path: Path) -> None:
    async def act(one: Far, stay: asyncio.Task[AgentEnd], ear: Ear) -> None:
        one.host.start(3, 0)
        await ear.until_heard(WorkerStarted)
        (one.site.path / "logs" / "worker-3.log").write_text("one line\n")
        (one.site.path / "logs" / "worker-9.log").write_text("of nobody here\n")
        (one.site.path / "logs" / "forkserver.log").write_text("a warning\n")
        one.site.spawner.lose(3, "exit", 1)
        await ear.until_heard(WorkerLost)
        assert ("logs/worker-3.log", b"one line\n") in ear.kept
        await ear.until(lambda: ("logs/forkserver-1.log", b"a warning\n") in ear.kept)
        assert not [name for name, _ in ear.kept if "worker-9" in name], "only of workers that were started there"

    play(tmp_path, act)


def test_rows_are_shown(tmp_path: Path) -> None:
    async def act(one: Far, stay: asyncio.Task[AgentEnd], ear: Ear) -> None:
        assert one.site.show is not None
        one.site.show([row(3, step=7, loss=float("inf"))], BoardPlan(1, 2, 3), 0.0)
        await ear.until(lambda: ear.shown)

    assert play(tmp_path, act)[1].shown[0] == [row(3, step=7, loss=float("inf"))]


@pytest.mark.parametrize(
    "event", [RunStarted(), HostLost(0, "a lie"), WorkerLost(7, "exit", 0), Paused(7, 1, 0)], ids=repr
)
def test_an_agent_speaks_for_its_own_host_only(tmp_path: Path, event: object) -> None:
    async def act(one: Far, stay: asyncio.Task[AgentEnd], ear: Ear) -> None:
        one.agent._report(orders.Happened(event))  # type: ignore[arg-type]
        one.agent._report(orders.Happened(HostLeaving(0, "in another one's name")))
        await ear.until_heard(HostLeaving)
        assert ear.events[0] == HostLeaving(1, "in another one's name")

    play(tmp_path, act)


@pytest.mark.parametrize("said", [b"\x93 not a report", orders.encode(orders.StatePart(1, "x", 0, 1, b"", 0))])
def test_what_makes_no_sense_ends_the_connection(tmp_path: Path, said: bytes) -> None:
    async def act(one: Far, stay: asyncio.Task[AgentEnd], ear: Ear) -> None:
        assert one.agent._channel is not None
        one.host.state._parts = StateParts(1, lambda name, size: memoryview(bytearray(size)))  # as if it was asked for
        one.agent._channel.send(said)
        await ear.until_heard(HostLost)

    (lost,) = play(tmp_path, act)[1].of(HostLost)
    assert lost.reason.startswith("a message could not be handled: ")


def test_the_vocabulary_is_this() -> None:
    """A frozen set: two machines stand on it."""
    assert {kind.__name__ for kind in orders.Order.__args__} == {
        "Brief", "Deliver", "Start", "Kill", "Reserve", "LearnPeers", "Forget", "PassOn", "WatchWorkers", "Dismiss",
        "RunOver", "TakeState", "StateHead", "StatePart", "StateEnd",
    }  # fmt: skip
    assert {kind.__name__ for kind in orders.Report.__args__} == {
        "Wanting", "Settled", "Happened", "Showed", "Alive", "FileData", "Said", "Broke", "Leave", "WantState",
        "StateHead", "StatePart", "StateEnd",
    }  # fmt: skip
    ready = Ready(1, {"torch": "2"}, "golden", "model", 4096)
    assert orders.decode_report(orders.encode(orders.Happened(ready))) == orders.Happened(ready)
