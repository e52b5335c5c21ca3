"""The local engine: workers on this machine, forked by a nursery (see `nursery`).

It holds a pidfd of every worker, made by the worker's parent before anybody could reap it, so a
signal can never reach a stranger that got the same pid. When the nursery itself is killed, its
workers die with it; the engine reports each as lost once its pidfd says that it is gone, and the
next `start` makes a new nursery.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from holdfast.config.worker import WorkerSpec
from holdfast.coordinator.events import WorkerLost, WorkerStarted
from holdfast.engines.nursery import DEFAULT_ENTRY, Born, Report
from holdfast.errors import ResourceError, RunError
from holdfast.transport.link import Link

__all__ = ["LocalEngine"]

_decode = msgspec.msgpack.Decoder(Report).decode
#: How long `close` waits for killed processes. The kernel needs milliseconds; a process in an
#: uninterruptible wait (a dead network disk) may need for ever, and then we say so.
_REAP_SECONDS = 10.0


@dataclass(slots=True)
class _Child:
    """A worker asked for. `pidfd` is -1 until it is born."""

    pidfd: int = -1
    pid: int = 0
    doomed: bool = False


class LocalEngine:
    """Starts workers on this machine. See `coordinator.ports.Engine` for the contract."""

    def __init__(self, spec: WorkerSpec, *, logs: Path, entry: str = DEFAULT_ENTRY) -> None:
        self._spec, self._logs, self._entry = spec, logs, entry
        self._nursery: subprocess.Popen[bytes] | None = None
        self._control: Link | None = None
        self._fertile = False  #: this nursery has given birth, so it can
        self._children: dict[int, _Child] = {}
        self._news: deque[WorkerStarted | WorkerLost] = deque()
        self._epoll = select.epoll()
        # An engine with news of its own (no process involved) wakes its reader through this.
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._bell, select.EPOLLIN)

    @property
    def nursery_pid(self) -> int:
        """The nursery's pid, 0 when there is none."""
        return self._nursery.pid if self._nursery else 0

    def start(self, worker: int, row: int) -> Link:
        """Ask the nursery for a worker; our end of its link comes back at once."""
        if self._control is None:
            self._open_nursery()
        assert self._control is not None
        ours, theirs = Link.pair()
        spec = msgspec.structs.replace(self._spec, worker=worker, row=row)
        self._children[worker] = _Child()
        with theirs:
            taken = self._control.send(msgspec.msgpack.encode(spec), [theirs.fileno()])
        if not taken:  # the nursery died this moment: its end of file tells the rest
            self._drop_nursery()
        ours.setblocking(False)
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
        for fd, _ in self._epoll.poll(0):
            if fd == self._bell:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._bell)
            elif self._control is not None and fd == self._control.fileno():
                self._hear()
            else:
                self._orphan_gone(fd)
        news = list(self._news)
        self._news.clear()
        return news

    def close(self) -> None:
        """Kill the nursery and every worker, and wait until they are gone."""
        if self._epoll.closed:
            return
        for child in self._children.values():
            if child.pidfd >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
        self._drop_nursery()
        waiting = select.poll()
        alive = {child.pidfd: worker for worker, child in self._children.items() if child.pidfd >= 0}
        for pidfd in alive:
            waiting.register(pidfd, select.POLLIN)
        while alive:
            ready = waiting.poll(_REAP_SECONDS * 1000)
            if not ready:
                break
            for pidfd, _ in ready:
                waiting.unregister(pidfd)
                del alive[pidfd]
        for child in self._children.values():
            _end_session(child)
        pids = {worker: child.pid for worker, child in self._children.items()}
        self._children.clear()
        self._epoll.close()
        os.close(self._bell)
        if alive:
            stuck = ", ".join(str(pids[worker]) for worker in alive.values())
            raise ResourceError(
                f"Processes {stuck} do not end {_REAP_SECONDS:.0f} s after they were killed: they wait for the system "
                "(a disk or a network file system that does not answer). They end when it does."
            )

    def _open_nursery(self) -> None:
        ours, theirs = Link.pair()
        command = [sys.executable, "-P", "-m", "holdfast.engines.nursery", "--control", str(theirs.fileno())]
        command += ["--parent", str(os.getpid()), "--entry", self._entry, "--run", self._spec.dir]
        with theirs, self._nursery_log() as log:
            self._nursery = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment(),
                pass_fds=[theirs.fileno()], start_new_session=True,  # Ctrl-C in the terminal is ours to hear
            )
        ours.setblocking(False)
        self._control, self._fertile = ours, False
        self._epoll.register(ours.fileno(), select.EPOLLIN)

    def _nursery_log(self) -> BinaryIO:
        try:
            return open(self._logs / "nursery.log", "ab")
        except OSError:
            return open(os.devnull, "wb")

    def _environment(self) -> dict[str, str]:
        """Our own environment, with what must be fixed before a process starts."""
        environment = dict(os.environ, PYTHONHASHSEED="0", PYTHONUNBUFFERED="1")
        if self._spec.threads is not None:
            environment["OMP_NUM_THREADS"] = environment["MKL_NUM_THREADS"] = str(self._spec.threads)
        return environment

    def _hear(self) -> None:
        assert self._control is not None
        while self._control is not None:
            try:
                frame = self._control.recv()
            except BlockingIOError:
                return
            if frame is None:
                with contextlib.suppress(subprocess.TimeoutExpired):  # it is leaving: hear how
                    assert self._nursery is not None
                    self._nursery.wait(1.0)
                status = self._drop_nursery()
                if status > 0 and not self._fertile:
                    raise RunError(
                        f"The process that starts workers ended with status {status} before it was up: "
                        f"{self._last_words()} Its output is in {self._logs / 'nursery.log'}; "
                        "`holdfast doctor` checks the installation."
                    )
                return
            report = _decode(frame.data)
            child = self._children[report.worker]
            if isinstance(report, Born):
                self._fertile = True
                child.pidfd, child.pid = frame.fds[0], report.pid
                self._news.append(WorkerStarted(report.worker, report.pid))
                if child.doomed:
                    self.signal(report.worker, signal.SIGKILL)
            else:
                self._gone(report.worker, report.code)

    def _drop_nursery(self) -> int:
        """The nursery is gone, or shall be: end it for certain, and its workers with it. Its exit status."""
        if self._nursery is None or self._control is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            self._nursery.kill()
        status = self._nursery.wait()
        control, self._control, self._nursery = self._control, None, None
        self._epoll.unregister(control.fileno())
        control.close()
        for worker, child in list(self._children.items()):
            if child.pidfd < 0:
                self._gone(worker, -signal.SIGKILL)  # never born
            else:
                self.signal(worker, signal.SIGKILL)
                self._epoll.register(child.pidfd, select.EPOLLIN)
        return status

    def _last_words(self) -> str:
        with contextlib.suppress(OSError, IndexError):
            return (self._logs / "nursery.log").read_text(errors="replace").strip().splitlines()[-1] + "."
        return "it said nothing."

    def _orphan_gone(self, pidfd: int) -> None:
        for worker, child in list(self._children.items()):
            if child.pidfd == pidfd:
                self._epoll.unregister(pidfd)
                _end_session(child)
                self._gone(worker, -signal.SIGKILL)

    def _gone(self, worker: int, code: int) -> None:
        child = self._children.pop(worker)
        if child.pidfd >= 0:
            os.close(child.pidfd)
        self._news.append(WorkerLost(worker, "signal" if code < 0 else "exit", abs(code)))
        os.eventfd_write(self._bell, 1)


def _end_session(child: _Child) -> None:
    """Kill what a dead worker may have left in its session (data loaders), and let go of its pidfd.

    The nursery does this itself for a worker it reaps; here it is for workers whose nursery is gone.
    """
    if child.pidfd < 0:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    os.close(child.pidfd)
    child.pidfd = -1
