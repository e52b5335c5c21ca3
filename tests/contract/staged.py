"""A host on a stage: a fake spawner below it, an ear above it that notes everything. Local, or behind an agent."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.config.limits import CrewConfig
from holdfast.config.worker_spec import WorkerSpec
from holdfast.control.protocol.events import Event
from holdfast.control.protocol.ports import HostPort, Monitor, Spawner
from holdfast.core.routes import Offer
from holdfast.dataplane.memory.board_snapshot import BoardPlan, BoardRow
from holdfast.hosts import orders
from holdfast.hosts.agent import Agent, AgentEnd
from holdfast.hosts.local_host import LocalHost
from holdfast.hosts.remote_host import RemoteHost
from holdfast.hosts.script_files import ScriptFiles
from holdfast.transport.auth.credentials import Credentials
from holdfast.transport.stream import PlainStream
from tests.contract.fakes import FakeMonitor, FakeSpawner

__all__ = ["Ear", "Far", "Site", "far", "local", "remote"]

TOKEN = "t" * 40
CREW = CrewConfig(idle_limit=500.0)


class Ear:
    """Hears a host, and everything else that the launcher would hear of one elsewhere."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.sentences: list[str] = []
        self.errors: list[Exception] = []
        self.kept: list[tuple[str, bytes]] = []
        self.shown: list[list[BoardRow]] = []
        self.offers: list[Offer] = []
        self.gone: list[str] = []

    def heard(self, host: int, event: Event) -> None:
        self.events.append(event)

    def told(self, host: int, sentence: str) -> None:
        self.sentences.append(sentence)

    def broke(self, host: int, error: Exception) -> None:
        self.errors.append(error)

    def settled(self, host: RemoteHost, offer: Offer, ways: list[str]) -> None:
        self.offers.append(offer)
        host.open(self)

    def left(self, host: RemoteHost, reason: str) -> None:
        self.gone.append(reason)

    def closed(self, host: int) -> None:
        self.gone.append("closed")

    def showed(self, host: int, rows: list[BoardRow], plan: BoardPlan) -> None:
        self.shown.append(rows)

    def keep(self, name: str, data: bytes) -> None:
        self.kept.append((name, data))

    def of(self, kind: type) -> list[Any]:
        """The events of this kind."""
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, met: Callable[[], object], what: str = "") -> None:
        """Wait until something is so."""
        for _ in range(500):
            if met():
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"not within 5 s: {what or met}; heard {self.events}, {self.errors}")

    async def until_heard(self, *kinds: type) -> Sequence[Event]:
        """Wait until events of these kinds have come; all events."""
        await self.until(lambda: all(self.of(kind) for kind in kinds), f"{kinds}")
        return self.events


class Site:
    """What an agent's machine provides: a directory of the test's, and fakes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "logs").mkdir(parents=True, exist_ok=True)
        self.spawner, self.monitor = FakeSpawner(), FakeMonitor()
        self.spec: WorkerSpec | None = None
        self.show: Callable[[list[BoardRow], BoardPlan, float], None] | None = None

    def equip(
        self, spec: WorkerSpec, crew: CrewConfig, show: Callable[[list[BoardRow], BoardPlan, float], None]
    ) -> tuple[Spawner, Monitor]:
        assert crew == CREW
        self.spec, self.show = spec, show
        return self.spawner, self.monitor


class Far:
    """Both ends of a host that is elsewhere."""

    def __init__(self, tmp_path: Path, ear: Ear, offers: Mapping[int, Offer] | None = None) -> None:
        script = tmp_path / "train.py"
        if not script.exists():
            script.write_text("print('hello')\n")
        here, there = PlainStream.pair()
        here.peer = there.peer = "127.0.0.1:5000"
        spec = WorkerSpec(worker=-1, row=-1, script=str(script), args=("a",), dir=str(tmp_path / "run"))
        self.script_files = ScriptFiles(str(script))
        self.said: list[str] = []
        self.site = Site(tmp_path / "far")
        self.agent = Agent(
            there, name="far", slots=2, credentials=Credentials(TOKEN), site=self.site, say=self.said.append
        )
        brief = orders.Brief(1, "run-1", spec, self.script_files.digests, CREW, dict(offers or {}), False)
        self.host = RemoteHost(
            1, here, name="far", slots=2, refills=True, brief=brief, script_files=self.script_files, callbacks=ear
        )


@contextlib.asynccontextmanager
async def local(tmp_path: Path, ear: Ear) -> AsyncIterator[tuple[HostPort, FakeSpawner, FakeMonitor]]:
    """A host of this process."""
    spawner, monitor = FakeSpawner(), FakeMonitor()
    host = LocalHost(1, name="here", slots=2, spawner=spawner, monitor=monitor)
    host.open(ear)
    try:
        yield host, spawner, monitor
    finally:
        host.close()


@contextlib.asynccontextmanager
async def far(
    tmp_path: Path, ear: Ear, both: Far | None = None
) -> AsyncIterator[tuple[Far, asyncio.Task[AgentEnd]]]:
    """An agent, and the host that it is to the launcher. It has settled."""
    both = both or Far(tmp_path, ear)
    async with asyncio.TaskGroup() as group:
        stay = group.create_task(both.agent.serve())
        await ear.until(lambda: ear.offers or stay.done(), "settled")
        try:
            yield both, stay
        finally:
            both.host.close()
            both.agent.abort("the test is over")
            await stay
            await asyncio.to_thread(_hung_up, both.host)


def _hung_up(host: RemoteHost) -> None:
    """Wait until a host's connection has ended, which it does in the background."""
    for thread in threading.enumerate():
        if thread.name == f"holdfast-farewell-{host.number}":
            thread.join()


@contextlib.asynccontextmanager
async def remote(tmp_path: Path, ear: Ear) -> AsyncIterator[tuple[HostPort, FakeSpawner, FakeMonitor]]:
    """A host elsewhere, as the server has it."""
    async with far(tmp_path, ear) as (both, _):
        yield both.host, both.site.spawner, both.site.monitor
