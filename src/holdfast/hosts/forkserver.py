"""The forkserver: a process that has imported everything once and forks a worker for each request.

    launcher ── forkserver ──┬── worker 0
     (spawner)            └── worker 1

So a worker starts in milliseconds, where importing torch takes seconds. Rules:

* the forkserver runs no user code and starts no thread: what it forks is clean;
* every process dies with its parent (PR_SET_PDEATHSIG), so nothing outlives the launcher, however
  it ended;
* a worker is the leader of its own session; when it is gone, so is everything it left behind;
* a worker that cannot be started (no process, no descriptor left) is a lost worker, and no more.

Run as `python -m holdfast.hosts.forkserver`, by `fork_spawner.ForkSpawner` only.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import errno
import faulthandler
import gc
import importlib
import io
import multiprocessing.process
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from holdfast.config.limits import PROCESS
from holdfast.config.training_folder import of_training
from holdfast.config.worker_spec import WorkerSpec
from holdfast.transport.link import DescriptorsLost, Link, Outcome
from holdfast.transport.processes import die_with_parent

__all__ = ["DEFAULT_ENTRY", "Report", "WorkerDied", "WorkerForked", "log_path", "main", "stack_path"]

#: Called in each new process as `main(spec, link_fd)`. A function `warm_up()` beside it, where there
#: is one, is called once in the forkserver, to import and initialise what every worker will need.
DEFAULT_ENTRY = "holdfast.train.worker:main"

#: Who ends a whole service sends these to every process. The forkserver leaves with the launcher, which
#: drains first; a worker hears them itself.
_OTHERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_decode = msgspec.msgpack.Decoder(WorkerSpec).decode


class WorkerForked(msgspec.Struct, frozen=True, tag=True):
    """The worker has a process; its pidfd travels with this message."""

    worker: int
    pid: int


class WorkerDied(msgspec.Struct, frozen=True, tag=True):
    """The worker's process has been reaped, or could not be made. `code` is its exit status, or minus the signal."""

    worker: int
    code: int


Report = WorkerForked | WorkerDied


def log_path(spec: WorkerSpec) -> Path:
    """Where this worker's output goes."""
    return of_training(Path(spec.dir, "logs"), spec.training) / f"worker-{spec.worker}.log"


def stack_path(spec: WorkerSpec) -> Path:
    """Where this worker writes its stacks on SIGUSR2."""
    return log_path(spec).with_suffix(".stack")


def main(argv: list[str] | None = None) -> int:
    """Serve until the launcher is gone."""
    parser = argparse.ArgumentParser(prog="holdfast.hosts.forkserver")
    parser.add_argument("--control", type=int, required=True, help="descriptor of the link to the spawner")
    parser.add_argument("--parent", type=int, required=True, help="pid of the launcher")
    parser.add_argument("--entry", default=DEFAULT_ENTRY, help="module:function that a worker runs")
    parser.add_argument("--run", required=True, help="the run's directory (so that people see it in ps)")
    options = parser.parse_args(argv)
    die_with_parent(options.parent)
    for number in _OTHERS:
        signal.signal(number, signal.SIG_IGN)
    control = Link.from_fd(options.control)
    gc.disable()  # until everything is there: on the way it would find nothing, a thousand times
    module_name, _, function = options.entry.partition(":")
    module = importlib.import_module(module_name)
    getattr(module, "warm_up", lambda: None)()
    gc.collect()
    gc.freeze()  # what is alive now stays shared between the workers: the collector must not touch it
    gc.enable()
    return _serve(control, getattr(module, function))


