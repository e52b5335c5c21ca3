"""Processes of this machine, as its kernel knows them: what /proc says of one, who is at the other end of a socket.

Nothing is kept. A number may be another process's a moment later, unless somebody holds a pidfd of that one.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["ProcessStat", "command_line", "die_with_parent", "numbers", "peer", "stat"]

_PR_SET_PDEATHSIG = 1
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: what SO_PEERCRED gives
_libc = ctypes.CDLL(None, use_errno=True)


class ProcessStat(NamedTuple):
    """What /proc/PID/stat says, as far as we ask."""

    state: str = ""  #: a letter (R, S, D, T, t, Z); "" when the process is gone
    parent: int = -1
    session: int = -1
    ended: int = 0  #: how a zombie has ended, as `wait` would say it; 0 where we may not know


def stat(pid: int) -> ProcessStat:
    """What the kernel says of a process now."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            # The name before the state is in brackets and may hold anything, brackets included.
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ProcessStat()
    return ProcessStat(fields[0], int(fields[1]), int(fields[3]), int(fields[49]))


def numbers() -> Iterator[int]:
    """The processes there are; some may be gone when it comes to them."""
    return (int(entry) for entry in os.listdir("/proc") if entry.isdecimal())


def command_line(pid: int) -> list[bytes]:
    """The words that a process was started with; none when it is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent ends, whatever it is at then.

    Where the parent's number is known, it ends now if that has happened already.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def peer(sock: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end: anybody on this host may know the name of a socket."""
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid
