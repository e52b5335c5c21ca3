"""What the machine wants done, in the imperative. The only outputs of the machine; the shell obeys."""

from __future__ import annotations

import msgspec

from holdfast.control.protocol.messages import ToWorker
from holdfast.errors import by_name

__all__ = ["Command", "EndRun", "FailRun", "KillWorker", "MakeArena", "ReleaseHost", "Send", "StartWorker"]


class _Command(msgspec.Struct, frozen=True, tag=True):
    """A command."""


class StartWorker(_Command, frozen=True):
    """Start a process for this worker on this host. `row` is its row on every board, free of any other live worker."""

    worker: int
    row: int
    host: int


class KillWorker(_Command, frozen=True):
    """Kill this worker's process and report WorkerLost once it is certainly gone (the fence)."""

    worker: int
    reason: str


class MakeArena(_Command, frozen=True):
    """Reserve the shared memory of the run on this host: once, before the first Welcome to a worker there."""

    size: int
    host: int


class ReleaseHost(_Command, frozen=True):
    """This host has no part in the run any more: let it go, and say why.

    `kind` is what that means to it: it may go ("released"), it will not be had as it is ("refused"), or it is not part
    of the run as it stands, and may try again ("lost"). Only in the last case may workers of its be left.
    """

    host: int
    reason: str
    kind: str = "released"


class Send(_Command, frozen=True):
    """Send a message to a worker (it may get lost; the machine says it again when it matters)."""

    worker: int
    message: ToWorker


class EndRun(_Command, frozen=True):
    """All is done: write the summary, end every process. `signal` is the number of the one that wanted it, if any.

    Where another training of the script follows, `again` has what each worker's script has in its variables there.
    """

    reason: str
    result: dict[str, str | int | float | bool | list[int] | None]
    signal: int = 0
    again: list[dict[str, str]] = []


class FailRun(_Command, frozen=True):
    """The run cannot go on: say why, end every process. `kind` is a class name of `errors`.

    `signal` is the number of the one that asked for it, if it was no failure.
    """

    kind: str
    message: str
    trace: str = ""
    signal: int = 0

    @property
    def exit_code(self) -> int:
        """By class of error; that of a bug where it is none of ours."""
        kind = by_name(self.kind)
        return kind.exit_code if kind is not None else 70  # EX_SOFTWARE


Command = StartWorker | KillWorker | MakeArena | ReleaseHost | Send | EndRun | FailRun
