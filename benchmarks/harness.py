"""What all benchmarks share: series of numbers, tables, and processes started clean and ended for certain.

Rules of measuring:

* contenders take turns within one run (A B A B ...), so that a machine that slows down slows all of them;
* a figure is the median over the rounds, its spread the least and the most; a ratio is taken per round,
  between neighbours in time, and its median is what a target is held against;
* every process has one thread of its own choosing (OMP, MKL), a temporary directory of its own that is
  looked at and removed afterwards, and no fixed port: rendezvous goes through files or ports the system picks.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from holdfast.coordinator.client import NotRunning, ask
from holdfast.coordinator.requests import Status
from holdfast.errors import RunError

__all__ = [
    "Check", "Crew", "Failed", "Line", "Result", "Series", "crew_figures", "environment", "finish", "machine",
    "quantity", "ranks", "scratch", "script", "started", "wait_until",
]  # fmt: skip

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = Path(__file__).resolve().parent / "scripts"
#: No child of a benchmark runs longer; one that does is killed and the benchmark fails.
LIMIT = 900.0


class Failed(RuntimeError):
    """A process that a benchmark started did not do its part. Carries the end of its output."""


# ---------------------------------------------------------------- numbers


@dataclass(frozen=True, slots=True)
class Series:
    """One figure, measured several times."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def spread(self) -> str:
        return f"{quantity(min(self.values))}-{quantity(max(self.values))}" if len(self.values) > 1 else ""


@dataclass(frozen=True, slots=True)
class Line:
    """Ours and a peer's figure. `ratio` is how many times ours is better, whichever way better is."""

    what: str
    unit: str
    ours: Series
    peer: Series | None = None
    peer_name: str = ""
    higher: bool = True  #: more is better
    target: float | None = None  #: the least ratio; None: shown for information

    @property
    def ratio(self) -> Series | None:
        if self.peer is None:
            return None
        pairs = zip(self.ours.values, self.peer.values, strict=True)
        return Series(tuple(ours / peer if self.higher else peer / ours for ours, peer in pairs))

    @property
    def met(self) -> bool | None:
        return None if self.target is None or self.ratio is None else self.ratio.median >= self.target

    def cells(self) -> list[str]:
        """This line as a row of the table."""
        ratio = self.ratio
        ours, peer = (f"{quantity(s.median)} ({s.spread})" if s.spread else quantity(s.median) for s in (self.ours, self.peer or self.ours))
        return [
            f"{self.what} [{self.unit}]",
            ours,
            f"{peer} {self.peer_name}" if self.peer else "-",
            f"{quantity(ratio.median)}x{f' ({ratio.spread})' if ratio.spread else ''}" if ratio else "-",
            "-" if self.target is None else f">= {self.target:g}x",
            {True: "yes", False: "NO", None: "-"}[self.met],
        ]


@dataclass(frozen=True, slots=True)
class Check:
    """Something that must simply be so, or a limit on one figure."""

    what: str
    found: str
    wanted: str
    met: bool


@dataclass(frozen=True, slots=True)
class Result:
    """What a benchmark found."""

    name: str
    title: str
    lines: Sequence[Line] = ()
    checks: Sequence[Check] = ()
    notes: Sequence[str] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)  #: raw numbers for the JSON

    def missed(self) -> list[str]:
        """What was not reached."""
        return [line.what for line in self.lines if line.met is False] + [c.what for c in self.checks if not c.met]

    def table(self) -> str:
        """For people, and for docs/benchmarks.md."""
        text = [f"## {self.title}"]
        if self.lines:
            text += _columns(["", "holdfast", "peer", "ratio", "target", "met"], [line.cells() for line in self.lines])
        if self.checks:
            rows = [[c.what, c.found, c.wanted, "yes" if c.met else "NO"] for c in self.checks]
            text += ["", *_columns(["check", "found", "wanted", "met"], rows)]
        return "\n".join([*text, *(f"note: {note}" for note in self.notes)])

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        lines = [asdict(x) | {"ratio": x.ratio.median if x.ratio else None, "met": x.met} for x in self.lines]
        return {
            "name": self.name, "title": self.title, "lines": lines, "checks": [asdict(c) for c in self.checks],
            "notes": list(self.notes), "extra": dict(self.extra),
        }


def quantity(value: float) -> str:
    """Three digits, no exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def machine() -> dict[str, str]:
    """What the figures depend on."""
    from importlib.metadata import version

    models = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / 2**20
    return {
        "cpu": models[0] if models else platform.machine(), "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory:.0f} GiB", "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(), "torch": version("torch"),
    }


def _columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    ruled = [head, ["-" * width for width in widths], *rows]
    return ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in ruled]


# ---------------------------------------------------------------- processes


def script(name: str) -> str:
    """The path of one of the benchmarks' training scripts."""
    return str(SCRIPTS / f"{name}.py")


def environment(**extra: str) -> dict[str, str]:
    """What a child starts with: one thread, our package, nothing that a test run or a shell left behind."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR") if name in os.environ}
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
def started(*commands: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run commands side by side, each in a session of its own; whatever is left of them at the end is killed."""
    with open(log, "ab") as output:
        children = [
            subprocess.Popen(
                list(command), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env=dict(env or environment()), cwd=log.parent, start_new_session=True,
            )
            for command in commands
        ]  # fmt: skip
    try:
        yield children
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def finish(children: Sequence[subprocess.Popen[bytes]], log: Path, limit: float = LIMIT) -> None:
    """Wait until all have ended well. Raises Failed with the end of their output."""
    deadline = time.monotonic() + limit
    for child in children:
        try:
            code: int | str = child.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            code = f"none after {limit:.0f} s"
        if code != 0:
            raise Failed(f"{child.args} ended with status {code}:\n{_tail(log)}")


def ranks(world: int, name: str, *args: str, where: Path, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a script of ours in `world` processes that meet through a file; the figures that rank 0 wrote."""
    command = [sys.executable, script(name), "--world", str(world), "--meet", str(where / "meet"), "--out", str(where), *args]
    with started(*([*command, "--rank", str(rank)] for rank in range(world)), log=where / "log", env=env) as children:
        finish(children, where / "log")
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
        wait_until(lambda: not self.going() or len(self.members()) >= count, f"{count} members\n{_tail(self.log)}", limit)
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
