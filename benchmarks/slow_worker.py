"""One of four workers ten times slower: Holdfast beside DDP and beside the ideal.

The work of a unit is a sleep, standing for time on an accelerator: 10 ms for a lane's share of the batch,
100 ms on the slow worker. So four workers run side by side on any number of cores, and the ideal is plain
arithmetic: lanes / (sum of all speeds). The model under it is small and is really trained. Under DDP every
rank has an equal share of the batch for ever (lanes / 4 sleeps).

Timed is the steady state: the mean over the last half of the steps, after lanes have been moved, with
everything that still happens then (such as trying the slow worker with a lane again).
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.harness import crew_figures, ranks, scratch, step_times
from benchmarks.report import Check, Line, Result, Series, quantity

LANES = (12, 16)
WORKERS, SLOW, UNIT_MS, FACTOR = 4, 3, 10.0, 10.0
#: At most this many times the ideal step time.
LIMIT = 1.5


def ideal_ms(lanes: int) -> float:
    """A step's time if lanes could be cut like butter."""
    speeds = (WORKERS - 1 + 1 / FACTOR) / UNIT_MS
    return lanes / speeds


def _arguments(lanes: int, steps: int, *, napping: bool = True) -> list[str]:
    naps = ["--unit-ms", str(UNIT_MS), "--slow", str(SLOW)] if napping else []
    return [
        "--workload", "tiny", "--batch", str(4 * lanes), "--steps", str(steps), "--warm", "0", "--lanes", str(lanes),
        "--note-steps", *naps,
    ]  # fmt: skip


def steady_ms(where: Path, steps: int) -> float:
    """The mean step time of the last half."""
    seen = step_times(where)
    return 1e3 * (seen[steps] - seen[steps // 2]) / (steps - steps // 2)


def _ours(lanes: int, steps: int) -> tuple[float, str]:
    with scratch() as where:
        sha = crew_figures(WORKERS, *_arguments(lanes, steps), where=where)["weights_sha256"]
        return steady_ms(where, steps), sha


def _ddp(lanes: int, steps: int) -> float:
    with scratch() as where:
        ranks(WORKERS, "ddp", *_arguments(lanes, steps), where=where)
        return steady_ms(where, steps)


def _undisturbed(lanes: int, steps: int) -> str:
    """The weights of one fast worker alone."""
    with scratch() as where:
        sha: str = crew_figures(1, *_arguments(lanes, steps, napping=False), where=where)["weights_sha256"]
    return sha


def measure(repeats: int, quick: bool) -> Result:
    """For each number of lanes: ours and DDP in turns."""
    lines: list[Line] = []
    checks: list[Check] = []
    steps, few = (120, 12) if quick else (600, 40)  # DDP's steps are all alike; a few of them will do
    for lanes in LANES[:1] if quick else LANES:
        mine, theirs, hashes = [], [], {_undisturbed(lanes, steps)}
        for _ in range(repeats):
            milliseconds, sha = _ours(lanes, steps)
            mine.append(milliseconds)
            hashes.add(sha)
            theirs.append(_ddp(lanes, few))
        ours, ideal = Series(tuple(mine)), ideal_ms(lanes)
        lines.append(Line(f"step, {lanes} lanes", "ms", ours, Series(tuple(theirs)), "DDP", higher=False))
        over = ours.median / ideal
        found = f"{quantity(over)}x ({quantity(ours.median)} of {quantity(ideal)} ms)"
        checks.append(Check(f"{lanes} lanes: beside the ideal step time", found, f"<= {LIMIT}x", over <= LIMIT))
        same = f"{len(hashes)} hash" + "es" * (len(hashes) > 1)
        checks.append(Check(f"{lanes} lanes: the weights of one fast worker", same, "1 hash", len(hashes) == 1))
    notes = [f"work is a sleep: {UNIT_MS:g} ms for a lane's share, {UNIT_MS * FACTOR:g} ms on the slow worker"]
    return Result("slow_worker", "One of 4 workers 10x slower", lines, checks, notes)
