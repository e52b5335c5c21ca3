"""The shell around the machine: sockets, descriptors and the clock go in, commands are obeyed.

It decides nothing. What it hears it hands to `Machine.handle` as an event; what comes back it does.
Everything it opens it closes, whichever way it ends; an exception in any callback ends the run with
that exception instead of leaving it deaf.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import signal
import time
from collections.abc import Callable, Sequence

import msgspec

from holdfast.coordinator.commands import Command, EndRun, FailRun, KillWorker, MakeArena, Send, StartWorker
from holdfast.coordinator.events import (
    DrainRequested,
    Event,
    RunStarted,
    ScaleRequested,
    Ticked,
    WorkerLost,
    WorkerStarted,
)
from holdfast.coordinator.machine import Machine
from holdfast.coordinator.messages import Failed, FromWorker, Install, Stop, Welcome, decode_from_worker, encode
from holdfast.coordinator.ports import Engine, Eyes, Notebook
from holdfast.coordinator.roster import CrewLimits, Snapshot
from holdfast.transport import memory
from holdfast.transport.link import MAX_MESSAGE, Link

__all__ = ["Server"]

#: Seconds between two looks at the workers. A message is handled at once; this is for what nobody says.
TICK = 0.2
#: Seconds that workers have, when the run fails, to leave with a sentence in their log before they are killed.
STOP_GRACE = 0.2
#: Workers in these stages have nothing to do with training any more, and are not watched.
_DONE = frozenset({"finished", "dismissed", "refused", "doomed"})


class Server:
    """One run's coordinator.

    Args:
        limits: for the machine.

    Resources: `run` closes links, arena, descriptors and the engine before it returns or raises.
    """

    def __init__(
        self, limits: CrewLimits, *, engine: Engine, eyes: Eyes, notebook: Notebook,
        exit_grace: float = 10.0, clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._exit_grace = exit_grace
        self._machine = Machine(limits)
        self._engine, self._eyes, self._notebook = engine, eyes, notebook
        self._clock, self._began = clock, clock()
        self._told = 0
        self.training_since: float | None = None  #: when the first generation began
        self.failed: set[int] = set()  #: workers whose script raised: their traces are told at the end
        self._links: dict[int, Link] = {}
        self._pids: dict[int, int] = {}
        self._bells: dict[int, int] = {}  #: worker -> eventfd that wakes it
        self._members: frozenset[int] = frozenset()  #: of the newest Install; their bells are kept, also of the gone
        self._arena = -1
        self._map: mmap.mmap | None = None
        self._end: asyncio.Future[EndRun | FailRun] | None = None
        self._alone = asyncio.Event()  #: no worker process is left, or nobody wants to wait for them

    # ------------------------------------------------------------ what others may ask

    def now(self) -> float:
        """Seconds since the run began."""
        return self._clock() - self._began

    def snapshot(self) -> Snapshot:
        """The crew as it stands."""
        return self._machine.snapshot()

    def story_length(self) -> int:
        """How many sentences the story has."""
        return len(self._machine.story)

    def drain(self, reason: str) -> None:
        """End at the next step boundary, with everything saved."""
        self._handle(DrainRequested(reason))

    def scale(self, workers: int) -> str:
        """Ask for this many workers; what was decided, in a sentence."""
        before = len(self._machine.story)
        self._handle(ScaleRequested(workers))
        news = self._machine.story.since(before)
        return news[-1].sentence if news else f"{workers} workers were asked for; there is nothing to change"

    def abort(self, reason: str) -> None:
        """End now; nothing is waited for."""
        self._alone.set()
        self._finish(FailRun("Stopped", reason))

    # ------------------------------------------------------------ the run

    async def run(self) -> EndRun | FailRun:
        """Train. Returns how it ended; raises only what is no fault of the run (memory, our own bugs)."""
        loop = asyncio.get_running_loop()
        self._end = loop.create_future()
        try:
            loop.add_reader(self._engine.fileno(), self._guarded, self._hear_engine)
            self._handle(RunStarted())
            async with asyncio.TaskGroup() as group:
                ticks = group.create_task(self._tick(), name="tick")
                end = await self._end
                ticks.cancel()
            if isinstance(end, EndRun):
                await self._let_go()
            else:
                await self._stop(end)
            return end
        except ExceptionGroup as several:  # the group's, around the one thing that went wrong
            raise several.exceptions[0] from None
        finally:
            self._close(loop)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            crew = self.snapshot()
            watched = {person.worker for person in crew.people if person.stage not in _DONE}
            pids = {worker: pid for worker, pid in self._pids.items() if worker in watched}
            # Who is quiet waits for the next generation, and cannot be blamed for standing still.
            quiet = frozenset(crew.members) - frozenset(crew.waiting) if crew.changing else frozenset()
            for event in await self._eyes.look(pids, quiet, self.now()):
                self._handle(event)
            self._handle(Ticked())

    async def _let_go(self) -> None:
        """The script has ended everywhere: give its processes the time to leave by themselves."""
        if not self._links:
            return
        for person in self.snapshot().people:
            if person.stage not in _DONE or person.stage == "doomed":
                self._engine.signal(person.worker, signal.SIGKILL)  # it has no part in the end
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._alone.wait(), self._exit_grace)

    async def _stop(self, end: FailRun) -> None:
        """The run has failed: say so to everybody who is left."""
        if not self._links:
            return
        message = encode(Stop(f"{end.kind}: {end.message}"[:MAX_MESSAGE // 8]))
        for link in self._links.values():
            link.send(message)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._alone.wait(), STOP_GRACE)

    def _over(self) -> bool:
        return self._end is None or self._end.done()

    def _handle(self, event: Event) -> None:
        if self._over():
            return
        for command in self._decide(event):
            self._obey(command)

    def _decide(self, event: Event) -> Sequence[Command]:
        commands = self._machine.handle(event, self.now())
        if len(self._machine.story) > self._told:
            failing = any(isinstance(command, FailRun) for command in commands)  # told at the end, in full
            self._notebook.tell(self._machine.story.since(self._told), aloud=not failing)
            self._told = len(self._machine.story)
        return commands

    # ------------------------------------------------------------ commands

    def _obey(self, command: Command) -> None:
        if isinstance(command, Send):
            self._send(command)
        elif isinstance(command, StartWorker):
            link = self._engine.start(command.worker, command.row)
            self._links[command.worker] = link
            self._bells[command.worker] = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            loop = asyncio.get_running_loop()
            loop.add_reader(link.fileno(), self._guarded, self._hear_worker, command.worker)
        elif isinstance(command, KillWorker):
            self._engine.signal(command.worker, signal.SIGKILL)
        elif isinstance(command, MakeArena):
            self._make_arena(command.size)
        else:
            self._finish(command)

    def _send(self, command: Send) -> None:
        link = self._links.get(command.worker)
        if link is None:
            return
        fds: list[int] = []
        if isinstance(command.message, Welcome):
            fds = [self._arena]
        elif isinstance(command.message, Install):
            fds = self._bells_of(command.message)
            self.training_since = self.now() if self.training_since is None else self.training_since
        link.send(encode(command.message), fds)

    def _bells_of(self, install: Install) -> list[int]:
        """The bells of a generation, in order; those that only an older one needed are let go.

        A member that has finished and left stays one, and its generation may have to be said again.
        """
        self._members = frozenset(install.members)
        for worker in [worker for worker in self._bells if worker not in self._links | dict.fromkeys(self._members)]:
            os.close(self._bells.pop(worker))
        return [self._bells[member] for member in install.members]

    def _make_arena(self, size: int) -> None:
        self._arena = memory.reserve(size)
        self._map = mmap.mmap(self._arena, size, prot=mmap.PROT_READ)
        self._eyes.opened(memoryview(self._map))

    def _finish(self, end: EndRun | FailRun) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(end)

    # ------------------------------------------------------------ events

    def _hear_worker(self, worker: int) -> None:
        link = self._links.get(worker)
        while link is not None:
            try:
                frame = link.recv()
            except BlockingIOError:
                return
            if frame is None:  # it has gone, or is going: the engine says so when it is certain
                asyncio.get_running_loop().remove_reader(link.fileno())
                return
            for fd in frame.fds:
                os.close(fd)
            message = _read(frame.data)
            if message is None or message.worker != worker:
                self._engine.signal(worker, signal.SIGKILL)  # it does not speak our language: not one of ours
                return
            if isinstance(message, Failed) and not self._over():  # afterwards it is a consequence of the end
                self.failed.add(worker)
            self._handle(message)

    def _hear_engine(self) -> None:
        for event in self._engine.events():
            if isinstance(event, WorkerStarted):
                self._pids[event.worker] = event.pid
                self._handle(event)
                continue
            self._hear_worker(event.worker)  # its last words come before its end
            self._handle(self._forget(event))
            if not self._links:
                self._alone.set()

    def _forget(self, event: WorkerLost) -> WorkerLost:
        link = self._links.pop(event.worker)
        asyncio.get_running_loop().remove_reader(link.fileno())
        link.close()
        if event.worker not in self._members:
            os.close(self._bells.pop(event.worker))
        self._pids.pop(event.worker, None)
        return self._eyes.lost(event)

    def _guarded(self, act: Callable[..., None], *args: object) -> None:
        """Run a callback of the loop; what it raises ends the run."""
        try:
            act(*args)
        except Exception as error:
            if self._end is None or self._end.done():
                raise
            self._end.set_exception(error)

    def _close(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._engine.fileno())
        for link in self._links.values():
            loop.remove_reader(link.fileno())
        try:
            self._engine.close()
        finally:
            for link in self._links.values():
                link.close()
            for bell in self._bells.values():
                os.close(bell)
            self._links.clear()
            self._bells.clear()
            self._eyes.closed()
            if self._map is not None:
                self._map.close()
                os.close(self._arena)
                self._map = None


def _read(data: bytes) -> FromWorker | None:
    try:
        return decode_from_worker(data)
    except msgspec.MsgspecError:
        return None
