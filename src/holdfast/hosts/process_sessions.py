"""Process sessions: ends what a dead worker has left in its session, and names a worker that does not end.

A worker leads a session of its own number. The kernel gives that number to nobody else while anybody of
the session lives; once all are gone, it may go to a stranger. So a session is ended member by member, each
held by a pidfd while it is looked at, and not at all when a process that lives has the number itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection

from holdfast.config.limits import PROCESS
from holdfast.errors import ResourceError
from holdfast.transport.processes import numbers, stat

__all__ = ["end_sessions", "stuck"]


def stuck(pids: Collection[int]) -> ResourceError:
    """What is said of processes that were killed and do not end."""
    return ResourceError(
        f"Processes {', '.join(map(str, pids))} do not end {PROCESS.reap:.0f} s after they were killed: they "
        "wait for the system (a disk or a network file system that does not answer). They end when it does."
    )


def end_sessions(leaders: Collection[int]) -> None:
    """Kill every process in the sessions of these leaders, all of which are dead."""
    dead = {leader for leader in leaders if stat(leader).state in ("", "Z", "X")}
    if not dead:
        return
    for pid in numbers():
        if stat(pid).session in dead:
            _kill(pid, dead)


def _kill(pid: int, sessions: Collection[int]) -> None:
    with contextlib.suppress(OSError):  # it is gone, or not ours to end
        pidfd = os.pidfd_open(pid)
        try:
            if stat(pid).session in sessions:  # once more, now that the number cannot change its meaning
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)
