"""Processes as the benchmarks start them: clean, watched, and ended for certain.

Contenders take turns within one run (A B A B ...), so that a machine that slows down slows all of them.
Every process has one thread (OMP, MKL), a session of its own, and no fixed port: ranks meet through a file
in the measurement's own directory, which is removed afterwards.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.control.protocol.requests import Status
from holdfast.control.shell.control_client import NotRunning, ask
from holdfast.errors import RunError

__all__ = [
    "Crew", "Failed", "Process", "children", "crew_figures", "environment", "family", "figures", "finish",
    "going_ranks", "ranks", "scratch", "script", "started", "step_times", "wait_until",
]  # fmt: skip

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = Path(__file__).resolve().parent / "scripts"
Process = subprocess.Popen[bytes]
#: No child of a benchmark runs longer; one that does is killed and the benchmark fails.
LIMIT = 900.0


class Failed(RuntimeError):
    """A process that a benchmark started did not do its part. Carries the end of its output."""


def script(name: str) -> str:
    """The path of one of the benchmarks' training scripts."""
    return str(SCRIPTS / f"{name}.py")


def environment(**extra: str) -> dict[str, str]:
    """What a child starts with: one thread, our package, nothing that a test run or a shell left behind."""
    names = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return {**kept, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **extra}


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A directory for one measurement, gone afterwards."""
    path = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def started(*commands: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> Iterator[list[Process]]:
    """Run commands side by side, each in a session of its own; whatever is left of them at the end is killed."""
    with open(log, "ab") as output:
        running = [
            subprocess.Popen(
                list(command), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env=dict(env or environment()), cwd=log.parent, start_new_session=True,
            )
            for command in commands
        ]  # fmt: skip
    try:
        yield running
    finally:
        # torchrun gives its ranks sessions of their own: whoever descends from it is ended, one by one.
        doomed = [pid for child in running if child.poll() is None for pid in family(child.pid)]
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for child in running:
            child.wait()


def children(pid: int) -> list[int]:
    """The processes that a process has started and not yet buried."""
    with contextlib.suppress(OSError):
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return []


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    return [pid, *(other for child in children(pid) for other in family(child))]


def finish(running: Sequence[Process], log: Path, limit: float = LIMIT) -> None:
    """Wait until all have ended well. Raises Failed with the end of their output."""
    deadline = time.monotonic() + limit
    for child in running:
        try:
            code: int | str = child.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            code = f"none after {limit:.0f} s"
        if code != 0:
            raise Failed(f"{child.args!r} ended with status {code}:\n{_tail(log)}")


@contextlib.contextmanager
def going_ranks(
    world: int, name: str, *args: str, where: Path, env: Mapping[str, str] | None = None
) -> Iterator[list[Process]]:
    """A script of ours in `world` processes that meet through a file; killed when the block is left."""
    command = [sys.executable, script(name), "--world", str(world), "--meet", str(where / "meet"), "--out", str(where)]
    commands = [[*command, "--rank", str(rank), *args] for rank in range(world)]
    with started(*commands, log=where / "log", env=env) as running:
        yield running


def ranks(world: int, name: str, *args: str, where: Path, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The same, to its end; the figures that rank 0 wrote."""
    with going_ranks(world, name, *args, where=where, env=env) as running:
        finish(running, where / "log")
    return figures(where)


def figures(where: Path) -> dict[str, Any]:
    """What a training script wrote at its end."""
    tree: dict[str, Any] = json.loads((where / "figures.json").read_text())
    return tree


def crew_figures(workers: int, *args: str, where: Path, options: Sequence[str] = ()) -> dict[str, Any]:
    """Run the training script under `holdfast run` to its end; its figures, with the run's summary."""
    with Crew(workers, *args, where=where, options=options) as crew:
        finish([crew.launcher], crew.log)
    return figures(where) | {"summary": crew.summary()}


class Crew:
    """A going `holdfast run` of the training script, in `where`/run.

    Resources: leaving the `with` block kills what is left of it.
    """

    def __init__(
        self, workers: int, *args: str, where: Path, options: Sequence[str] = (), env: Mapping[str, str] | None = None,
        run: str = "run",
    ) -> None:  # fmt: skip
        self.directory, self.log = where / run, where / f"{run}.log"
        self._command = [
            sys.executable, "-m", "holdfast.cli.main", "run", "--workers", str(workers), "--dir", str(self.directory),
            *options, script("train"), "--out", str(where), *args,
        ]  # fmt: skip
        self._env, self._stack = env, contextlib.ExitStack()

    def __enter__(self) -> Crew:
        (self.launcher,) = self._stack.enter_context(started(self._command, log=self.log, env=self._env))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def going(self) -> bool:
        """Is the launcher alive?"""
        return self.launcher.poll() is None

    def members(self) -> list[int]:
        """The pids of the workers that are in the crew now; none while nobody answers."""
        try:
            answer = ask(self.directory, Status())
        except (NotRunning, RunError):
            return []
        return [worker["pid"] for worker in answer["workers"] if worker["state"] == "member"]

    def await_members(self, count: int, limit: float = 60.0) -> list[int]:
        """Wait until the crew has `count` members; empty when the run ended before that."""
        what = f"{count} members of {self.directory}"
        wait_until(lambda: not self.going() or len(self.members()) >= count, what, limit)
        return self.members() if self.going() else []

    def summary(self) -> dict[str, Any]:
        """The run's summary, once it has ended."""
        tree: dict[str, Any] = json.loads((self.directory / "summary.json").read_text())
        return tree


def wait_until(done: Callable[[], bool], what: str, limit: float = 60.0) -> None:
    """Look until `done()`. Raises Failed."""
    deadline = time.monotonic() + limit
    while not done():
        if time.monotonic() > deadline:
            raise Failed(f"waited {limit:.0f} s in vain for {what}")
        time.sleep(0.01)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-15:]) if log.exists() else "(no output)"


def step_times(where: Path) -> dict[int, float]:
    """From the step logs of all workers: step -> when the first of them saw everything before it committed."""
    seen: dict[int, float] = {}
    for log in where.glob("steps-*.log"):
        for line in log.read_text().splitlines():
            step, _, when = line.partition(" ")
            seen[int(step)] = min(float(when), seen.get(int(step), float("inf")))
    return dict(sorted(seen.items()))
