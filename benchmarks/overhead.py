"""What Holdfast costs where it brings nothing: one worker, one lane, beside the same loop in plain PyTorch.

The script is the same file with and without its three Holdfast lines, the data the same DataLoader. The
optimizer is written as people write it, `SGD(model.parameters(), lr, momentum)`: plain torch then loops over
the parameters, Holdfast pins the fused implementation. Another line holds ours against a plain loop that asks
for the fused one by name. The contenders take turns, each in a process of its own; the order turns round from
one round to the next.
"""

from __future__ import annotations

import sys

from benchmarks.harness import crew_figures, figures, finish, scratch, script, started
from benchmarks.report import Line, Result, Series

#: At most 3% slower.
TARGET = 1 / 1.03
BATCH = 64


def _arguments(quick: bool) -> list[str]:
    steps, warm = ("150", "20") if quick else ("2000", "100")
    return ["--workload", "lenet", "--batch", str(BATCH), "--steps", steps, "--warm", warm, "--lanes", "1"]


def _python(quick: bool, *extra: str) -> float:
    with scratch() as where:
        command = [sys.executable, script("train"), *_arguments(quick), "--out", str(where), *extra]
        with started(command, log=where / "log") as children:
            finish(children, where / "log")
        rate: float = figures(where)["samples_per_second"]
    return rate


def _crew(quick: bool) -> float:
    with scratch() as where:
        rate: float = crew_figures(1, *_arguments(quick), where=where, options=["--threads", "1"])["samples_per_second"]
    return rate


def measure(repeats: int, quick: bool) -> Result:
    """Plain, alone, crew; then crew, alone, plain; and so on."""
    contenders = {
        "plain": lambda: _python(quick, "--plain"),
        "fused": lambda: _python(quick, "--plain", "--fused"),
        "alone": lambda: _python(quick),
        "crew": lambda: _crew(quick),
    }
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats):
        for name in contenders if turn % 2 == 0 else reversed(contenders):
            rates[name].append(contenders[name]())
    series = {name: Series(tuple(values)) for name, values in rates.items()}
    lines = [
        Line("python script.py", "samples/s", series["alone"], series["plain"], "plain", target=TARGET),
        Line("holdfast run --workers 1", "samples/s", series["crew"], series["plain"], "plain", target=TARGET),
        Line("python script.py, plain asks for fused SGD", "samples/s", series["alone"], series["fused"], "plain"),
        Line("holdfast run --workers 1, the same", "samples/s", series["crew"], series["fused"], "plain"),
    ]
    slower = [f"{line.what}: {1 / line.ratio.median - 1:+.1%} time per step" for line in lines if line.ratio]
    title = f"One worker, one lane: LeNet at batch {BATCH} beside the same loop in plain PyTorch"
    return Result("overhead", title, lines, notes=slower, extra=rates)
