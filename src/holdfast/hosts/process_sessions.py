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

__all__ = ["end_sessions", "stuck"]



def stuck(pids: Collection[int]) -> ResourceError:
    """What is said of processes that were killed and do not end."""
    return ResourceError(
        f"Processes {', '.join(map(str, pids))} do not end {PROCESS.reap:.0f} s after they were killed: they "
        "wait for the system (a disk or a network file system that does not answer). They end when it does."
    )


def end_sessions(leaders: Collection[int]) -> None:
    """Kill every process in the sessions of these leaders, all of which are dead."""
    dead = {leader for leader in leaders if _stat(leader)[0] in ("", "Z", "X")}
    if not dead:
        return
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and _stat(int(entry))[1] in dead:
            _kill(int(entry), dead)


def _kill(pid: int, sessions: Collection[int]) -> None:
    with contextlib.suppress(OSError):  # it is gone, or not ours to end
        pidfd = os.pidfd_open(pid)
        try:
            if _stat(pid)[1] in sessions:  # once more, now that the number cannot change its meaning
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)


def _stat(pid: int) -> tuple[str, int]:
    """(state, session) of a process; ("", -1) if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return "", -1
    return fields[0], int(fields[3])
