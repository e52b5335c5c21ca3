"""Who is who: one record per live worker, the limits of a run, and how people are named in sentences.

Pure data; `crew` and `machine` decide with it. A worker's number is never used again; its row on
the board is, once its process is certainly gone.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from holdfast.config.limits import CrewConfig
from holdfast.config.run_config import board_rows
from holdfast.control.protocol.messages import AtBoundary
from holdfast.errors import ConfigError

__all__ = ["CrewLimits", "CrewStatus", "HostStatus", "Stage", "Worker", "WorkerStatus", "compact", "names", "titled"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CrewLimits:
    """What the machine may do, and how long it waits."""

    lanes: int
    workers: int  #: wanted at the start
    servers: int = 0  #: wanted at the start
    sync: str = "exact"  #: how lanes keep step at the start
    alone: str = ""  #: why there may be no more than one worker on a host; empty where there may
    hosts: int = 1  #: generation 1 waits for so many, however long they take
    follow: bool = True  #: hosts that come late get the state in the background, while the others go on
    listening: bool = False  #: hosts may join, so this machine need not have workers of its own
    replicas: int = 0  #: in relaxed modes: how many hosts besides the primary hold a copy of the state
    staleness: str = "auto"  #: what becomes of stale pushes (`core.sync.staleness`)
    sums_only: bool = False  #: servers sum gradients, and the workers run the optimizer
    logs: str = "logs"  #: where the output of its processes is, in the run's directory
    crew: CrewConfig = field(default_factory=CrewConfig)  #: how long it waits

    def __post_init__(self) -> None:
        if self.lanes < 1:
            raise ConfigError("lanes", self.lanes, "a run needs at least one lane", fix="Use --lanes 4.")
        if self.workers < (0 if self.listening else 1):
            raise ConfigError("workers", self.workers, "a run needs at least one worker", fix="Use --workers 1.")
        if self.workers > 1 and self.alone:
            raise ConfigError("workers", self.workers, self.alone, fix="Use --workers 1.")
        if self.workers > self.lanes:
            raise ConfigError(
                "workers", self.workers, f"there are only {self.lanes} lanes to drive, so some workers would idle",
                fix=f"Use --workers {self.lanes}, or --lanes {self.workers} (this changes the result).",
            )

    @property
    def rows(self) -> int:
        """Rows on the board."""
        return board_rows(self.lanes)


class Stage(StrEnum):
    """How far a worker has come. Workers go down this list; none ever goes back."""

    STARTING = "starting"  #: its process was ordered; the script runs towards its first step
    READY = "ready"  #: it said Ready and fits; the arena is not seeded yet
    SEEDING = "seeding"  #: it was asked to fill the arena with its weights
    WAITING = "waiting"  #: it has the arena; the next generation takes it in
    MEMBER = "member"  #: it is in the installed generation
    FINISHED = "finished"  #: its script came to its end; it writes no more
    REFUSED = "refused"  #: it cannot be part of this run
    DISMISSED = "dismissed"  #: it was told to leave and writes no more
    DOOMED = "doomed"  #: its kill was ordered; until that is confirmed it may still write


@dataclass(slots=True)
class Worker:
    """What the machine knows about one live worker."""

    number: int
    row: int
    host: int
    server: bool = False  #: it owns slices and drives no lanes
    stage: Stage = Stage.STARTING
    leaving: str = ""  #: why it goes or was refused; empty: it stays
    quiet: int = 0  #: the newest generation it said Paused for
    stands: AtBoundary | None = None  #: what it said last of a boundary at which it stands
    sent: float = 0.0  #: when the last message that wants an answer was sent to it
    pid: int = 0

    def shown(self) -> str:
        """Its stage as `status` shows it; a member that is to leave still works, and may still freeze or hang."""
        return "leaving" if self.leaving and self.stage is Stage.MEMBER else str(self.stage)


class WorkerStatus(msgspec.Struct, frozen=True):
    """A worker as `status` shows it."""

    worker: int
    pid: int
    row: int
    stage: str
    lanes: list[int]
    host: int = 0
    server: bool = False
    share: float = 0.0  #: a server's, of the bytes of all parameters, where it is known


class HostStatus(msgspec.Struct, frozen=True):
    """A host as `status` shows it. `level` is how far it is known to be, -1 without the run's state.

    `role` is its part where one host holds the state: primary, replica or mirror; empty elsewhere.
    """

    host: int
    name: str
    slots: int
    level: int
    leaving: str = ""
    role: str = ""


class CrewStatus(msgspec.Struct, frozen=True):
    """The crew as `status` shows it. `waiting` are those whose quiet the next generation waits for."""

    generation: int
    step: int
    wanted: int
    members: list[int]
    drivers: list[int]
    people: list[WorkerStatus]
    lost: int
    changing: bool
    waiting: list[int]
    stopping: bool
    hosts: list[HostStatus] = []
    servers_wanted: int = 0
    servers: list[int] = []  #: those of `members` that own slices and drive no lanes
    sync_wanted: str = "exact"
    hosts_wanted: int = 1  #: before the first step
    modes: tuple[tuple[int, str], ...] = ((0, "exact"),)  #: (step, how lanes keep step from there on), the newest last

    @property
    def sync(self) -> str:
        """How lanes keep step now."""
        return self.modes[-1][1]

    @property
    def lead(self) -> int | None:
        """The worker whose output is shown, and whose result counts."""
        return min(set(self.members).difference(self.servers), default=None)


def compact(numbers: Collection[int]) -> str:
    """Numbers with runs folded.

    >>> compact([0, 2, 3, 4, 9])
    '0, 2-4, 9'
    """
    parts: list[str] = []
    start = last = None
    for number in [*sorted(numbers), None]:
        if start is not None and last is not None and number != last + 1:
            parts.append(str(start) if start == last else f"{start}-{last}")
            start = None
        start = number if start is None else start
        last = number
    return ", ".join(parts)


def names(workers: Collection[int], kind: str = "worker") -> str:
    """Workers, or others, as a sentence names them.

    >>> names([3]), names([0, 1, 3]), names(range(8))
    ('worker 3', 'workers 0, 1 and 3', 'workers 0-7')
    """
    some = sorted(workers)
    if not some:
        return "nobody"
    if len(some) == 1:
        return f"{kind} {some[0]}"
    if len(some) > 4:
        return f"{kind}s {compact(some)}"
    return f"{kind}s {', '.join(map(str, some[:-1]))} and {some[-1]}"


def titled(numbers: Collection[int], servers: Collection[int]) -> str:
    """Processes as a sentence names them, given which of all are servers.

    >>> titled([0, 1, 2], [2, 7]), titled([2], [2, 7])
    ('workers 0 and 1 and server 2', 'server 2')
    """
    some = set(numbers)
    serving = some.intersection(servers)
    parts = [names(part, kind) for part, kind in ((some - serving, "worker"), (serving, "server")) if part]
    return " and ".join(parts) or "nobody"
