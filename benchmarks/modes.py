"""Ways of keeping step: how well each of them learns, and what they gain where workers pause.

*Accuracy*: LeNet on Fashion-MNIST, the example script unchanged, 2 workers and 1 server, every mode with the same seeds
as `exact`, in turns. *Pauses*: four workers and a server; units take 10 ms, and now and then much longer (a heavy tail,
from a seed, the same for every mode); lanes stay where they are.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from statistics import mean

from benchmarks.harness import ROOT, environment, scratch
from benchmarks.report import Check, Line, Result, Series

MODES = ("exact", "bounded:4", "async", "quorum:3", "local:16")
EPOCHS = 10
#: Points of accuracy that a mode may lose against exact, in the mean over the seeds.
POINTS = 1.0
#: bounded:4 beside exact without moving lanes, under pauses.
FASTER = 1.5
_ACCURACY = re.compile(r"test accuracy (\d\.\d+)")


def learn(mode: str, seed: int, epochs: int, limit: int | None) -> tuple[list[float], float]:
    """(test accuracy after every epoch, seconds)."""
    with scratch() as where:
        script: list[object] = [ROOT / "examples" / "fit.py", "--epochs", epochs]
        script += ["--limit", limit] if limit else []
        out = _run(where, "--workers", 2, "--servers", 1, "--sync", mode, "--seed", seed, *script)
        summary = json.loads((where / "run" / "summary.json").read_text())
    return [float(found) for found in _ACCURACY.findall(out)], summary["seconds"]


def paused(mode: str, seed: int, steps: int) -> float:
    """Samples per second under pauses."""
    with scratch() as where:
        script: list[object] = [ROOT / "benchmarks" / "scripts" / "pausing.py", "--steps", steps, "--seed", seed]
        script += ["--out", where / "seconds.json"]
        still = ["--set", "crew.settle=1000000s"]  # lanes stay where they are
        _run(where, "--workers", 4, "--servers", 1, "--sync", mode, *still, *script)
        summary = json.loads((where / "run" / "summary.json").read_text())
        return float(summary["samples"]) / float(json.loads((where / "seconds.json").read_text()))


def _run(where: Path, *words: object) -> str:
    command = [sys.executable, "-m", "holdfast.cli.main", "run", "--dir", where / "run", *words]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, env=environment(), cwd=where, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def measure(repeats: int, quick: bool) -> Result:
    """Every seed in every mode; then pauses, in turns."""
    lines: list[Line] = []
    checks: list[Check] = []
    notes: list[str] = []
    curves: dict[str, list[list[float]]] = {mode: [] for mode in MODES}
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    for seed in range(repeats):
        for mode in MODES:
            curve, took = learn(mode, seed, 1 if quick else EPOCHS, 4000 if quick else None)
            curves[mode].append(curve)
            seconds[mode].append(took)
    exact = [curve[-1] for curve in curves["exact"]]
    for mode in MODES:
        last = [curve[-1] for curve in curves[mode]]
        lines.append(Line(
            f"test accuracy, {mode}", "%", Series(tuple(100 * one for one in last)),
            Series(tuple(100 * one for one in exact)), "exact",
        ))  # fmt: skip
        lost = 100 * (mean(exact) - mean(last))
        if mode != "exact":
            checks.append(Check(f"{mode}: points lost", f"{lost:.2f}", f"<= {POINTS:g}", lost <= POINTS))
        notes.append(f"{mode}: {Series(tuple(seconds[mode])).shown(' s')} for {len(curves[mode][0])} epochs")
    rounds = max(repeats, 3)
    speed: dict[str, list[float]] = {"exact": [], "bounded:4": []}
    for turn in range(rounds):
        for mode, found in speed.items():
            found.append(paused(mode, turn, 40 if quick else 150))
    lines.append(Line(
        "4 workers with pauses, bounded:4", "samples/s", Series(tuple(speed["bounded:4"])),
        Series(tuple(speed["exact"])), "exact", target=FASTER,
    ))  # fmt: skip
    gain = mean(ideal(seed, 400, 4, 0) / ideal(seed, 400, 4, 4) for seed in range(10))
    notes.append(f"pauses: by arithmetic, without any cost of its own, bounded:4 is {gain:.2f}x exact")
    raw = {"curves": curves, "seconds": seconds, "pauses": speed}
    return Result("modes", "Ways of keeping step", lines, checks, notes, raw)


def pause(chance: random.Random) -> float:
    """Seconds that a unit takes: 10 ms, and three times in ten longer, with a heavy tail, up to 0.1 s more."""
    extra = 0.01 * (chance.paretovariate(1.1) - 1.0) if chance.random() < 0.3 else 0.0
    return 0.01 + min(extra, 0.1)


def ideal(seed: int, steps: int, lanes: int, bound: int) -> float:
    """Seconds that these pauses take if nothing else takes time, where a lane may be `bound` steps ahead."""
    chance = random.Random(seed)
    ends, applied = [0.0] * lanes, [0.0] * steps
    for step in range(steps):
        least = applied[step - bound - 1] if step > bound else 0.0
        ends = [max(end, least) + pause(chance) for end in ends]
        applied[step] = max(ends)
    return applied[-1]

