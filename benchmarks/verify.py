"""What verifying costs: the loop by steps with `--verify` as it is by default, beside `--verify off`, one worker.

Timed from step 20 on: before that a unit is verified in six steps, whatever it costs.
"""

from __future__ import annotations

from benchmarks.harness import crew_figures, scratch
from benchmarks.report import Line, Result, Series

#: workload -> (what it is, global batch, timed steps, timed steps when quick)
WORKLOADS = {
    "lenet": ("LeNet, batch 64", 64, 3000, 80),
    "mlp": ("MLP of 20 million parameters, batch 32", 32, 150, 6),
}
TARGET, WARM = 0.98, 20
WAYS = {"default": (), "off": ("--verify", "off")}


def _rate(workload: str, batch: int, steps: int, options: tuple[str, ...]) -> float:
    told = ["--workload", workload, "--batch", str(batch), "--steps", str(steps), "--warm", str(WARM), "--lanes", "4"]
    with scratch() as where:
        found = crew_figures(1, *told, "--by-steps", where=where, options=["--threads", "1", *options])
    rate: float = found["samples_per_second"]
    return rate


def measure(repeats: int, quick: bool) -> Result:
    """Both ways in turns, `repeats` times; the order turns round."""
    lines: list[Line] = []
    raw: dict[str, dict[str, list[float]]] = {}
    for workload, (what, batch, steps, few) in WORKLOADS.items():
        rates = raw[workload] = {name: [] for name in WAYS}
        for turn in range(repeats):
            for name in WAYS if turn % 2 == 0 else reversed(WAYS):
                rates[name].append(_rate(workload, batch, few if quick else steps, WAYS[name]))
        ours, theirs = Series(tuple(rates["default"])), Series(tuple(rates["off"]))
        lines.append(Line(f"{what}: by steps", "samples/s", ours, theirs, "off", target=TARGET))
    return Result("verify", "Verifying units, with one worker and one thread", lines, [], [], raw)
