"""The processes of all replicas on this machine: started by one forkserver, watched, and ended with the front door."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from holdfast.config.worker_spec import WorkerSpec
from holdfast.control.protocol.events import WorkerStarted
from holdfast.hosts.fork_spawner import ForkSpawner
from holdfast.transport.link import Link

__all__ = ["ReplicaProcesses", "ReplicaStarter", "environment", "trim"]

_ENTRY = "holdfast.serve.replica.process:main"
_LOG = 64 << 20  # bytes of a replica's output that are kept
_LEFT = 1 << 20  # of the newest, once they are more
#: What replicas are told of the environment; and all that begins with these. A model is somebody's code: the rest may
#: hold secrets, and would be found in /proc for as long as it runs.
_TOLD = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV", "TZ", "CUDA_VISIBLE_DEVICES", "HF_HOME", "TORCH_HOME")
_TOLD_PREFIXES = ("PYTHON", "OMP_", "MKL_", "LC_", "LD_")


class ReplicaStarter(Protocol):
    """Starts replicas, wherever they are: on this machine (`ReplicaProcesses`), or on several (`places.Places`)."""

    def start(self, started: Callable[[int], None], gone: Callable[[str], None]) -> tuple[int, Link]:
        """Start one: its number and our end of its link. It calls back with its pid, and when it is gone."""

    def kill(self, number: int) -> None:
        """End one at once, also one that is stopped."""


class _Process(NamedTuple):
    gone: Callable[[str], None]
    started: Callable[[int], None]


class ReplicaProcesses:
    """Starts replicas, and says when one is gone. Numbers are of this server's processes, of all models."""

    def __init__(self, directory: Path, scratch: str, threads: int) -> None:
        self._loop = asyncio.get_running_loop()
        spec = WorkerSpec(
            worker=-1, row=-1, script="", args=(), dir=str(directory), threads=threads, scratch=scratch
        )  # fmt: skip
        self._logs = directory / "logs"
        self._spawner = ForkSpawner(spec, logs=self._logs, entry=_ENTRY, environment=environment(os.environ))
        self._loop.add_reader(self._spawner.fileno(), self._hear)
        self._processes: dict[int, _Process] = {}
        self._numbers = 0

    def start(self, started: Callable[[int], None], gone: Callable[[str], None]) -> tuple[int, Link]:
        """Start a process: its number and our end of its link. It calls back with its pid, and when it is gone."""
        number, self._numbers = self._numbers, self._numbers + 1
        self._processes[number] = _Process(gone, started)
        return number, self._spawner.start(number, number)

    def kill(self, number: int) -> None:
        """End a process at once, also one that is stopped."""
        self._spawner.signal(number, signal.SIGKILL)

    def trim_logs(self) -> None:
        """Keep the newest of what replicas have printed, where that is too much."""
        for log in self._logs.glob("*.log"):
            with contextlib.suppress(OSError):
                trim(log, _LOG, _LEFT)

    def close(self) -> None:
        """End all of them, and the forkserver."""
        self._loop.remove_reader(self._spawner.fileno())
        self._processes.clear()
        self._spawner.close()

    def _hear(self) -> None:
        for event in self._spawner.events():
            process = self._processes.get(event.worker)
            if isinstance(event, WorkerStarted):
                if process is not None:
                    process.started(event.pid)
            elif process is not None:
                del self._processes[event.worker]
                process.gone(f"it ended {'by signal' if event.cause == 'signal' else 'with status'} {event.code}")


def environment(ours: Mapping[str, str]) -> dict[str, str]:
    """What of our environment replicas have.

    >>> environment({"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "s", "OMP_NUM_THREADS": "1"})
    {'PATH': '/bin', 'OMP_NUM_THREADS': '1'}
    """
    return {name: value for name, value in ours.items() if name in _TOLD or name.startswith(_TOLD_PREFIXES)}


def trim(log: Path, most: int, left: int) -> None:
    """Keep only the last `left` bytes of a file of more than `most`; who appends to it goes on. Raises OSError.

    What is written between our reading and our cutting is lost.
    """
    if log.stat().st_size <= most:
        return
    with open(log, "r+b") as file:
        size = file.seek(-left, os.SEEK_END)
        newest = file.read(left)
        file.truncate(0)
    with open(log, "ab") as file:
        file.write(b"[%d bytes of earlier output were left out]\n" % size + newest)
