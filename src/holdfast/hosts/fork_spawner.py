"""The local spawner: workers on this machine, forked by a forkserver (see `forkserver`).

It holds a pidfd of every worker, made by the worker's parent before anybody could reap it, so a
signal can never reach a stranger that got the same pid. When the forkserver itself is killed, its
workers die with it; the spawner reports each as lost once its pidfd says that it is gone, and the
next `start` makes a new forkserver. Nothing here but `close` waits: requests that the forkserver's link does
not take yet are kept, and deaths, the forkserver's included, are heard through descriptors.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from holdfast.config.limits import PROCESS
from holdfast.config.worker_spec import WorkerSpec
from holdfast.control.protocol.events import WorkerLost, WorkerStarted
from holdfast.errors import RunError
from holdfast.hosts.forkserver import DEFAULT_ENTRY, Report, WorkerForked
from holdfast.hosts.process_sessions import end_sessions
from holdfast.hosts.process_sessions import stuck as stuck_processes
from holdfast.transport.link import Link, Outcome

__all__ = ["ForkSpawner"]

_decode = msgspec.msgpack.Decoder(Report).decode

@dataclass(slots=True)
class _Child:
    """A worker asked for. `pidfd` is -1 until it is born."""

    pidfd: int = -1
    pid: int = 0
    doomed: bool = False


class _Request(NamedTuple):
    """A worker that the forkserver has not been asked for yet."""

    spec: WorkerSpec
    link: Link  #: its end


class ForkSpawner:
    """Starts workers on this machine. See `control.protocol.ports.Spawner` for the contract."""

    def __init__(
        self, spec: WorkerSpec, *, logs: Path, entry: str = DEFAULT_ENTRY, environment: Mapping[str, str] = os.environ
    ) -> None:
        self._spec, self._logs, self._entry, self._told = spec, logs, entry, environment
        self._forkserver: subprocess.Popen[bytes] | None = None
        self._watch = -1  #: the forkserver's pidfd
        self._control: Link | None = None  #: None also while a forkserver is on its way out
        self._fertile = False  #: this forkserver has given birth, so it can
        self._children: dict[int, _Child] = {}
        self._requests: deque[_Request] = deque()
        self._news: deque[WorkerStarted | WorkerLost] = deque()
        self._epoll = select.epoll()
        # A spawner with news of its own (no process involved) wakes its reader through this.
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._bell, select.EPOLLIN)

    @property
    def forkserver_pid(self) -> int:
        """The forkserver's pid, 0 when there is none."""
        return self._forkserver.pid if self._forkserver else 0

    def start(self, worker: int, row: int) -> Link:
        """Ask the forkserver for a worker; our end of its link comes back at once."""
        if self._forkserver is None:
            self._open_forkserver()
        ours, theirs = Link.pair()
        ours.setblocking(False)
        self._children[worker] = _Child()
        self._requests.append(_Request(msgspec.structs.replace(self._spec, worker=worker, row=row), theirs))
        self._ask()
        return ours

    def signal(self, worker: int, number: int) -> None:
        """Send a signal to this worker, if it is alive. A kill asked for before its birth is kept."""
        child = self._children.get(worker)
        if child is None:
            return
        if child.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(child.pidfd, number)
        elif number == signal.SIGKILL:
            child.doomed = True

    def fileno(self) -> int:
        """Readable when `events` has something to say."""
        return self._epoll.fileno()

    def events(self) -> list[WorkerStarted | WorkerLost]:
        """What happened since the last call."""
        alone = False
        for fd, what in self._epoll.poll(0):
            if fd == self._bell:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._bell)
            elif fd == self._watch:
                alone = True
            elif self._control is not None and fd == self._control.fileno():
                if what & ~select.EPOLLOUT:
                    self._hear()
                self._ask()
            else:
                self._orphan_gone(fd)
        if alone:
            self._forkserver_gone()
        news = list(self._news)
        self._news.clear()
        return news

    def close(self) -> None:
        """Kill the forkserver and every worker, and wait until they are gone."""
        if self._epoll.closed:
            return
        stuck: list[int] = []
        if self._forkserver is not None:
            self._forkserver.kill()
            if _ended([self._watch]):
                self._forkserver.wait()
            else:
                stuck.append(self._forkserver.pid)
            self._hear()  # who was born meanwhile
            self._forget_forkserver()
        for worker in self._children:
            self.signal(worker, signal.SIGKILL)
        born = [child for child in self._children.values() if child.pidfd >= 0]
        gone = _ended([child.pidfd for child in born])
        stuck += [child.pid for child in born if child.pidfd not in gone]
        end_sessions([child.pid for child in born if child.pidfd in gone])
        for child in born:
            os.close(child.pidfd)
        for request in self._requests:
            request.link.close()
        self._requests.clear()
        self._children.clear()
        self._epoll.close()
        os.close(self._bell)
        if stuck:
            raise stuck_processes(stuck)

    def _open_forkserver(self) -> None:
        ours, theirs = Link.pair()
        command = [sys.executable, "-P", "-m", "holdfast.hosts.forkserver", "--control", str(theirs.fileno())]
        command += ["--parent", str(os.getpid()), "--entry", self._entry, "--run", self._spec.dir]
        with theirs, self._forkserver_log() as log:
            self._forkserver = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment(),
                pass_fds=[theirs.fileno()], start_new_session=True,  # Ctrl-C in the terminal is ours to hear
            )
        ours.setblocking(False)
        self._control, self._fertile = ours, False
        self._watch = os.pidfd_open(self._forkserver.pid)
        self._epoll.register(self._watch, select.EPOLLIN)
        self._epoll.register(ours.fileno(), select.EPOLLIN)

    def _ask(self) -> None:
        """Pass requests on to the forkserver, as many as its link takes; the rest when it takes more."""
        while self._requests and self._control is not None:
            spec, link = self._requests[0]
            outcome = self._control.offer(msgspec.msgpack.encode(spec), [link.fileno()])
            if outcome is Outcome.GONE:
                return  # we will hear of its end, and ask the next one
            if outcome is Outcome.FULL:
                self._epoll.modify(self._control.fileno(), select.EPOLLIN | select.EPOLLOUT)
                # It may be writable and yet not take this (too many descriptors on their way): do not spin on that.
                time.sleep(PROCESS.poll)
                return
            self._requests.popleft()
            link.close()
        if self._control is not None:
            self._epoll.modify(self._control.fileno(), select.EPOLLIN)

    def _forkserver_log(self) -> BinaryIO:
        try:
            return open(self._logs / "forkserver.log", "ab")
        except OSError:  # the run goes on; that its directory cannot be written is said by whoever writes its story
            return open(os.devnull, "wb")

    def _environment(self) -> dict[str, str]:
        """The environment that workers are to have, with what must be fixed before a process starts."""
        environment = dict(self._told, PYTHONHASHSEED="0", PYTHONUNBUFFERED="1")
        if self._spec.threads is not None:
            environment["OMP_NUM_THREADS"] = environment["MKL_NUM_THREADS"] = str(self._spec.threads)
        return environment

    def _hear(self) -> None:
        """Take in what the forkserver reports. Its end of file is only half of its end: its status is to come."""
        while self._control is not None:
            try:
                frame = self._control.recv()
            except BlockingIOError:
                return
            if frame is None:
                self._close_control()
                return
            report = _decode(frame.data)
            child = self._children[report.worker]
            if isinstance(report, WorkerForked):
                self._fertile = True
                child.pidfd, child.pid = frame.fds[0], report.pid
                self._news.append(WorkerStarted(report.worker, report.pid))
                if child.doomed:
                    self.signal(report.worker, signal.SIGKILL)
            else:
                self._gone(report.worker, report.code)

    def _forkserver_gone(self) -> None:
        """The forkserver has ended: so have its workers, or will at once. The next one is asked for the others."""
        assert self._forkserver is not None
        self._hear()
        status = self._forkserver.wait()  # at once: its pidfd has said so
        self._forget_forkserver()
        unasked = {request.spec.worker for request in self._requests}
        for worker, child in list(self._children.items()):
            if child.pidfd >= 0:
                self.signal(worker, signal.SIGKILL)
                # Of the orphans of an earlier forkserver it is known already.
                with contextlib.suppress(FileExistsError):
                    self._epoll.register(child.pidfd, select.EPOLLIN)
            elif worker not in unasked:
                self._gone(worker, -signal.SIGKILL)  # never born
        if status > 0 and not self._fertile:
            raise RunError(
                f"The process that starts workers ended with status {status} before it was up: "
                f"{self._last_words()} Its output is in {self._logs / 'forkserver.log'}; "
                "`holdfast doctor` checks the installation."
            )
        if self._requests:
            self._open_forkserver()
            self._ask()

    def _forget_forkserver(self) -> None:
        self._close_control()
        self._epoll.unregister(self._watch)
        os.close(self._watch)
        self._forkserver, self._watch = None, -1

    def _close_control(self) -> None:
        if self._control is not None:
            self._epoll.unregister(self._control.fileno())
            self._control.close()
            self._control = None

    def _last_words(self) -> str:
        with contextlib.suppress(OSError, IndexError):
            return (self._logs / "forkserver.log").read_text(errors="replace").strip().splitlines()[-1] + "."
        return "it said nothing."

    def _orphan_gone(self, pidfd: int) -> None:
        for worker, child in list(self._children.items()):
            if child.pidfd == pidfd:
                self._epoll.unregister(pidfd)
                end_sessions([child.pid])  # the forkserver does this itself for a worker that it reaps
                self._gone(worker, -signal.SIGKILL)

    def _gone(self, worker: int, code: int) -> None:
        child = self._children.pop(worker)
        if child.pidfd >= 0:
            os.close(child.pidfd)
        self._news.append(WorkerLost(worker, "signal" if code < 0 else "exit", abs(code)))
        os.eventfd_write(self._bell, 1)


def _ended(pidfds: Sequence[int]) -> set[int]:
    """Those of these processes that have ended; waits for them, but not for ever."""
    waiting = select.poll()
    for pidfd in pidfds:
        waiting.register(pidfd, select.POLLIN)
    ended: set[int] = set()
    until = time.monotonic() + PROCESS.reap
    while len(ended) < len(pidfds) and (ready := waiting.poll(max(0.0, until - time.monotonic()) * 1000)):
        for pidfd, _ in ready:
            waiting.unregister(pidfd)
            ended.add(pidfd)
    return ended
