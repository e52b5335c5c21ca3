"""The two loops: the plain one beside DDP and beside the bare script, the loop by steps beside a loop that accumulates.

* plain, two workers with one thread each, beside DistributedDataParallel on gloo (the fastest of three set-ups);
* plain, one worker, and alone under `python`, beside the same script without Holdfast;
* by steps, one worker with 4 and with 16 lanes, beside a bare loop that adds up the gradients of as many parts.

The contenders take turns; the order turns round from one round to the next.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from benchmarks.harness import crew_figures, figures, finish, ranks, scratch, script, started
from benchmarks.report import Line, Result, Series
from benchmarks.scripts.ddp import VARIANTS

#: workload -> (what it is, global batch, timed steps, timed steps when quick, target beside DDP)
WORKLOADS = {
    "lenet": ("LeNet, batch 64", 64, 600, 80, 1.2),
    "mlp": ("MLP of 20 million parameters, batch 32", 32, 30, 6, 1.2),
    "resnet": ("ResNet-18, batch 64", 64, 10, 3, 1.0),
    "gpt": ("a small GPT, batch 16", 16, 40, 6, 1.0),
}
ALONE, BY_STEPS = 1 / 1.03, 1 / 1.05
LANES = (4, 16)


def _told(workload: str, quick: bool, lanes: int = 2) -> list[str]:
    _, batch, steps, few, _ = WORKLOADS[workload]
    timed, warm = (few, 2) if quick else (steps, max(3, steps // 10))
    return [
        "--workload", workload, "--batch", str(batch), "--steps", str(timed), "--warm", str(warm), "--lanes", str(lanes)
    ]  # fmt: skip


def _python(told: list[str]) -> float:
    with scratch() as where:
        with started([sys.executable, script("train"), *told, "--out", str(where)], log=where / "log") as children:
            finish(children, where / "log")
        rate: float = figures(where)["samples_per_second"]
    return rate


def _crew(workers: int, told: list[str]) -> float:
    with scratch() as where:
        rate: float = crew_figures(workers, *told, where=where, options=["--threads", "1"])["samples_per_second"]
    return rate


def _ddp(told: list[str], variant: str) -> float:
    with scratch() as where:
        rate: float = ranks(2, "ddp", *told, "--variant", variant, where=where)["samples_per_second"]
    return rate


def _contenders(workload: str, quick: bool) -> dict[str, Callable[[], float]]:
    told = _told(workload, quick)
    found: dict[str, Callable[[], float]] = {"crew": lambda: _crew(2, told)}
    for variant in VARIANTS:
        found[f"ddp {variant}"] = lambda variant=variant: _ddp(told, variant)  # type: ignore[misc]
    found["one"] = lambda: _crew(1, told)
    found["alone"] = lambda: _python(told)
    found["bare"] = lambda: _python([*told, "--plain"])
    for lanes in LANES:
        steps = _told(workload, quick, lanes)
        found[f"steps {lanes}"] = lambda steps=steps: _crew(1, [*steps, "--by-steps"])  # type: ignore[misc]
        found[f"parts {lanes}"] = lambda lanes=lanes: _python([*told, "--plain", "--parts", str(lanes)])  # type: ignore[misc]
    return found


def measure(repeats: int, quick: bool) -> Result:
    """All contenders of one workload after the other, `repeats` times."""
    lines: list[Line] = []
    raw: dict[str, dict[str, list[float]]] = {}
    for workload, (what, _, _, _, target) in WORKLOADS.items():
        contenders = _contenders(workload, quick)
        rates: dict[str, list[float]] = {name: [] for name in contenders}
        for turn in range(repeats):
            for name in contenders if turn % 2 == 0 else reversed(contenders):
                rates[name].append(contenders[name]())
        raw[workload] = rates
        series = {name: Series(tuple(values)) for name, values in rates.items()}
        fastest = Series(tuple(max(rates[f"ddp {v}"][turn] for v in VARIANTS) for turn in range(repeats)))
        lines += [
            Line(f"{what}: two workers", "samples/s", series["crew"], fastest, "DDP", target=target),
            Line(f"{what}: one worker", "samples/s", series["one"], series["bare"], "bare", target=ALONE),
            Line(f"{what}: python script.py", "samples/s", series["alone"], series["bare"], "bare", target=ALONE),
        ]
        for lanes in LANES:
            ours, theirs = series[f"steps {lanes}"], series[f"parts {lanes}"]
            named = f"{what}: by steps, {lanes} lanes"
            lines.append(Line(named, "samples/s", ours, theirs, "accumulating", target=BY_STEPS))
    return Result("loops", "The two loops, with one thread a worker", lines, [], [], raw)
