"""What the coordinator's shell needs from the world, as Protocols, so that it imports none of it.

An *engine* starts and ends processes; *eyes* see what no message says (progress, frozen and hung
workers); a *notebook* keeps what the run has to tell. The real ones live in `engines` and `observe`;
tests pass fakes of a few lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Protocol

from holdfast.coordinator.events import Event, WorkerLost, WorkerStarted
from holdfast.transport.link import Link

__all__ = ["Engine", "Eyes", "Notebook", "StoryEntry"]


class Engine(Protocol):
    """Starts worker processes and tells, for certain, when they are gone.

    Contract (`tests/contract/test_engine_contract.py` holds every engine to it):

    * `start` returns our end of the new worker's link at once; the process may take its time;
    * each worker gives one WorkerStarted (if it came to life) and then exactly one WorkerLost,
      and after WorkerLost no instruction of that process runs any more;
    * `signal` to a worker that is gone, or unknown, does nothing;
    * `close` returns when no process of this engine is left, and may be called twice.
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


class Eyes(Protocol):
    """Sees the workers from outside: their rows in the arena, their processes."""

    def opened(self, arena: memoryview) -> None:
        """The arena is there; its board may be read until `closed`."""

    def closed(self) -> None:
        """The arena goes away: let go of every view of it."""

    async def look(self, pids: Mapping[int, int], quiet: Set[int], now: float) -> Sequence[Event]:
        """What has been seen, given the pid of each live worker, and who was asked to stand still."""

    def lost(self, event: WorkerLost) -> WorkerLost:
        """Add what the dead worker's row still shows: its step and the unit it was in."""


class StoryEntry(Protocol):
    """One sentence of the run's story."""

    @property
    def sentence(self) -> str:
        """What was decided, and why."""


class Notebook(Protocol):
    """Keeps what the run has to tell. Nothing it does may stop the run."""

    def tell(self, entries: Sequence[StoryEntry], *, aloud: bool = True) -> None:
        """The story has grown by these entries; not `aloud` when somebody else says them better."""
