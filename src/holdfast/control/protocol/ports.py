"""What the coordinator's shell needs from the world, as Protocols, so that it imports none of it.

A *host* is one machine's share of a run: it has workers, and an arena that they share. The launcher has one of
its own, where it has workers at all; every other one is an agent at the far end of a connection, and the server
cannot tell which. A host on this machine is made of a *spawner*, which starts and ends processes, and *monitor*, which
see what no message says (progress, frozen and hung workers). A *story writer* keeps what the run has to tell.
The real ones live in `engines` and `observe`; tests pass fakes of a few lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Protocol

import msgspec

from holdfast.control.membership.roster import CrewStatus
from holdfast.control.protocol.commands import EndRun, FailRun, ReleaseHost
from holdfast.control.protocol.events import Event, WorkerLost, WorkerStarted
from holdfast.control.protocol.messages import StoreWanted, ToWorker
from holdfast.control.story import Sentence
from holdfast.transport.link import Link

__all__ = ["HostListener", "HostPort", "Monitor", "Spawner", "StorePort", "StoryWriter", "WatchOrder"]


class WatchOrder(msgspec.Struct, frozen=True):
    """What a host is to watch. Said again all the time, so it is also how a host knows that we are there."""

    watched: list[int] = []  #: workers that have a part in training
    quiet: list[int] = []  #: those of them who stand still because they were asked to
    limit: float = 0.0  #: seconds of silence after which the other side counts as lost
    servers: list[int] = []  #: those of them that own slices and drive no lanes


class HostListener(Protocol):
    """Who listens to a host: the server, or the agent that speaks for the host elsewhere."""

    def heard(self, host: int, event: Event) -> None:
        """Something happened there: to a worker, or to the host itself."""

    def told(self, host: int, sentence: str) -> None:
        """A sentence for the story, of what leads to no decision."""

    def broke(self, host: int, error: Exception) -> None:
        """The host itself failed, and not by anything a worker did."""


class HostPort(Protocol):
    """One machine's share of a run. All methods return at once; what they lead to is heard.

    A host tells its level (`HostLevel`) before it passes on Paused and WorkerLost, and after Seeded; once one of those
    was heard with nobody left who acts in the generation, the level stands still until the next one begins.
    """

    number: int  #: never given to another host of this run
    name: str
    slots: int  #: workers that it offers
    refills: bool  #: another worker can be started in the place of one that is gone

    def open(self, ear: HostListener) -> None:
        """Begin; must be called inside a running loop, which is where `ear` is called as well."""

    def start(self, worker: int, row: int) -> None:
        """Start a process for this worker."""

    def kill(self, worker: int) -> None:
        """Kill this worker's process, if it is there."""

    def make_arena(self, size: int) -> None:
        """Reserve the memory that the host's workers share."""

    def send(self, worker: int, message: ToWorker) -> None:
        """Pass a message on to a worker, with the descriptors that belong to it."""

    async def look(self, sight: WatchOrder, now: float) -> None:
        """See how its workers are; called a few times a second, and never twice at once."""

    def close(self, end: EndRun | FailRun | ReleaseHost | None) -> None:
        """End every process there, and let go of everything. `end` says why, where there is anybody to tell.

        May be called twice. Nothing is heard of the host afterwards.
        """


class Spawner(Protocol):
    """Starts worker processes and tells, for certain, when they are gone.

    Contract (`tests/contract/test_spawner_contract.py` holds every spawner to it):

    * `start` returns our end of the new worker's link at once; the process may take its time;
    * each worker gives one WorkerStarted (if it came to life) and then exactly one WorkerLost,
      and after WorkerLost no instruction of that process runs any more;
    * `signal` to a worker that is gone, or unknown, does nothing;
    * `close` returns when no process of this spawner is left, and may be called twice.
    """

    def start(self, worker: int, row: int) -> Link:
        """Start a process for this worker; the caller closes the link."""

    def signal(self, worker: int, number: int) -> None:
        """Send a signal to this worker's process."""

    def fileno(self) -> int:
        """A descriptor that is readable when `events` has something to say."""

    def events(self) -> Sequence[WorkerStarted | WorkerLost]:
        """What happened since the last call; never waits."""

    def close(self) -> None:
        """End every process, at once."""


class Monitor(Protocol):
    """Sees the workers of one host from outside: their rows in the arena, their processes."""

    def opened(self, arena: memoryview) -> None:
        """The arena is there; its board may be read until `closed`."""

    def closed(self) -> None:
        """The arena goes away: let go of every view of it."""

    async def look(
        self, pids: Mapping[int, int], quiet: Set[int], now: float, servers: Set[int] = frozenset()
    ) -> Sequence[Event]:
        """What has been seen, given the pid of each live worker, who was asked to stand still, and who is a server."""

    def lost(self, event: WorkerLost) -> WorkerLost:
        """Add what the dead worker's row still shows: its step and the unit it was in."""


class StorePort(Protocol):
    """Keeps the parameter store of a run."""

    def wanted(self, message: StoreWanted, host: HostPort) -> None:
        """A worker on this host asks for it; it is answered with StoreAt, now or when it asks again."""

    def crew_changed(self, crew: CrewStatus) -> None:
        """The crew may be another one; said before any of its workers hears of that."""


class StoryWriter(Protocol):
    """Keeps what the run has to tell. Nothing it does may stop the run."""

    def tell(self, entries: Sequence[Sentence], *, aloud: bool = True) -> None:
        """The story has grown by these entries; not `aloud` when somebody else says them better."""
