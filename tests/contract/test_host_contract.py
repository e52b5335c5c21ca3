"""What every host must do (see `control.protocol.ports.HostPort`), whether it is this process or behind an agent."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from holdfast.control.protocol.events import HostLevel, Measured, WorkerLost, WorkerStarted
from holdfast.control.protocol.messages import Failed, Finished, Install, Leave, Pause, Paused, Seeded, Welcome
from holdfast.control.protocol.ports import HostPort, WatchOrder
from tests.contract.fakes import SIZE, FakeMonitor, FakeSpawner, ready, seed
from tests.contract.staged import Ear, local, remote
from tests.unit.transport.lines import nothing_left

Stage = Callable[[Path, Ear], AbstractAsyncContextManager[tuple[HostPort, FakeSpawner, FakeMonitor]]]
Play = Callable[[HostPort, FakeSpawner, FakeMonitor, Ear], Awaitable[None]]
HOSTS: list[Stage] = [local, remote]


@pytest.fixture(params=HOSTS, ids=lambda make: make.__name__)
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Play], Ear]:
    """Runs a coroutine function with a host on the stage, and looks for what was left."""

    def run(act: Play) -> Ear:
        ear = Ear()
        spawners: list[FakeSpawner] = []

        async def both() -> None:
            async with request.param(tmp_path, ear) as (host, spawner, monitor):
                spawners.append(spawner)
                await asyncio.wait_for(act(host, spawner, monitor, ear), 20)

        with nothing_left():
            asyncio.run(both())
        assert spawners[0].closed and not ear.errors
        return ear

    return run


async def welcomed(host: HostPort, spawner: FakeSpawner, ear: Ear, *workers: int) -> None:
    """These workers have started and know the arena, which is seeded."""
    host.make_arena(SIZE)
    for worker in workers:
        host.start(worker, worker)
        await ear.until(lambda worker=worker: worker in spawner.far)
        host.send(worker, Welcome(worker, worker == workers[0]))
        await ear.until(lambda worker=worker: _readable(spawner, worker))
        message, (arena,) = spawner.heard(worker)
        assert isinstance(message, Welcome) and os.fstat(arena).st_size == SIZE
        if message.seed:
            seed(arena)
        else:
            os.close(arena)


def _readable(spawner: FakeSpawner, worker: int) -> bool:
    return bool(select.select([spawner.far[worker].fileno()], [], [], 0)[0])


def installation(*members: int, generation: int = 1) -> Install:
    return Install(generation, list(members), list(members), [members[0]] * 4, [1] * len(members), {})


def test_messages_pass_both_ways(play: Callable[[Play], Ear]) -> None:
    async def act(host: HostPort, spawner: FakeSpawner, monitor: FakeMonitor, ear: Ear) -> None:
        host.start(4, 2)
        await ear.until_heard(WorkerStarted)
        spawner.say(ready(4))
        await ear.until(lambda: ready(4) in ear.events)
        host.send(4, Leave(4, "enough"))
        host.send(9, Leave(9, "nobody is there"))
        await ear.until(lambda: _readable(spawner, 4))
        assert spawner.heard(4) == (Leave(4, "enough"), ())

    assert play(act).events[0] == WorkerStarted(4, 1004)


def test_the_bells_of_members_come_with_their_generation(play: Callable[[Play], Ear]) -> None:
    async def act(host: HostPort, spawner: FakeSpawner, monitor: FakeMonitor, ear: Ear) -> None:
        await welcomed(host, spawner, ear, 0, 1)
        for worker in (0, 1):
            host.send(worker, installation(0, 1))
        await ear.until(lambda: _readable(spawner, 0) and _readable(spawner, 1))
        (_, first), (_, second) = spawner.heard(0), spawner.heard(1)
        assert len(first) == len(second) == 2
        os.eventfd_write(first[1], 1)
        assert os.eventfd_read(second[1]) == 1, "the same bell, in the same place"
        for bell in (*first, *second):
            os.close(bell)

    play(act)


@pytest.mark.parametrize(
    "message", [Paused(0, 1, 7), Finished(0, 1, {})], ids=lambda message: type(message).__name__
)
def test_the_level_is_told_before(play: Callable[[Play], Ear], message: Paused | Finished) -> None:
    async def act(host: HostPort, spawner: FakeSpawner, monitor: FakeMonitor, ear: Ear) -> None:
        await welcomed(host, spawner, ear, 0)
        spawner.say(Seeded(0))
        await ear.until_heard(Seeded, HostLevel)
        assert [type(event) for event in ear.events[-2:]] == [Seeded, HostLevel], "after Seeded: now there is one"
        spawner.say(message)
        await ear.until(lambda: message in ear.events)
        assert ear.events[-2:] == [HostLevel(1, 0), message]
        host.send(0, Pause(2))
        await ear.until(lambda: _readable(spawner, 0))
        assert spawner.heard(0) == (Pause(2), ())
        spawner.lose(0, "signal", 9)
        await ear.until_heard(WorkerLost)
        assert ear.events[-2:] == [HostLevel(1, 0), WorkerLost(0, "signal", 9)]

    play(act)


def test_last_words_come_before_the_end(play: Callable[[Play], Ear]) -> None:
    failed = Failed(0, 0, "ValueError", "no", "train.py:1", "x" * 40_000)

    async def act(host: HostPort, spawner: FakeSpawner, monitor: FakeMonitor, ear: Ear) -> None:
        host.start(0, 0)
        await ear.until_heard(WorkerStarted)
        spawner.say(failed)
        spawner.lose(0, "exit", 1)
        await ear.until_heard(WorkerLost)

    assert play(act).events[1:] == [failed, WorkerLost(0, "exit", 1)]


def test_who_does_not_speak_our_language_is_killed_and_a_kill_is_told(play: Callable[[Play], Ear]) -> None:
    async def act(host: HostPort, spawner: FakeSpawner, monitor: FakeMonitor, ear: Ear) -> None:
        host.start(0, 0)
        host.start(1, 1)
        await ear.until(lambda: len(ear.of(WorkerStarted)) == 2)
        spawner.far[0].send(b"GET / HTTP/1.1")
        await ear.until_heard(WorkerLost)
        host.kill(1)
        host.kill(77)
        await ear.until(lambda: len(ear.of(WorkerLost)) == 2)
        await ear.until(lambda: ear.sentences == ["process 0 is killed: it said what no worker says"])

    assert play(act).of(WorkerLost) == [WorkerLost(0, "signal", 9), WorkerLost(1, "signal", 9)]


def test_what_monitor_see_is_heard(play: Callable[[Play], Ear]) -> None:
    seen = Measured(3, {0: 0.5})

    async def act(host: HostPort, spawner: FakeSpawner, monitor: FakeMonitor, ear: Ear) -> None:
        host.start(0, 0)
        host.start(1, 1)
        await ear.until(lambda: len(ear.of(WorkerStarted)) == 2)
        monitor.news = [seen]
        for _ in range(100):
            await host.look(WatchOrder([0], [0], 5.0), 1.0)
            await asyncio.sleep(0.05)
            if ear.of(Measured):
                break
        assert ear.of(Measured)[0] == seen
        assert monitor.asked[-1] == ({0: 1000}, {0}), "the pids of those who are watched, and who stands still"

    play(act)


def test_nothing_is_heard_after_the_end(play: Callable[[Play], Ear]) -> None:
    async def act(host: HostPort, spawner: FakeSpawner, monitor: FakeMonitor, ear: Ear) -> None:
        host.start(0, 0)
        await ear.until_heard(WorkerStarted)
        host.close(None)
        heard = len(ear.events)
        await ear.until(lambda: spawner.closed)
        await asyncio.sleep(0.05)
        assert len(ear.events) == heard and not ear.errors
        host.close(None)

    play(act)
