"""What can happen to a run, in the past tense. The only inputs of the machine.

Messages of workers are events as they are (see `messages`); the ones below come from the shell,
which sees processes, the clock, and the people who use the command line.
"""

from __future__ import annotations

import msgspec

from holdfast.coordinator.messages import FromWorker

__all__ = [
    "DrainRequested", "Event", "Measured", "RunStarted", "ScaleRequested", "Ticked", "WorkerFrozen",
    "WorkerHung", "WorkerLost", "WorkerStarted",
]


class _Event(msgspec.Struct, frozen=True, tag=True):
    """An event. Subclasses are tagged by their class name, so that a log can be replayed."""


class RunStarted(_Event, frozen=True):
    """The launcher is up; nobody works yet."""


class WorkerStarted(_Event, frozen=True):
    """The engine started a process for this worker."""

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
    """How long one unit takes on each worker now, and how far the run is."""

    step: int
    unit_seconds: dict[int, float]


class ScaleRequested(_Event, frozen=True):
    """Somebody wants this many workers."""

    workers: int


class DrainRequested(_Event, frozen=True):
    """Somebody wants the run to end at the next step boundary."""

    reason: str


class Ticked(_Event, frozen=True):
    """Time has passed."""


Event = (
    RunStarted | WorkerStarted | WorkerLost | WorkerFrozen | WorkerHung | Measured | ScaleRequested
    | DrainRequested | Ticked | FromWorker
)
