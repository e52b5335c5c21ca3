"""The shell around the machine: hosts and the clock speak, commands are obeyed.

It decides nothing. What it hears it hands to `Machine.handle` as an event; what comes back it does.
Everything it was given it closes, whichever way it ends; an exception in any callback ends the run with
that exception instead of leaving it deaf.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence

from holdfast.config.limits import CONTROL
from holdfast.control.machine import Machine
from holdfast.control.membership.liveness import StepPace
from holdfast.control.membership.roster import CrewLimits, CrewStatus
from holdfast.control.protocol.commands import (
    Command,
    EndRun,
    FailRun,
    KillWorker,
    MakeArena,
    ReleaseHost,
    Send,
    StartWorker,
)
from holdfast.control.protocol.events import (
    DrainRequested,
    Event,
    HostJoined,
    HostLost,
    Measured,
    Resumed,
    RunStarted,
    ScaleRequested,
    ServersRequested,
    SyncRequested,
    Ticked,
    WorkerLost,
)
from holdfast.control.protocol.messages import Failed, Install, Stop, StoreWanted
from holdfast.control.protocol.ports import HostPort, StorePort, StoryWriter, WatchOrder
from holdfast.control.story import Sentence
from holdfast.transport.link import MAX_MESSAGE

__all__ = ["Coordinator"]

#: Workers in these stages have nothing to do with training any more, and are not watched.
_DONE = frozenset({"finished", "dismissed", "refused", "doomed"})


class Coordinator:
    """One run's coordinator.

    Args:
        limits: for the machine.
        store service: who keeps the store of this run, for scripts that ask for one.

    Resources: `run` closes every host before it returns or raises.
    """

    def __init__(
        self,
        limits: CrewLimits,
        *,
        story_writer: StoryWriter,
        store_service: StorePort | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._crew, self._store_service = limits.crew, store_service
        self._machine = Machine(limits)
        self._story_writer = story_writer
        self._clock, self._began = clock, clock()
        self._told = 0
        self.training_since: float | None = None  #: when the first generation began
        self.failed: set[int] = set()  #: workers whose script raised: their traces are told at the end
        self.before_generation: Callable[[], None] = lambda: None  #: called before its members hear of a new generation
        self.before_end: Callable[[EndRun], Awaitable[None]] = _nothing  #: awaited when all workers have come there
        self._newest = 0  # the newest generation that was ordered
        self._hosts: dict[int, HostPort] = {}
        self._numbered = 0
        self._homes: dict[int, HostPort] = {}  #: worker -> where its process is
        self._measured: dict[int, Measured] = {}  #: host -> its newest report, until all of them are told as one
        self._pace = StepPace(limits.crew)
        self._early: list[HostPort] = []  #: those who joined before the run began
        self._group: asyncio.TaskGroup | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._end: asyncio.Future[EndRun | FailRun] | None = None
        self._alone = asyncio.Event()  #: no worker process is left, or nobody wants to wait for them

    # ------------------------------------------------------------ what others may ask

    def now(self) -> float:
        """Seconds since the run began."""
        return self._clock() - self._began

    def snapshot(self) -> CrewStatus:
        """The crew as it stands."""
        return self._machine.snapshot()

    def holding(self) -> list[int]:
        """The hosts that hold the newest state, or the one before it."""
        return self._machine.holding()

    def resumable(self) -> Resumed | None:
        """What a checkpoint must say of the run; None before its first step."""
        return self._machine.resumable()

    @property
    def over(self) -> bool:
        """The end of the run is decided."""
        return self._end is not None and self._end.done()

    def drain(self, reason: str, signal: int = 0) -> None:
        """End at the next step boundary, with everything saved."""
        self._handle(DrainRequested(reason, signal))

    def ask(self, event: ScaleRequested | ServersRequested | SyncRequested) -> str:
        """Ask for more or fewer workers or servers, or another mode; what was decided, in a sentence."""
        before = len(self._machine.story)
        self._handle(event)
        news = self._machine.story.since(before)
        return news[-1].sentence if news else "there is nothing to change"

    def abort(self, reason: str, signal: int = 0) -> None:
        """End now; nothing is waited for."""
        self._alone.set()
        self._finish(FailRun("Stopped", reason, signal=signal))

    def number(self) -> int:
        """A number for a new host."""
        self._numbered += 1
        return self._numbered

    def admit(self, host: HostPort) -> None:
        """A host has joined. From now on it is ours to close."""
        if self._group is None:
            self._early.append(host)
            return
        self._take(host)
        self._tell_limit()
        self._joined(host)

    def _take(self, host: HostPort) -> None:
        assert self._group is not None
        self._hosts[host.number] = host
        host.open(self)
        self._tasks.append(self._group.create_task(self._attend(host), name=f"host {host.number}"))

    def _joined(self, host: HostPort) -> None:
        self._handle(HostJoined(host.number, host.name, host.slots, host.refills))

    # ------------------------------------------------------------ the run

    async def run(self, hosts: Sequence[HostPort], resumed: Resumed | None = None) -> EndRun | FailRun:
        """Train. Returns how it ended; raises only what is no fault of the run (memory, our own bugs).

        `hosts` are those that are there from the beginning; `admit` takes in others. A run that goes on is `resumed`.
        """
        self._end = asyncio.get_running_loop().create_future()
        end: EndRun | FailRun | None = None
        try:
            async with asyncio.TaskGroup() as self._group:
                for host in hosts:
                    self._take(host)
                self._handle(RunStarted(resumed))
                for host in hosts:
                    self._joined(host)
                for host in self._early:
                    self.admit(host)
                self._tasks.append(self._group.create_task(self._tick(), name="tick"))
                end = await self._end
                # Hosts are attended to until they are closed: who hears nothing of us counts us as lost.
                if isinstance(end, EndRun):
                    await self.before_end(end)
                    await self._let_go()
                else:
                    await self._stop(end)
                for task in self._tasks:
                    task.cancel()
            return end
        except ExceptionGroup as several:  # the group's, around the one thing that went wrong
            error = several.exceptions[0]
            end = FailRun(type(error).__name__, str(error))
            raise error from None
        finally:
            self._close(end)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(CONTROL.tick)
            self._handle(Ticked())

    async def _attend(self, host: HostPort) -> None:
        """Watch one host for as long as it is there."""
        while self._hosts.get(host.number) is host:
            crew = self.snapshot()
            here = {worker for worker, primary in self._homes.items() if primary is host}
            watched = {person.worker for person in crew.people if person.stage not in _DONE} & here
            # Who is quiet waits for the next generation, and cannot be blamed for standing still.
            quiet = set(crew.members) - set(crew.waiting) if crew.changing else set()
            servers = {person.worker for person in crew.people if person.server} & watched
            sight = WatchOrder(sorted(watched), sorted(quiet & watched), self._pace.limit, sorted(servers))
            await host.look(sight, self.now())
            await asyncio.sleep(CONTROL.tick)

    async def _let_go(self) -> None:
        """The script has ended everywhere: give its processes the time to leave by themselves."""
        leaving = {person.worker for person in self.snapshot().people if person.stage in _DONE - {"doomed"}}
        for worker, host in list(self._homes.items()):
            if worker not in leaving:  # it has no part in the end, and is not waited for
                host.kill(worker)
                del self._homes[worker]
        if not self._homes:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._alone.wait(), self._crew.exit_grace)

    async def _stop(self, end: FailRun) -> None:
        """The run has failed: say so to everybody who is left."""
        if not self._homes:
            return
        message = Stop(f"{end.kind}: {end.message}"[:MAX_MESSAGE // 8])
        for worker, host in list(self._homes.items()):
            host.send(worker, message)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._alone.wait(), CONTROL.stop_grace)

    def _handle(self, event: Event) -> None:
        if self._end is None or self._end.done():
            return
        commands = self._decide(event)
        if self._store_service is not None and (commands or not isinstance(event, Ticked | Measured)):
            self._store_service.crew_changed(self.snapshot())
        for command in commands:
            self._obey(command)

    def _decide(self, event: Event) -> Sequence[Command]:
        commands = self._machine.handle(event, self.now())
        if len(self._machine.story) > self._told:
            failing = any(isinstance(command, FailRun) for command in commands)  # told at the end, in full
            self._story_writer.tell(self._machine.story.since(self._told), aloud=not failing)
            self._told = len(self._machine.story)
        return commands

    # ------------------------------------------------------------ commands

    def _obey(self, command: Command) -> None:
        if isinstance(command, Send):
            self._send(command)
        elif isinstance(command, StartWorker):
            host = self._homes[command.worker] = self._hosts[command.host]
            host.start(command.worker, command.row)
        elif isinstance(command, KillWorker):
            if command.worker in self._homes:
                self._homes[command.worker].kill(command.worker)
        elif isinstance(command, MakeArena):
            self._hosts[command.host].make_arena(command.size)
        elif isinstance(command, ReleaseHost):
            self._drop(command.host, command)
        else:
            self._finish(command)

    def _send(self, command: Send) -> None:
        host = self._homes.get(command.worker)
        if host is None:
            return
        if isinstance(command.message, Install) and command.message.generation > self._newest:
            self._newest = command.message.generation
            self.training_since = self.now() if self.training_since is None else self.training_since
            self.before_generation()
        host.send(command.worker, command.message)

    def _finish(self, end: EndRun | FailRun) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(end)

    # ------------------------------------------------------------ events

    def heard(self, host: int, event: Event) -> None:
        """Something happened on a host: see `ports.Ear`."""
        if host not in self._hosts:
            return
        if isinstance(event, Measured):
            self._take_measures(host, event)
            return
        if isinstance(event, StoreWanted):
            if self._store_service is not None:
                self._store_service.wanted(event, self._hosts[host])
            return
        if isinstance(event, Failed) and not self.over:  # afterwards it is a consequence of the end
            self.failed.add(event.worker)
        if isinstance(event, WorkerLost):
            self._homes.pop(event.worker, None)
        self._handle(event)
        if isinstance(event, HostLost):
            self._drop(host)
        if not self._homes:
            self._alone.set()

    def told(self, host: int, sentence: str) -> None:
        """A host has something to tell."""
        self._story_writer.tell([Sentence(self.now(), "HostPort", f"host {host}: {sentence}")], aloud=False)

    def broke(self, host: int, error: Exception) -> None:
        """A host failed, and so does the run."""
        if self._end is None or self._end.done():
            raise error
        else:
            self._end.set_exception(error)

    def _take_measures(self, host: int, event: Measured) -> None:
        """Tell the machine what all hosts measured as one report, or as much as there is when one reports again."""
        self._pace.reached(event.step, self.now())
        if len(self._hosts) > 1:
            self._tell_limit()
        if host in self._measured:
            self._tell_measures()
        self._measured[host] = event
        if self._measured.keys() >= self._hosts.keys():
            self._tell_measures()

    def _tell_measures(self) -> None:
        reports, self._measured = list(self._measured.values()), {}
        seconds = {worker: value for report in reports for worker, value in report.unit_seconds.items()}
        applied = {worker: value for report in reports for worker, value in report.applied.items()}
        self._handle(Measured(max(report.step for report in reports), seconds, applied))

    def _tell_limit(self) -> None:
        if news := self._pace.news():
            self._story_writer.tell([Sentence(self.now(), "Limits", news)], aloud=False)

    def _drop(self, host: int, end: ReleaseHost | None = None) -> None:
        gone = self._hosts.pop(host, None)
        self._measured.pop(host, None)
        if gone is not None:
            self._homes = {worker: primary for worker, primary in self._homes.items() if primary is not gone}
            gone.close(end)

    def _close(self, end: EndRun | FailRun | None) -> None:
        with contextlib.ExitStack() as stack:  # all of them, whatever one of them raises
            for host in self._hosts.values():
                stack.callback(host.close, end)
        self._hosts.clear()
        self._homes.clear()


async def _nothing(end: EndRun) -> None:
    """Nobody has anything to do."""
