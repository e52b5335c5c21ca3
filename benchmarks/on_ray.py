"""What a step costs on Ray: the same script and workers under `--on ray` with one host, beside `holdfast run` itself.

The cluster is one node on this machine, and there all the time: what is compared is a run that Ray has started with one
that it has not. Ray gives its workers a lower priority by default; here it is told not to, so that the figures say what
our way costs and not how busy the machine is. What is compared is the time of a step in the middle of a run, so the
seconds that Ray takes to start something do not count; they are noted.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import pairwise
from statistics import quantiles
from typing import NamedTuple

from benchmarks.harness import ROOT, crew_figures, scratch, step_times
from benchmarks.report import Check, Line, Result, Series

#: At most 2% slower.
TARGET = 1 / 1.02
BATCH = 64


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


class Run(NamedTuple):
    """One run. Times of a step are milliseconds; `first` is when its first step was seen, in seconds."""

    median: float
    quarter: float  #: a quarter of the steps are faster: what others do on the machine shows less here
    first: float
    weights: str


def _run(workers: int, steps: int, options: list[str]) -> Run:
    arguments = ["--workload", "lenet", "--batch", str(BATCH), "--steps", str(steps), "--warm", "20", "--lanes", "2"]
    with scratch() as where:
        began = time.monotonic()
        found = crew_figures(
            workers, *arguments, "--note-steps", where=where, options=["--threads", "1", "--lanes", "2", *options]
        )
        times = list(step_times(where).values())
    quarter, middle, _ = quantiles([after - before for before, after in pairwise(times[20:])], n=4)
    return Run(middle * 1e3, quarter * 1e3, times[0] - began, found["summary"]["weights_sha256"])


def measure(repeats: int, quick: bool) -> Result:
    """Local, Ray; then Ray, local; and so on; with one worker and with two."""
    title = f"A step on Ray: LeNet at batch {BATCH}, one host, beside `holdfast run` on the same machine"
    if find_spec("ray") is None:
        return Result("on_ray", title, notes=["not measured: Ray is not installed (pip install 'holdfast[ray]')"])
    steps = 150 if quick else 2000
    lines, checks, notes, raw = [], [], [], {}
    with _cluster(2) as address:
        contenders = {"local": [], "ray": ["--on", "ray", "--set", f"ray.address={address}"]}
        for workers in (1, 2):
            runs: dict[str, list[Run]] = {name: [] for name in contenders}
            for turn in range(repeats):
                for name in contenders if turn % 2 == 0 else reversed(contenders):
                    runs[name].append(_run(workers, steps, contenders[name]))
            crew = "1 worker" if workers == 1 else f"{workers} workers"
            for what, target in (("median", TARGET), ("quarter", None)):
                ours, peer = (Series(tuple(getattr(run, what) for run in runs[name])) for name in ("ray", "local"))
                lines.append(Line(f"{crew}, {what} step", "ms", ours, peer, "local", higher=False, target=target))
            hashes = {run.weights for name in runs for run in runs[name]}
            checks.append(Check(f"{crew}: weights", f"{len(hashes)} different", "1 different", len(hashes) == 1))
            first = {name: Series(tuple(run.first for run in runs[name])).shown(" s") for name in runs}
            notes.append(f"{crew}: the first step was seen after {first['ray']} on Ray, {first['local']} locally")
            raw[crew] = {name: [run._asdict() for run in runs[name]] for name in runs}
    return Result("on_ray", title, lines, checks, notes, raw)
