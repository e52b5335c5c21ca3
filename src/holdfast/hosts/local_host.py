"""One machine's share of a run: workers, the arena they share, and what carries it to other machines.

The launcher has one (see `cli.launch.launcher`), and so has every machine that joined (see `agent`). It decides
nothing: it passes messages on between the coordinator and the workers, and adds what only this machine has, which is
descriptors: the arena's with Welcome, the wake-up bells with Install.

**The fence.** Data connections to other hosts (the peer session's) belong to one generation. They are opened by its
Install, and closed before this host's workers hear the next Pause, and before the loss of the last of them is told.
From then on the host's level stands still, and nothing of the old generation can reach the arena.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import signal
import threading
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from holdfast.control.protocol.commands import EndRun, FailRun, ReleaseHost
from holdfast.control.protocol.events import (
    CatchUpEnded,
    Event,
    HostLevel,
    HostUnreached,
    LinkBroken,
    WorkerLost,
    WorkerStarted,
)
from holdfast.control.protocol.messages import (
    Finished,
    FromWorker,
    Install,
    Pause,
    Paused,
    Reached,
    Seeded,
    ToWorker,
    Welcome,
    decode_from_worker,
    encode,
)
from holdfast.control.protocol.ports import HostListener, Monitor, Spawner, WatchOrder
from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.memory.board_snapshot import given, level, of_shares
from holdfast.dataplane.memory.host_memory import HostMemory
from holdfast.hosts.peers import Peers
from holdfast.transport import memory
from holdfast.transport.link import Link

__all__ = ["LocalHost", "Restoration"]


class Restoration(NamedTuple):
    """A state that is there before the run begins."""

    put: Callable[[ArenaView], object]  #: into an arena
    reached: Reached  #: the mode that it is of


class LocalHost:
    """This machine as a host of the run. See `control.protocol.ports.Host` for the contract.

    Args:
        number: the host's number in the run.
        refills: another worker can be started in the place of one that is gone.
        peers: how it meets other hosts; without one it is the only host there will ever be.
        restoration: of the state of a run that goes on, into the arena that its first worker has laid out, and filled.

    Resources: `close` ends every process, and closes links, bells, arena and connections.
    """

    def __init__(
        self, number: int, *, name: str, slots: int, spawner: Spawner, monitor: Monitor, peers: Peers | None = None,
        refills: bool = True, restoration: Restoration | None = None,
    ) -> None:  # fmt: skip
        self._restoration = restoration
        self._restoring: asyncio.Task[None] | None = None
        self.number, self.name, self.slots, self.refills = number, name, slots, refills
        self._spawner, self._monitor, self._peers = spawner, monitor, peers
        self._ear: HostListener | None = None
        self._links: dict[int, Link] = {}
        self._pids: dict[int, int] = {}
        self._bells: dict[int, int] = {}  #: worker -> eventfd that wakes it
        self._bell_lock = threading.Lock()  #: held while bells are rung or closed, and while members change
        self._generation = 0  #: of the newest Install
        self._members: tuple[int, ...] = ()  #: of it, on this host; their bells are kept, also of the gone
        self._finished: set[int] = set()
        self._level = -1  #: that was told last
        self._arena = -1
        self._map: mmap.mmap | None = None
        self._host_memory: HostMemory | None = None
        self._closed = False

    def open(self, ear: HostListener) -> None:
        """Listen to the spawner."""
        self._ear = ear
        asyncio.get_running_loop().add_reader(self._spawner.fileno(), self._guarded, self._hear_spawner)

    # ------------------------------------------------------------ orders

    def start(self, worker: int, row: int) -> None:
        """Start a worker."""
        link = self._links[worker] = self._spawner.start(worker, row)
        self._bells[worker] = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        asyncio.get_running_loop().add_reader(link.fileno(), self._guarded, self._hear_worker, worker)

    def kill(self, worker: int) -> None:
        """Kill a worker."""
        self._spawner.signal(worker, signal.SIGKILL)

    def make_arena(self, size: int) -> None:
        """Reserve the shared memory. Raises ResourceError where it is not there."""
        self._arena = memory.reserve(size)
        self._map = mmap.mmap(self._arena, size)
        self._host_memory = HostMemory(self._map, self._arena)
        self._monitor.opened(memoryview(self._map).toreadonly())
        if self._peers is not None:
            self._peers.moor(self._host_memory, self)

    def send(self, worker: int, message: ToWorker) -> None:
        """Pass a message on."""
        if isinstance(message, Pause) and message.generation > self._generation:
            self._fence()
        link = self._links.get(worker)
        if link is None:
            return
        fds: list[int] = []
        if isinstance(message, Welcome):
            fds = [self._arena]
        elif isinstance(message, Install):
            fds = self._assemble(message)
        link.send(encode(message), fds)

    async def look(self, sight: WatchOrder, now: float) -> None:
        """See how the workers are."""
        pids = {worker: self._pids[worker] for worker in sight.watched if worker in self._pids}
        for event in await self._monitor.look(pids, frozenset(sight.quiet), now, frozenset(sight.servers)):
            self._tell(event)
        if self._peers is not None:
            self._peers.look()
            if self._peers.following:
                self._tell_level(news=True)

    def close(self, end: EndRun | FailRun | ReleaseHost | None = None) -> None:
        """End everything here. May be called twice."""
        if self._closed:
            return
        self._closed = True
        if self._ear is not None:
            loop = asyncio.get_running_loop()
            for fd in (self._spawner.fileno(), *(link.fileno() for link in self._links.values())):
                loop.remove_reader(fd)
        if self._peers is not None:
            self._peers.close()
        try:
            self._spawner.close()
        finally:
            for link in self._links.values():
                link.close()
            for bell in self._bells.values():
                os.close(bell)
            self._links.clear()
            self._bells.clear()
            self._monitor.closed()
            if self._map is not None and self._host_memory is not None:
                self._host_memory.close()
                with contextlib.suppress(BufferError):  # somebody still looks; the end of the process unmaps it
                    self._map.close()
                os.close(self._arena)
                self._map = None

    def view(self) -> ArenaView | None:
        """The memory here, in the mode that counts; None while no worker has laid it out. Called by any thread."""
        memory = self._host_memory
        return memory.view() if memory is not None and not self._closed else None

    # ------------------------------------------------------------ generations

    def _assemble(self, install: Install) -> list[int]:
        """The bells of a generation: those of its members on this host, in order, then the peer session's.

        A member that has finished and left stays one, and its generation may have to be said again. Bells that
        only an older generation needed are let go.
        """
        if install.generation != self._generation:
            self._fence()
            self._generation = install.generation
            here = [at for at, host in enumerate(install.hosts) if host == self.number]
            with self._bell_lock:
                self._members = tuple(install.members[at] for at in here)
                for worker in [w for w in self._bells if w not in self._links and w not in self._members]:
                    os.close(self._bells.pop(worker))
            if self._host_memory is not None:
                self._host_memory.begin(install.reached)
            if self._peers is not None:
                self._peers.embark(install, frozenset(install.rows[at] for at in here))
        session = self._peers.bells if self._peers is not None else ()
        return [*(self._bells[member] for member in self._members), *session]

    def ring(self) -> None:
        """Wake the members here. Called by threads that carry what other hosts need, or bring it."""
        with self._bell_lock:
            for member in self._members:
                if member in self._bells:
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_write(self._bells[member], 1)

    def carried(self, sentence: str) -> None:
        """The state has come from another host, so the level is another one."""
        self.told(sentence)
        self._tell_level()

    def told(self, sentence: str) -> None:
        """Something for the story."""
        if self._ear is not None and not self._closed:
            self._ear.told(self.number, sentence)

    def donor_lost(self, sentence: str) -> None:
        """This host followed another one, and cannot any more."""
        self._tell_level()
        self._tell(CatchUpEnded(self.number, sentence))

    def cut_off(self, host: int, sentence: str) -> None:
        """A connection to another host has broken. If the host is lost, the coordinator knows, or will."""
        self._tell(LinkBroken(self.number, sentence))

    def failed(self, error: Exception) -> None:
        """What carries data here has failed: so has this host, and on the launcher the run."""
        if self._ear is not None and not self._closed:
            self._ear.broke(self.number, error)

    def stranded(self, host: int, sentence: str) -> None:
        """Another host cannot be reached, though the coordinator can reach both."""
        self._tell(HostUnreached(self.number, host, sentence))

    def _fence(self) -> None:
        if self._peers is not None:
            self._peers.disembark()

    def _tell_level(self, *, news: bool = False) -> None:
        """Say how far the arena is; with `news`, only if that is another level than was said before."""
        if self._map is None:
            return
        own = level(memoryview(self._map))
        now, of = (own, 0) if self._peers is None else self._peers.level(own)
        if not news or now != self._level:
            self._level = now
            arena = memoryview(self._map)
            self._tell(HostLevel(self.number, now, of, given(arena) if now == own else [], of_shares(arena)))

    # ------------------------------------------------------------ events

    def _tell(self, event: Event) -> None:
        if self._ear is not None and not self._closed:
            self._ear.heard(self.number, event)

    def _hear_worker(self, worker: int) -> None:
        link = self._links.get(worker)
        while link is not None and not self._closed:
            try:
                frame = link.recv()
            except BlockingIOError:
                return
            if frame is None:  # it has gone, or is going: the spawner says so when it is certain
                asyncio.get_running_loop().remove_reader(link.fileno())
                return
            for fd in frame.fds:
                os.close(fd)
            message = _read(frame.data)
            if message is None or message.worker != worker:
                if self._ear is not None:
                    self._ear.told(self.number, f"process {worker} is killed: it said what no worker says")
                self.kill(worker)
                return
            if isinstance(message, Finished):
                self._finished.add(worker)
            if isinstance(message, Seeded) and self._restoration is not None:
                self._restoring = asyncio.get_running_loop().create_task(
                    self._restore(message, self._restoration, self._restoring), name=f"restoring {self.number}"
                )
                continue
            if isinstance(message, Paused | Finished):
                self._tell_level()
            self._tell(message)
            if isinstance(message, Seeded):
                self._tell_level()

    async def _restore(self, message: Seeded, restoration: Restoration, before: asyncio.Task[None] | None) -> None:
        """A worker has laid out the arena: put the state there that the run goes on with. It may take long.

        If that worker is lost meanwhile, another one lays out the arena anew, so it is put there once more.
        """
        if before is not None:
            await before
        if self._host_memory is None or self._closed:
            return
        view = self._host_memory.view(restoration.reached)
        assert view is not None
        try:
            await asyncio.to_thread(restoration.put, view)
        except Exception as error:
            if self._ear is not None and not self._closed:
                self._ear.broke(self.number, error)
            return
        self._tell_level()  # before the coordinator hears that there is a state
        self._tell(message)
        self._tell_level()

    def _hear_spawner(self) -> None:
        for event in self._spawner.events():
            if isinstance(event, WorkerStarted):
                self._pids[event.worker] = event.pid
                self._tell(event)
                continue
            self._hear_worker(event.worker)  # its last words come before its end
            if event.worker not in self._links:  # they ended the run, or our part in it
                return
            event = self._forget(event)
            acting = [member for member in self._members if member in self._links and member not in self._finished]
            if not acting and event.worker not in self._finished:  # who has finished may still be awaited elsewhere
                self._fence()
            self._tell_level()
            self._tell(event)

    def _forget(self, event: WorkerLost) -> WorkerLost:
        link = self._links.pop(event.worker)
        asyncio.get_running_loop().remove_reader(link.fileno())
        link.close()
        if event.worker not in self._members:
            with self._bell_lock:
                os.close(self._bells.pop(event.worker))
        self._pids.pop(event.worker, None)
        return self._monitor.lost(event)

    def _guarded(self, act: Callable[..., None], *args: object) -> None:
        """Run a callback of the loop; what it raises ends the host's part, and on the launcher the run."""
        try:
            act(*args)
        except Exception as error:
            assert self._ear is not None
            self._ear.broke(self.number, error)


def _read(data: bytes) -> FromWorker | None:
    try:
        return decode_from_worker(data)
    except msgspec.MsgspecError:
        return None