def _serve(control: Link, entry: Callable[[WorkerSpec, int], object]) -> int:
    children: dict[int, tuple[int, int]] = {}  #: pidfd -> (worker, pid)
    poll = select.poll()
    poll.register(control.fileno(), select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd in children:
                poll.unregister(fd)
                worker, pid = children.pop(fd)
                _tell(control, WorkerDied(worker, _reap(pid)))
                os.close(fd)
                continue
            try:
                frame = control.recv()
            except DescriptorsLost as error:  # of the new worker's link
                _stillborn(control, _decode(error.data), error)
                continue
            if frame is None:
                return 0  # the launcher is gone; the workers follow us by PDEATHSIG
            spec, (link_fd,) = _decode(frame.data), frame.fds
            try:
                pid, pidfd = _bear(spec, link_fd, entry)
            except OSError as error:
                _stillborn(control, spec, error)
                continue
            finally:
                os.close(link_fd)
            children[pidfd] = spec.worker, pid
            poll.register(pidfd, select.POLLIN)
            _tell(control, WorkerForked(spec.worker, pid), [pidfd])


def _tell(control: Link, report: Report, fds: Sequence[int] = ()) -> None:
    """Report, in any case: nobody repeats this."""
    while control.offer(msgspec.msgpack.encode(report), fds) is Outcome.FULL:
        time.sleep(PROCESS.poll)  # the link itself waits for room; this is for a shortage of the whole system


def _bear(spec: WorkerSpec, link_fd: int, entry: Callable[[WorkerSpec, int], object]) -> tuple[int, int]:
    """Fork a worker: its pid and a pidfd. Raises OSError, and then there is no process."""
    forkserver = os.getpid()
    pid = os.fork()
    if pid == 0:
        _leave(_live(spec, link_fd, forkserver, entry))
    try:
        return pid, os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)  # nobody has reaped it, so the number is its own
        _reap(pid)
        raise


def _stillborn(control: Link, spec: WorkerSpec, error: Exception) -> None:
    print(f"worker {spec.worker} cannot be started: {error}", file=sys.stderr)
    _tell(control, WorkerDied(spec.worker, os.EX_OSERR))


def _reap(pid: int) -> int:
    """Wait for a child that has ended, and end whatever it left in its session."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)  # before the reaping, while the number is certainly its own
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _live(spec: WorkerSpec, link_fd: int, forkserver: int, entry: Callable[[WorkerSpec, int], object]) -> int:
    """The life of a worker: its own session and output, nothing inherited but its link."""
    try:
        os.setsid()
        die_with_parent(forkserver)
        for number in _OTHERS:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        os.closerange(3, link_fd)
        os.closerange(link_fd + 1, os.sysconf("SC_OPEN_MAX"))
        _own_output(spec)
        if spec.scratch:  # for the sockets of processes that fetch data: ours is swept, one of its own is not
            multiprocessing.process.current_process()._config["tempdir"] = spec.scratch  # type: ignore[attr-defined]
        entry(spec, link_fd)
    except SystemExit as end:
        return _exit_status(end)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _leave(status: int) -> NoReturn:
    """End a worker as Python ends a process, but for taking torch apart object by object.

    That would take most of a second, and copy the pages that are shared with the forkserver, for nothing.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # threads of the script that want to be waited for
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _exit_status(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


class _Forgiving(io.FileIO):
    """A log on a full disk loses lines; it does not stop the training that wrote them."""

    def write(self, data: object, /) -> int:
        try:
            return super().write(data) or 0  # type: ignore[arg-type]
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG):
                return memoryview(data).nbytes  # type: ignore[arg-type]
            raise


def _own_output(spec: WorkerSpec) -> None:
    try:
        log = os.open(log_path(spec), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as error:
        print(f"the output of worker {spec.worker} is lost: {log_path(spec)}: {error.strerror}", file=sys.stderr)
        log = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    for fd, name in ((1, "stdout"), (2, "stderr")):
        raw = io.BufferedWriter(_Forgiving(fd, "w", closefd=False))
        text = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)
    with contextlib.suppress(OSError):  # as the output; a report of a hang then says that it did not answer
        stacks = os.open(stack_path(spec), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        faulthandler.register(signal.SIGUSR2, file=stacks, all_threads=True)
    faulthandler.enable(file=2)  # a segmentation fault of the script says where


if __name__ == "__main__":
    sys.exit(main())
