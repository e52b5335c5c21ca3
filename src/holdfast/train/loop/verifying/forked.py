"""A forked process that goes on with the script for a moment, and leaves no trace but its report.

It is a copy of this process, so what it computes it computes from the very state of the script. Nothing that it does
may be seen by anybody else:

* memory that is shared (the arena) is its own from here on;
* descriptors are let go: what is only read is opened anew, as a copy has its place in a file in common with the
  original; what leads out (output, logs, sockets, doorbells) leads nowhere;
* files that Python code opens to write to are `/dev/null`; other writes, and whatever else leaves a trace (removing
  files, starting processes, connecting), end it with a report that says so.

It ends with its report, or when its parent does, without running any handler.
"""

from __future__ import annotations

import builtins
import fcntl
import gc
import io
import os
import resource
import select
import signal
import socket
import stat
import sys
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from holdfast.transport.processes import die_with_parent

__all__ = ["Forked", "Report"]

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: What leaves a trace, by the names that Python's audit has for it.
_TRACES = frozenset({
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.system", "os.fork",
    "os.forkpty", "os.posix_spawn", "os.exec", "os.kill", "os.killpg", "subprocess.Popen", "socket.connect",
    "socket.sendto", "sqlite3.connect",
})  # fmt: skip


class Report(msgspec.Struct, frozen=True, array_like=True):
    """What the process has found out."""

    differs: list[str]  #: the names of what is not as it was
    digest: int  #: of all that was computed
    failure: str = ""  #: why it could not do it; empty: it could


class Forked:
    """One such process. True in itself, false in its parent. Resources: `report` ends it; `close` waits for its end."""

    def __init__(self, isolate: Callable[[], None]) -> None:
        """`isolate` lets go of shared memory; called in the new process. Raises OSError where there can be none."""
        self._gone = False
        self._ours, theirs = os.pipe()
        parent = os.getpid()
        try:
            with warnings.catch_warnings():
                # Threads that wait do no harm; a copy that waits for a lock of one is given up (`await_report`).
                warnings.simplefilter("ignore", DeprecationWarning)
                self._pid = os.fork()
        except OSError:
            os.close(self._ours)
            os.close(theirs)
            raise
        if self._pid:
            os.close(theirs)
            return
        self._ours = theirs
        try:
            gc.disable()  # what it would look through would be copied
            die_with_parent(parent)
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write("1000")  # where memory is short, it is this process that goes
            isolate()
            _let_go(keep=theirs)
            _leave_no_trace(lambda why: self.report(Report([], 0, why)))
        except BaseException as error:
            self.report(Report([], 0, f"its process could not be set apart ({type(error).__name__}: {error})"))

    def __bool__(self) -> bool:
        return not self._pid

    def report(self, found: Report) -> NoReturn:
        """In the process: say what was found, and end."""
        try:
            os.write(self._ours, msgspec.msgpack.encode(found))
        finally:
            os._exit(0)

    def await_report(self, seconds: float) -> Report:
        """In its parent: what it says, or why it says nothing. It has no more to do then; `close` may come later."""
        poll = select.poll()
        poll.register(self._ours, select.POLLIN)
        try:
            if not poll.poll(seconds * 1000):
                return Report([], 0, f"it took more than {seconds:.0f} s")
            data = os.read(self._ours, 1 << 16)  # all of it, as it is small and was written at once
        finally:
            os.close(self._ours)
            os.kill(self._pid, signal.SIGKILL)
        if not data:
            return Report([], 0, "its process ended without a word")
        return msgspec.msgpack.decode(data, type=Report)

    def close(self, *, wait: bool = True) -> bool:
        """In its parent: is it gone? That takes the kernel some milliseconds, for which it may `wait`."""
        if not self._gone:
            self._gone = os.waitpid(self._pid, 0 if wait else os.WNOHANG)[0] != 0
        return self._gone


#: What stands for sockets: what is written to one is read by nobody, and what comes from it is its end.
_held: list[tuple[socket.socket, socket.socket]] = []


def _let_go(keep: int) -> None:
    """Have nothing in common with the original's files and connections."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd in (keep, null):
            continue
        try:
            kind, flags = os.fstat(fd).st_mode, fcntl.fcntl(fd, fcntl.F_GETFL)
        except OSError:
            continue  # of the listing itself
        access = flags & os.O_ACCMODE
        if stat.S_ISREG(kind) and access != os.O_WRONLY and not flags & os.O_APPEND and fd not in (1, 2):
            own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
            os.lseek(own, os.lseek(fd, 0, os.SEEK_CUR), os.SEEK_SET)
            os.dup2(own, fd)
            os.close(own)
        elif stat.S_ISSOCK(kind):
            with socket.socket(fileno=os.dup(fd)) as theirs:
                nowhere = socket.socketpair(socket.AF_UNIX, theirs.type)
            nowhere[1].shutdown(socket.SHUT_WR)
            _held.append(nowhere)
            os.dup2(nowhere[0].fileno(), fd)
            os.set_blocking(fd, not flags & os.O_NONBLOCK)
        elif not stat.S_ISDIR(kind) and not (stat.S_ISCHR(kind) and access == os.O_RDONLY):
            os.dup2(null, fd)


def _leave_no_trace(give_up: Callable[[str], NoReturn]) -> None:
    opened = io.open

    def quiet(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """As `open`, but what is written goes nowhere."""
        return opened(os.devnull if set(mode) & set("wax+") else file, mode, *args, **kwargs)

    builtins.open = io.open = quiet
    sys.stdout = sys.stderr = opened(os.devnull, "w")  # whatever the script has put in their place

    def watch(event: str, args: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(args[2], int) and args[2] & _WRITES and args[0] != os.devnull
        if writes or event in _TRACES:
            what = f"opens {args[0]} to write to it" if writes else f"calls {event}"
            give_up(f"the loop over the units {what}, which cannot be done a second time unseen")

    sys.addaudithook(watch)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, most))  # for code that is not Python
