"""Exact training with a parameter server, beside DistributedDataParallel on gloo; and with one worker that is slow.

*Training*: two workers and one server on this machine, the workloads and set-ups of `training`. A server has no core of
its own where workers are as many as cores. *A slow worker*: four workers and one server; one worker takes four times as
long for ever. Work is a sleep there, as in `slow_worker`, so the ideal is arithmetic; under DDP every rank keeps its
share, and waits for the slow one.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness import crew_figures, ranks, scratch
from benchmarks.report import Check, Line, Result, Series
from benchmarks.scripts.ddp import VARIANTS
from benchmarks.slow_worker import steady_ms
from benchmarks.training import WORKERS, WORKLOADS, arguments, ddp

#: How many times DDP's samples per second.
TRAINING, SLOWED = 1.0, 2.5
CREW, SLOW, FACTOR, UNIT_MS, LANES = 4, 3, 4, 10.0, 16


def served(workload: str, quick: bool) -> tuple[float, str]:
    """Samples per second with a server, and the weights."""
    with scratch() as where:
        options = ["--threads", "1", "--servers", "1"]
        found = crew_figures(WORKERS, *arguments(workload, quick), where=where, options=options)
    return found["samples_per_second"], found["weights_sha256"]


def _told(steps: int, *, slowed: bool = True) -> list[str]:
    naps = ["--unit-ms", str(UNIT_MS), "--slow", str(SLOW), "--factor", str(FACTOR)] if slowed else []
    return [
        "--workload", "tiny", "--batch", str(4 * LANES), "--steps", str(steps), "--warm", "0", "--lanes", str(LANES),
        "--note-steps", *naps,
    ]  # fmt: skip


def _rate(where: Path, steps: int) -> float:
    return 1e3 * 4 * LANES / steady_ms(where, steps)


def _slowed(steps: int) -> tuple[float, str]:
    with scratch() as where:
        found = crew_figures(CREW, *_told(steps), where=where, options=["--servers", "1"])
        return _rate(where, steps), found["weights_sha256"]


def _slowed_ddp(steps: int) -> float:
    with scratch() as where:
        ranks(CREW, "ddp", *_told(steps), where=where)
        return _rate(where, steps)


def _undisturbed(steps: int) -> str:
    with scratch() as where:
        sha: str = crew_figures(1, *_told(steps, slowed=False), where=where)["weights_sha256"]
    return sha


def measure(repeats: int, quick: bool) -> Result:
    """In every round: ours, and each set-up of DDP."""
    lines: list[Line] = []
    checks: list[Check] = []
    for workload, (what, _, _, _, _) in WORKLOADS.items():
        mine, theirs, weights = [], [], set()
        for _ in range(repeats):
            rate, sha = served(workload, quick)
            mine.append(rate)
            weights.add(sha)
            theirs.append(max(ddp(workload, quick, variant) for variant in VARIANTS))
        lines.append(Line(what, "samples/s", Series(tuple(mine)), Series(tuple(theirs)), "DDP", target=TRAINING))
        checks.append(_same(f"{what}: the same weights in every round", weights))
    steps, few = (120, 12) if quick else (600, 40)  # DDP's steps are all alike
    mine, theirs, weights = [], [], {_undisturbed(steps)}
    for _ in range(repeats):
        rate, sha = _slowed(steps)
        mine.append(rate)
        weights.add(sha)
        theirs.append(_slowed_ddp(few))
    what = f"one of {CREW} workers {FACTOR}x slower, {LANES} lanes"
    lines.append(Line(what, "samples/s", Series(tuple(mine)), Series(tuple(theirs)), "DDP", target=SLOWED))
    checks.append(_same(f"{what}: the weights of one fast worker", weights))
    ideal = 4 * LANES * 1e3 / UNIT_MS * (CREW - 1 + 1 / FACTOR) / LANES
    notes = [f"a slow worker: the ideal is {ideal:,.0f} samples/s ({CREW - 1 + 1 / FACTOR:g}x the slow worker's share)"]
    return Result("servers", "Exact training with 1 server", lines, checks, notes)


def _same(what: str, weights: set[str]) -> Check:
    found = f"{len(weights)} hash" + "es" * (len(weights) > 1)
    return Check(what, found, "1 hash", len(weights) == 1)
