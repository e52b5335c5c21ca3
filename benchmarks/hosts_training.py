"""Training on two hosts at 1 Gbit/s: `holdfast run --listen` and `holdfast join` beside DistributedDataParallel.

One worker with one thread on each host; models, data, batches and the set-ups of DDP (on gloo) are those of the
benchmark `training`, and in every round the fastest of DDP's set-ups stands for it. By arithmetic the 20 million
parameters of the MLP alone keep the links busy for 0.67 s of every step.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.harness import figures, finish, scratch, script
from benchmarks.hosts import GIGABIT, HostCrew, congestion, floor, joins, lab_of, on_hosts, peer_environment
from benchmarks.report import Check, Line, Result, Series, quantity
from benchmarks.scripts.ddp import VARIANTS

HOSTS = 2
#: workload -> (what it is, global batch, timed steps, timed steps when quick, bytes of its gradient)
WORKLOADS = {
    "lenet": ("LeNet, global batch 64", 64, 400, 60, 4 * 44_426),
    "mlp": ("MLP of 20 million parameters, global batch 32", 32, 12, 4, 4 * 20_037_642),
}
TARGET = 1.0


def arguments(workload: str, quick: bool) -> list[str]:
    """What the training scripts are told, whoever runs them."""
    _, batch, steps, few, _ = WORKLOADS[workload]
    return [
        "--workload", workload, "--batch", str(batch), "--steps", str(few if quick else steps),
        "--warm", "2" if quick else "5", "--lanes", str(HOSTS),
    ]  # fmt: skip


def ddp(workload: str, quick: bool, variant: str, rate: float | None = GIGABIT) -> float:
    """Samples per second of one set-up of DDP."""
    with scratch() as where, lab_of(HOSTS, rate) as lab:
        told = ["--world", HOSTS, "--meet", where / "meet", "--out", where, "--variant", variant]
        commands = {
            rank: [sys.executable, script("ddp"), "--rank", rank, *told, *arguments(workload, quick)]
            for rank in range(HOSTS)
        }
        with on_hosts(lab, commands, where / "log", peer_environment()) as running:
            finish(running, where / "log")
        found: float = figures(where)["samples_per_second"]
    return found


def ours(workload: str, quick: bool, rate: float | None = GIGABIT) -> tuple[float, str]:
    """Samples per second, and the weights."""
    with scratch() as where, lab_of(HOSTS, rate) as lab:
        told = [*arguments(workload, quick), "--out", str(where)]
        with HostCrew(lab, script("train"), *told, where=where, options=["--threads", "1"]) as crew:
            finish([crew.launcher], crew.log)
        found = figures(where)
    return found["samples_per_second"], found["weights_sha256"]


def measure(repeats: int, quick: bool) -> Result:
    """In every round: ours, and each set-up of DDP."""
    lines: list[Line] = []
    checks: list[Check] = []
    notes: list[str] = []
    raw: dict[str, Any] = {}
    for workload, (what, batch, _, _, size) in WORKLOADS.items():
        rates: dict[str, list[float]] = {name: [] for name in ("ours", *VARIANTS)}
        weights = set()
        for _ in range(repeats):
            if joins():
                rate, sha = ours(workload, quick)
                rates["ours"].append(rate)
                weights.add(sha)
            for variant in VARIANTS:
                rates[variant].append(ddp(workload, quick, variant))
        raw[workload] = rates
        fastest = Series(tuple(max(rates[v][i] for v in VARIANTS) for i in range(repeats)))
        by_wire = batch / floor(size, HOSTS, GIGABIT)
        notes.append(
            f"{workload}: DDP's fastest {fastest.shown('/s')}; "
            + ", ".join(f"{v} {Series(tuple(rates[v])).shown('/s')}" for v in VARIANTS)
            + f"; the links alone would allow {quantity(by_wire)}/s without overlap"
        )
        if rates["ours"]:
            lines.append(Line(what, "samples/s", Series(tuple(rates["ours"])), fastest, "DDP", target=TARGET))
            same = f"{len(weights)} hash" + "es" * (len(weights) > 1)
            checks.append(Check(f"{what}: the same weights in every round", same, "1 hash", len(weights) == 1))
    notes.append(f"TCP's congestion control: {congestion()}")
    title = f"Training, {HOSTS} hosts with 1 worker each, 1 Gbit/s"
    return Result("hosts_training", title, lines, checks, notes, raw)
