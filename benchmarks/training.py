"""Training on two workers with one thread each: `holdfast run` beside DistributedDataParallel on gloo.

Same models, data, global batch, optimizer and number of processes; start-up and warm-up steps are not
counted. DDP is run in three set-ups (see scripts/ddp.py) and in every round the fastest of them stands for
it. One more line shows DDP with the allocator settings that Holdfast gives its workers (freed blocks are
kept): it is nobody's default, and it tells how much of the difference is the exchange and how much malloc.
"""

from __future__ import annotations

from benchmarks.harness import crew_figures, environment, ranks, scratch
from benchmarks.report import Check, Line, Result, Series
from benchmarks.scripts.ddp import VARIANTS

#: workload -> (what it is, global batch, timed steps, timed steps when quick, target)
WORKLOADS = {
    "lenet": ("LeNet, global batch 64", 64, 800, 80, 1.3),
    "mlp": ("MLP of 20 million parameters, global batch 32", 32, 30, 6, 2.0),
}
WORKERS = 2
#: What `hf.join` asks of malloc; here for DDP, by way of comparison.
KEEP_FREED = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1)}


def arguments(workload: str, quick: bool) -> list[str]:
    """What the training scripts are told, whoever runs them."""
    _, batch, steps, few, _ = WORKLOADS[workload]
    return [
        "--workload", workload, "--batch", str(batch), "--steps", str(few if quick else steps),
        "--warm", "5" if quick else "20", "--lanes", str(WORKERS),
    ]  # fmt: skip


def ours(workload: str, quick: bool) -> tuple[float, str]:
    """Samples per second, and the weights."""
    with scratch() as where:
        found = crew_figures(WORKERS, *arguments(workload, quick), where=where, options=["--threads", "1"])
    return found["samples_per_second"], found["weights_sha256"]


def ddp(workload: str, quick: bool, variant: str, **extra: str) -> float:
    """Samples per second of one set-up of DDP."""
    with scratch() as where:
        told = [*arguments(workload, quick), "--variant", variant]
        found = ranks(WORKERS, "ddp", *told, where=where, env=environment(**extra))
    rate: float = found["samples_per_second"]
    return rate


def measure(repeats: int, quick: bool) -> Result:
    """In every round: ours, each set-up of DDP, and DDP with our allocator settings."""
    lines: list[Line] = []
    checks: list[Check] = []
    raw: dict[str, dict[str, list[float]]] = {}
    for workload, (what, _, _, _, target) in WORKLOADS.items():
        rates: dict[str, list[float]] = {name: [] for name in ("ours", *VARIANTS, "malloc")}
        weights = set()
        for _ in range(repeats):
            rate, sha = ours(workload, quick)
            rates["ours"].append(rate)
            weights.add(sha)
            for variant in VARIANTS:
                rates[variant].append(ddp(workload, quick, variant))
            rates["malloc"].append(ddp(workload, quick, "best", **KEEP_FREED))
        raw[workload] = rates
        mine = Series(tuple(rates["ours"]))
        fastest = Series(tuple(max(rates[v][i] for v in VARIANTS) for i in range(repeats)))
        lines.append(Line(what, "samples/s", mine, fastest, "DDP", target=target))
        tuned = Series(tuple(rates["malloc"]))
        lines.append(Line("the same, DDP keeping freed memory", "samples/s", mine, tuned, "DDP"))
        same = f"{len(weights)} hash" + "es" * (len(weights) > 1)
        checks.append(Check(f"{what}: the same weights in every round", same, "1 hash", len(weights) == 1))
    medians = [
        f"DDP {workload}: " + ", ".join(f"{v} {Series(tuple(rates[v])).median:,.0f}/s" for v in VARIANTS)
        for workload, rates in raw.items()
    ]
    return Result("training", f"Training, {WORKERS} workers with 1 thread each, lanes = 2", lines, checks, medians, raw)
