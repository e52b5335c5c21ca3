"""New versions of a model under load: none fails, none is mixed, and nobody waits longer.

The model is an MLP of 20 million parameters (80 MB) whose every layer says which version it is of: an answer that was
computed by layers of two versions is found out, and so is one that names another version than what computed it. 60%
of what the server can do, as of many clients; a new version appears every ten seconds. "Around a swap" is from when a
version appears until a second after the first answer that it gave; where that is nearly always, there is no rest to
hold it against, and the check is not met.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import finish, scratch
from benchmarks.memory import pss_mb
from benchmarks.report import Check, Result, Series
from benchmarks.serving import grid, ours
from benchmarks.serving.contenders import Server, cores
from benchmarks.serving.load import Load, Plan, begun, load_found
from benchmarks.serving.schedule import Outcome, Sample, percentile

__all__ = ["Stretch", "measure", "stretches"]

MODEL, SHARE, EVERY, OBJECTIVE, CONNECTIONS = "versioned", 0.6, 10.0, 0.25, 64
BUMP, GROWTH = 1.2, 1.05
AFTER = 1.0  #: seconds
REST = 0.2  #: the least share of the requests that have to be away from swaps


class Stretch(NamedTuple):
    """A swap: when its version appeared, and when the first answer by it came; infinite: none did."""

    number: int
    appeared: float
    first: float


def stretches(samples: Sequence[Sample], appeared: dict[int, float]) -> list[Stretch]:
    """The swaps, by what the answers say. Pure."""
    first: dict[int, float] = {}
    for sample in samples:
        if sample.outcome == Outcome.OK:
            first[sample.version] = min(sample.done, first.get(sample.version, float("inf")))
    return [Stretch(number, when, first.get(number, float("inf"))) for number, when in sorted(appeared.items())]


def measure(repeats: int, quick: bool) -> Result:
    """`repeats`: how many swaps."""
    with scratch() as where:
        directory = ours.library(MODEL, where, versions=repeats + 1)
        with ours.going(directory, "binary", where, objective=OBJECTIVE) as server:
            closed = grid.closed(server, MODEL, 16, where / "closed", warm=2, seconds=2 if quick else 10)
            rate = SHARE * closed.figures["rate"]
            load, appeared, memory = _swapped(server, directory, where, rate, repeats)
    found = stretches(load.samples, appeared)
    around, steady = list[float](), list[float]()
    for sample in load.samples:
        if sample.outcome == Outcome.OK and sample.intended >= load.window.begin:
            near = any(swap.appeared <= sample.done and sample.intended <= swap.first + AFTER for swap in found)
            (around if near else steady).append(1e3 * (sample.done - sample.intended))
    rest = len(steady) / max(1, len(steady) + len(around))
    bump = percentile(sorted(around), 99) / percentile(sorted(steady), 99)
    growth = Series(tuple(memory[-5:])).median / Series(tuple(memory[1:6])).median
    late = [swap.first - swap.appeared for swap in found]
    odd = [pair for pair in load.figures["pairs"] if pair[0] != str(pair[1])]
    lost = {what: sum(s.outcome == what for s in load.samples) for what in Outcome}
    failed, refused = lost[Outcome.FAILED] + lost[Outcome.UNANSWERED], lost[Outcome.REFUSED]
    checks = [
        Check("requests that failed or hung", f"{failed} of {len(load.samples)}", "0", failed == 0),
        Check("requests that were refused", f"{refused} of {len(load.samples)}", "0", refused == 0),
        Check("answers of mixed versions", str(lost[Outcome.WRONG]), "0", lost[Outcome.WRONG] == 0),
        Check("answers that name another version", f"{odd or 0}", "0", not odd),
        Check("versions that were served", f"{sum(t < 1e9 for t in late)} of {repeats}", "all", max(late) < 1e9),
        Check("p99 around a swap, beside the rest", _bump(bump, rest), f"<= {BUMP}x", bump <= BUMP and rest >= REST),
        Check("memory at the end, beside the first swaps", f"{growth:.3f}x", f"<= {GROWTH}x", growth <= GROWTH),
    ]
    notes = [
        f"{rate:.0f} requests a second; p99 {percentile(sorted(steady), 99):.1f} ms, around a swap "
        f"{percentile(sorted(around), 99):.1f} ms; a version answers after {Series(tuple(late)).shown(' s')}",
        f"memory: {memory[0]:.0f} MB PSS before the first swap, {memory[-1]:.0f} MB at the end; troubles: "
        f"{load.figures['troubles'] or 'none'}",
    ]
    raw = {"figures": load.figures, "swaps": found, "memory": memory, "closed": closed.figures}
    return Result("serving.swaps", f"{repeats} new versions of a model under load", (), checks, notes, raw)


def _bump(ratio: float, rest: float) -> str:
    told = f"{ratio:.2f}x ({rest:.0%} of the requests are the rest)"
    return told if rest >= REST else f"cannot be said: {told}"


def _swapped(
    server: Server, directory: Path, where: Path, rate: float, swaps: int
) -> tuple[Load, dict[int, float], list[float]]:
    """The load, when each version appeared, and the memory before each of them and at the end."""
    warm = 5.0
    plan = Plan(
        target=server.target, connections=CONNECTIONS, rate=rate, poisson=True, warm=warm, seconds=EVERY * (swaps + 1),
        objective=OBJECTIVE, core=cores()[1], versions=True,
    )  # fmt: skip
    appeared, memory = dict[int, float](), list[float]()
    with begun(plan, where / "load") as running:
        start = time.monotonic() + 1 + warm
        for number in range(2, swaps + 2):
            time.sleep(max(0.0, start + EVERY * (number - 2) - time.monotonic()))
            memory.append(sum(pss_mb(pid) for pid in server.family()))
            appeared[number] = time.monotonic()
            ours.publish(directory, number)
        finish(running, where / "load" / "load.log", EVERY * 2 + plan.patience + 60)
        memory.append(sum(pss_mb(pid) for pid in server.family()))
    return load_found(where / "load"), appeared, memory
