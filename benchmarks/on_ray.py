"""What a step costs on Ray: the same script and workers under `--on ray` with one host, beside `holdfast run` itself.

The cluster is one node on this machine, and there all the time: what is compared is a run that Ray has started with one
that it has not. Ray gives its workers a lower priority by default; here it is told not to, so that the figures say what
our way costs and not how busy the machine is. What is compared is the time of a step in the middle of a run, so the
seconds that Ray takes to start something do not count; they are noted.

A difference of 2% is less than what a shared machine's speed changes by from one minute to the next. So both runs of a
round are there at the same time and take turns of half a second, in which all processes of the other one stand still.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.harness import ROOT, Crew, family, finish, scratch, step_times, wait_until
from benchmarks.report import Check, Line, Result, Series

#: At most 2% slower.
TARGET = 1 / 1.02
BATCH = 64
TURN = 0.5  #: seconds; less than what a run takes for the silence of a machine that is gone
FEWEST = 5  #: steps that a turn has to have to count


@contextmanager
def _cluster(cpus: int) -> Iterator[str]:
    """A Ray cluster of one node; its address."""
    from ray.cluster_utils import Cluster

    before = dict(os.environ)
    head = {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": 100_000_000}
    with tempfile.TemporaryDirectory(prefix="r-", dir="/tmp", ignore_cleanup_errors=True) as temp:
        os.mkdir(f"{temp}/ray")
        os.environ |= {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "RAY_TMPDIR": temp}
        os.environ |= {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}
        try:
            cluster = Cluster(initialize_head=True, head_node_args=head)
            try:
                yield cluster.address
            finally:
                cluster.shutdown()
        finally:
            os.environ.clear()
            os.environ.update(before)


class Run:
    """One run of a round, and when it had its turns.

    Resources: leaving the `with` block kills what is left of it.
    """

    def __init__(self, workers: int, steps: int, options: list[str], where: Path) -> None:
        arguments = ["--workload", "lenet", "--batch", str(BATCH), "--steps", str(steps), "--lanes", "2"]
        options = ["--threads", "1", "--lanes", "2", *options]
        self.workers, self._where = workers, where
        self.crew = Crew(workers, *arguments, "--note-steps", where=where, options=options)
        self._pids: list[int] = []
        self._turns: list[tuple[float, float]] = []

    def __enter__(self) -> Run:
        """It makes steps, and stands still."""
        began = time.monotonic()
        self.crew.__enter__()
        wait_until(lambda: not self.crew.going() or len(step_times(self._where)) > 20, "the first steps")
        if not self.crew.going():
            finish([self.crew.launcher], self.crew.log)
        #: Seconds until the first step was seen.
        self.first = next(iter(step_times(self._where).values())) - began
        self._pids = family(self.crew.launcher.pid)
        for worker in self.crew.await_members(self.workers):
            self._pids += [pid for pid in family(_eldest(worker)) if pid not in self._pids]
        self._signal(signal.SIGSTOP)
        return self

    def __exit__(self, *_: object) -> None:
        self._signal(signal.SIGCONT)
        self.crew.__exit__()

    def turn(self) -> bool:
        """Let it go on for a while; whether it still does after that."""
        began = time.monotonic()
        self._signal(signal.SIGCONT)
        time.sleep(TURN)
        self._signal(signal.SIGSTOP)
        self._turns.append((began, time.monotonic()))
        return self.crew.going()

    def finish(self) -> str:
        """Let it go on to its end; the hash of its weights."""
        self._signal(signal.SIGCONT)
        finish([self.crew.launcher], self.crew.log)
        return str(self.crew.summary()["weights_sha256"])

    def steps(self) -> list[float]:
        """Milliseconds of the median step of each turn; only steps that began and ended in it count."""
        times = list(step_times(self._where).values())
        found = []
        for began, ended in self._turns:
            within = times[bisect_left(times, began) : bisect_left(times, ended)]
            if len(within) > FEWEST:
                found.append(1e3 * median(after - before for before, after in pairwise(within)))
        return found

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _eldest(pid: int) -> int:
    """The process of ours that a worker descends from: Ray's daemon or the launcher's parent started that one."""
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    if parent in (1, os.getpid()) or Path(f"/proc/{parent}/comm").read_text().strip() == "raylet":
        return pid
    return _eldest(parent)


class Round(NamedTuple):
    """What came of one round, by contender: milliseconds of a step, seconds until the first step, weights."""

    step: dict[str, float]
    first: dict[str, float]
    weights: dict[str, str]


def _round(workers: int, steps: int, contenders: dict[str, list[str]]) -> Round:
    with scratch() as where, ExitStack() as stack:
        runs = {}
        for name, options in contenders.items():
            (where / name).mkdir()
            runs[name] = stack.enter_context(Run(workers, steps, options, where / name))
        while all(run.turn() for run in runs.values()):
            pass
        weights = {name: run.finish() for name, run in runs.items()}
        found = {name: run.steps() for name, run in runs.items()}
        # Turn by turn, so that what one of them has more of at the end does not count.
        turns = min(map(len, found.values()))
        step = {name: median(values[:turns]) for name, values in found.items()}
        return Round(step, {name: run.first for name, run in runs.items()}, weights)


def measure(repeats: int, quick: bool) -> Result:
    """With one worker and with two."""
    title = f"A step on Ray: LeNet at batch {BATCH}, one host, beside `holdfast run` on the same machine"
    if find_spec("ray") is None:
        return Result("on_ray", title, notes=["not measured: Ray is not installed (pip install 'holdfast[ray]')"])
    steps = 300 if quick else 2500
    lines, checks, notes, raw = [], [], [], {}
    with _cluster(2) as address:
        contenders = {"local": [], "ray": ["--on", "ray", "--set", f"ray.address={address}"]}
        for workers in (1, 2):
            rounds = [_round(workers, steps, contenders) for _ in range(repeats)]
            crew = "1 worker" if workers == 1 else f"{workers} workers"
            ours, peer = (Series(tuple(found.step[name] for found in rounds)) for name in ("ray", "local"))
            lines.append(Line(f"{crew}, median step", "ms", ours, peer, "local", higher=False, target=TARGET))
            hashes = {weights for found in rounds for weights in found.weights.values()}
            checks.append(Check(f"{crew}: weights", f"{len(hashes)} different", "1 different", len(hashes) == 1))
            first = {name: Series(tuple(found.first[name] for found in rounds)).shown(" s") for name in contenders}
            notes.append(f"{crew}: the first step was seen after {first['ray']} on Ray, {first['local']} locally")
            raw[crew] = [found._asdict() for found in rounds]
    return Result("on_ray", title, lines, checks, notes, raw)
