"""What can happen to a run, in the past tense. The only inputs of the machine.

Messages of workers are events as they are (see `messages`); the ones below come from the shell,
which sees machines, processes, the clock, and the people who use the command line.
"""

from __future__ import annotations

import msgspec

from holdfast.control.protocol.messages import FromWorker, Reached, Ready

__all__ = [
    "CatchUpEnded",
    "DrainRequested",
    "Event",
    "HostJoined",
    "HostLeaving",
    "HostLevel",
    "HostLost",
    "HostUnreached",
    "LinkBroken",
    "Measured",
    "Resumed",
    "RunStarted",
    "ScaleRequested",
    "ServersRequested",
    "SyncRequested",
    "Ticked",
    "WorkerFrozen",
    "WorkerHung",
    "WorkerLost",
    "WorkerStarted",
]  # fmt: skip


class _Event(msgspec.Struct, frozen=True, tag=True):
    """An event. Subclasses are tagged by their class name, so that a log can be replayed."""


class Resumed(msgspec.Struct, frozen=True):
    """Where a run goes on that had come to an end: what the coordinator must know again of it."""

    first: Ready  #: what the first worker of the run had built: the measure for all that come now
    modes: list[Reached]  #: how lanes have kept step, the newest last
    step: int
    ended: bool = False  #: the script had come to its end: it may go on with other data

    @property
    def version(self) -> int:
        """Of the state that it goes on with, in mode `exact`, but for versions beyond those of steps."""
        return self.step + self.modes[-1].version - self.modes[-1].step


class RunStarted(_Event, frozen=True):
    """The launcher is up; nobody works yet. HostJoined(0, ...) follows where the launcher's machine trains, too.

    A run that is `resumed` begins with the state of a checkpoint: the host whose arena is seeded puts it there.
    """

    resumed: Resumed | None = None


class HostJoined(_Event, frozen=True):
    """A machine became part of the run and offers room for `slots` workers. Its number was never used before.

    Without `refills` it has so many processes once and for all: whoever is lost there has no successor.
    """

    host: int
    name: str
    slots: int
    refills: bool = True


class HostLeaving(_Event, frozen=True):
    """A machine wants to go, in order: its workers leave, then it is released. Said once or often."""

    host: int
    reason: str


class HostLost(_Event, frozen=True):
    """A machine is gone, or nothing is heard of it. Its workers may still run; nobody here reads what they write."""

    host: int
    reason: str


class HostLevel(_Event, frozen=True):
    """How far a host's arena is: the next step it has no need of others for; -1 while it holds no state.

    The host says it before each Paused, Finished and WorkerLost of its workers, after Seeded, and when a state
    that it was to fetch has come. So once all its members are quiet, the newest one is exact; an older one may
    be too low, never too high.

    In relaxed modes, `of` is the newest generation in which the host made that state, or got its copy of
    it: what others have made since is newer, whatever its number.

    `given` are the first lanes of the shares that workers there have given for the step that begins with this level, in
    a plain loop of mode `exact`. Where a script has had such a loop, steps are made of `shares`: made once more, with
    others there, a step is another one.
    """

    host: int
    level: int
    of: int = 0
    given: list[int] = []
    shares: bool = False


class HostUnreached(_Event, frozen=True):
    """This host has tried in vain to reach another one, for so long that it will not, though both may be there.

    `reason` says so: who cannot reach whom, where, and what happened.
    """

    host: int
    other: int
    reason: str


class LinkBroken(_Event, frozen=True):
    """A connection of this host to another one has ended, though both may be there: a new generation makes new ones."""

    host: int
    reason: str


class CatchUpEnded(_Event, frozen=True):
    """This host was following another one, and gets nothing from it any more."""

    host: int
    reason: str


class WorkerStarted(_Event, frozen=True):
    """The spawner started a process for this worker."""

    worker: int
    pid: int


class WorkerLost(_Event, frozen=True):
    """A worker's process is gone, for certain. `unit` is the (step, lane) it was computing, if any.

    `cause` is "exit" with `code`, or "signal" with `code` the signal's number.
    """

    worker: int
    cause: str
    code: int
    step: int = -1
    unit: tuple[int, int] | None = None
    samples: list[int] = []


class WorkerFrozen(_Event, frozen=True):
    """A worker's process exists but is stopped by the system (SIGSTOP, a debugger) for `seconds`."""

    worker: int
    seconds: float


class WorkerHung(_Event, frozen=True):
    """A worker runs but has made no progress for `seconds`; `where` is the line it stands at."""

    worker: int
    seconds: float
    where: str
    unit: tuple[int, int] | None = None
    samples: list[int] = []


class Measured(_Event, frozen=True):
    """How long one unit takes on each worker now, and how far the run is.

    `applied` is what each has updated of slices since it began: (bytes, seconds that it took).
    """

    step: int
    unit_seconds: dict[int, float]
    applied: dict[int, tuple[int, float]] = {}


class ScaleRequested(_Event, frozen=True):
    """Somebody wants this many workers."""

    workers: int


class ServersRequested(_Event, frozen=True):
    """Somebody wants this many servers."""

    servers: int


class SyncRequested(_Event, frozen=True):
    """Somebody wants lanes to keep step in this way. So many bytes are `free` (such as "free on this machine")."""

    sync: str
    free: int = 1 << 62
    where: str = ""


class DrainRequested(_Event, frozen=True):
    """Somebody wants the run to end at the next step boundary. `signal` is the one that said so, by number, if any."""

    reason: str
    signal: int = 0


class Ticked(_Event, frozen=True):
    """Time has passed."""


Event = (
    RunStarted | HostJoined | HostLeaving | HostLost | HostLevel | HostUnreached | LinkBroken | CatchUpEnded
    | WorkerStarted | WorkerLost | WorkerFrozen | WorkerHung | Measured | ScaleRequested | ServersRequested
    | SyncRequested | DrainRequested | Ticked | FromWorker
)
