"""The coordinator's shell with a spawner of a few lines: what it hears, obeys and closes. No processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator

import pytest

from holdfast.config.limits import CrewConfig
from holdfast.control.membership.roster import CrewLimits
from holdfast.control.protocol.commands import EndRun, FailRun
from holdfast.control.protocol.events import ScaleRequested
from holdfast.control.protocol.messages import (
    Failed,
    Finished,
    Install,
    Paused,
    Seeded,
    Stop,
    ToWorker,
    Welcome,
    encode,
)
from holdfast.control.shell.coordinator import Coordinator
from holdfast.errors import ResourceError
from holdfast.hosts.local_host import LocalHost
from tests.contract.fakes import SIZE, FakeMonitor, FakeSpawner, FakeStoryWriter, ready, seed
from tests.unit.transport.lines import nothing_left


@pytest.fixture
def spawner() -> Iterator[FakeSpawner]:
    with nothing_left():
        it = FakeSpawner()
        yield it
    assert it.closed


def serve(
    spawner: FakeSpawner, script: object, *, workers: int = 2, monitor: FakeMonitor | None = None
) -> EndRun | FailRun:
    """Run the server beside `script`, a coroutine function that plays the workers."""

    async def both() -> EndRun | FailRun:
        host = LocalHost(0, name="here", slots=workers, spawner=spawner, monitor=monitor or FakeMonitor())
        crew = CrewConfig(join_grace=2.0, exit_grace=0.2)
        server = Coordinator(CrewLimits(lanes=4, workers=workers, crew=crew), story_writer=FakeStoryWriter())
        server.here = host  # type: ignore[attr-defined]
        run = asyncio.ensure_future(server.run([host]))
        await asyncio.sleep(0)
        try:
            await asyncio.wait_for(script(server), 5)  # type: ignore[operator]
        finally:
            end = await asyncio.wait_for(run, 5)
        return end

    return asyncio.run(both())


async def soon() -> None:
    await asyncio.sleep(0.02)


def test_from_the_first_ready_to_the_end(spawner: FakeSpawner) -> None:
    async def workers(server: Coordinator) -> None:
        await soon()
        spawner.say(ready(0))
        await soon()
        message, (arena,) = spawner.heard(0)
        assert message == Welcome(0, True)
        assert os.fstat(arena).st_size == SIZE
        seed(arena)
        spawner.say(Seeded(0))
        spawner.say(ready(1))
        await soon()
        message, fds = spawner.heard(1)
        assert isinstance(message, Welcome) and not message.seed
        os.close(fds[0])
        for worker in (0, 1):
            message, bells = spawner.heard(worker)
            assert isinstance(message, Install)
            assert message.members == [0, 1] and message.drivers == [0, 0, 1, 1]
            assert len(bells) == 2
            os.eventfd_write(bells[0], 1)
            for bell in bells:
                os.close(bell)
        assert server.snapshot().generation == 1
        for worker in (0, 1):
            spawner.say(Finished(worker, 1, {"steps": worker}))
        await soon()
        spawner.lose(0)
        spawner.lose(1)

    end = serve(spawner, workers)
    assert isinstance(end, EndRun) and end.result == {"steps": 0}


async def begun(spawner: FakeSpawner) -> None:
    """Generation 1 of workers 0 and 1 is installed, and they have heard so."""
    await soon()
    spawner.say(ready(0))
    await soon()
    seed(spawner.heard(0)[1][0])
    spawner.say(Seeded(0))
    spawner.say(ready(1))
    await soon()
    for worker in (1, 0, 1):
        _, fds = spawner.heard(worker)
        for fd in fds:
            os.close(fd)


def test_a_generation_is_said_again_though_a_member_has_finished_and_left(spawner: FakeSpawner) -> None:
    async def workers(server: Coordinator) -> None:
        await begun(spawner)
        spawner.say(Finished(1, 1, {}))
        await soon()
        spawner.lose(1)
        await soon()
        spawner.far[0].setblocking(False)
        spawner.say(Paused(0, 1, 0))  # it has lost its Install
        await soon()
        message, bells = spawner.heard(0)
        assert isinstance(message, Install)
        assert (message.generation, message.members, message.rows) == (1, [0, 1], [0, 1])
        assert len(bells) == 2
        for bell in bells:
            os.close(bell)
        spawner.say(Finished(0, 1, {}))
        await soon()
        spawner.lose(0)

    assert isinstance(serve(spawner, workers), EndRun)


def test_the_bell_of_a_lost_member_is_let_go_with_its_generation(spawner: FakeSpawner) -> None:
    async def workers(server: Coordinator) -> None:
        await begun(spawner)
        spawner.lose(1, "signal", 9)
        await soon()
        spawner.say(Paused(0, 2, 0))
        await soon()
        assert server.snapshot().generation == 2
        assert set(server.here._bells) == {0, 2}  # type: ignore[attr-defined]
        server.abort("enough")

    serve(spawner, workers)


def test_when_a_run_fails_the_others_are_told_why(spawner: FakeSpawner) -> None:
    heard: list[ToWorker] = []

    async def workers(server: Coordinator) -> None:
        await begun(spawner)
        spawner.say(Failed(0, 1, "NonFinite", "the loss is nan", "train.py:1", "trace"))
        spawner.lose(0, "exit", 4)
        spawner.far[1].setblocking(False)
        while not heard or not isinstance(heard[-1], Stop):
            await asyncio.sleep(0.01)
            with contextlib.suppress(BlockingIOError):
                heard.append(spawner.heard(1)[0])
        spawner.say(Failed(1, 1, "RuntimeError", "I was stopped", "train.py:1", "trace"))
        spawner.lose(1, "exit", 1)
        await soon()
        assert server.failed == {0}, "what comes after the end is no failure of its own"

    end = serve(spawner, workers)
    assert isinstance(end, FailRun)
    assert heard[-1] == Stop(f"{end.kind}: {end.message}")


def test_last_words_come_before_the_end(spawner: FakeSpawner) -> None:
    async def workers(server: Coordinator) -> None:
        await soon()
        spawner.say(Failed(0, 0, "ValueError", "no", "train.py:1", "trace"))
        spawner.lose(0, "exit", 1)
        await asyncio.sleep(0)

    end = serve(spawner, workers, workers=1)
    assert isinstance(end, FailRun)
    assert end.kind == "ScriptFailed" and "ValueError" in end.message


def test_who_does_not_speak_our_language_is_killed(spawner: FakeSpawner) -> None:
    async def workers(server: Coordinator) -> None:
        await soon()
        spawner.far[0].send(b"GET / HTTP/1.1")
        spawner.far[1].send(encode(Paused(0, 1, 0)))  # in another one's name
        await soon()
        assert spawner.signals == [(0, 9), (1, 9)]
        server.abort("enough")

    assert serve(spawner, workers) == FailRun("Stopped", "enough")


def test_memory_that_is_not_there_ends_the_run(spawner: FakeSpawner) -> None:
    async def workers(server: Coordinator) -> None:
        await soon()
        spawner.say(ready(0, 1 << 50))

    with pytest.raises(ResourceError, match="of shared memory"):
        serve(spawner, workers)


def test_a_bug_anywhere_ends_the_run_and_closes_everything(spawner: FakeSpawner) -> None:
    monitor = FakeMonitor()
    monitor.broken = True

    async def workers(server: Coordinator) -> None:
        await asyncio.sleep(0.3)

    with pytest.raises(KeyError, match="a bug in the monitor"):
        serve(spawner, workers, monitor=monitor)


def test_scaling_says_what_was_decided(spawner: FakeSpawner) -> None:
    async def workers(server: Coordinator) -> None:
        await soon()
        assert server.ask(ScaleRequested(3)) == "3 workers were asked for instead of 2: worker 2 starts"
        assert server.ask(ScaleRequested(9)) == "9 workers were asked for, but there are only 4 lanes: still 3"
        server.abort("enough")

    serve(spawner, workers)
    assert list(spawner.far) == [0, 1, 2]
