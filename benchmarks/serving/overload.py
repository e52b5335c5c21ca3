"""More requests than can be answered: goodput at one and a half times of what a server can do, beside its peak.

Goodput is right answers within the objective, from when their requests should have been sent; a refusal (503) is no
failure, and no goodput either. The peak is looked for below and at the rate of a closed loop. Ours is told the
objective; LitServe has its best grid point.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.harness import scratch
from benchmarks.report import Check, Line, Result, Series, quantity
from benchmarks.serving import exchange, grid, ours
from benchmarks.serving.contenders import PEERS, Server, cores, going
from benchmarks.serving.load import Plan, load
from benchmarks.serving.networks import answers

__all__ = ["measure"]

MODEL, OBJECTIVE, OVERLOAD, KEPT = "lenet", 0.05, 1.5, 0.9
#: So many connections that a server sees the load, and not the generator's queue; and those of the closed loop.
CONNECTIONS, CLOSED = 512, 64
#: Shares of the closed loop's rate at which the peak is looked for.
SHARES = (0.6, 0.7, 0.8, 0.9, 1.0)
OURS = "holdfast"


def measure(repeats: int, quick: bool) -> Result:
    """In every round, ours and LitServe."""
    found: dict[str, list[dict[str, Any]]] = {}
    with scratch() as where:
        best = grid.best(["litserve"], MODEL, (CLOSED,), where, quick=quick)
        directory = ours.library(MODEL, where)
        for number in range(repeats):
            for name in (OURS, *best.peers):
                there = where / f"{number}-{name}"
                there.mkdir()
                running = (
                    ours.going(directory, "json", there, objective=OBJECTIVE)
                    if name == OURS
                    else going(best.peers[name][CLOSED], MODEL, "json", there)
                )
                with running as server:
                    found.setdefault(name, []).append(_overloaded(server, there, quick))
    mine = found[OURS]
    kept = Series(tuple(it["overload"]["goodput"] / it["peak"] for it in mine))
    broken = sum(it["overload"][what] for it in mine for what in ("failed", "wrong", "unanswered"))
    checks = [
        Check(f"goodput at {OVERLOAD}x beside the peak", kept.shown(), f">= {KEPT}", kept.median >= KEPT),
        Check("requests that were neither answered nor refused", str(broken), "0", broken == 0),
    ]
    lines, notes = [], [*best.notes, f"goodput: right answers within {1e3 * OBJECTIVE:.0f} ms"]
    for name in best.peers:
        theirs = found[name]
        peak, its = (Series(tuple(float(it["peak"]) for it in rounds)) for rounds in (mine, theirs))
        lines.append(Line("peak goodput", "requests/s", peak, its, PEERS[name].name))
        good, its = (Series(tuple(float(it["overload"]["goodput"]) for it in rounds)) for rounds in (mine, theirs))
        if min(its.values) > 0:
            lines.append(Line(f"goodput at {OVERLOAD}x", "requests/s", good, its, PEERS[name].name))
        else:
            notes.append(f"goodput at {OVERLOAD}x: ours {good.shown('/s')}, {PEERS[name].name}'s {its.shown('/s')}")
    for name, rounds in found.items():
        last = rounds[-1]["overload"]
        notes.append(
            f"{name}, last round, {quantity(last['intended_rate'])}/s: {last['ok']} answered "
            f"(p99 {quantity(last['p99'] or 0)} ms), {last['refused']} refused, {last['unanswered']} given up"
        )
    title = f"LeNet at {OVERLOAD} times of what can be answered"
    return Result("serving.overload", title, lines, checks, notes, {"grid": best.tried, "rounds": found})


def _overloaded(server: Server, where: Path, quick: bool) -> dict[str, Any]:
    """The closed loop's rate, the peak's goodput, and the figures of the overload."""
    warm, seconds = (1.0, 1.0) if quick else (3.0, 10.0)
    expected = answers(MODEL, exchange.numbers(server.target, exchange.DIFFERENT, 1))
    most = grid.closed(server, MODEL, CLOSED, where / "closed", warm=warm, seconds=seconds).figures["rate"]

    def at(share: float) -> dict[str, Any]:
        plan = Plan(
            target=server.target, connections=CONNECTIONS, rate=share * most, poisson=True, warm=warm, seconds=seconds,
            objective=OBJECTIVE, core=cores()[1], expected=expected, patience=5.0,
        )  # fmt: skip
        return load(plan, where / f"at-{share}").figures

    below = {share: at(share) for share in (SHARES[2:] if quick else SHARES)}
    peak = max(figures["goodput"] for figures in below.values())
    return {"closed": most, "peak": peak, "below": {str(s): f for s, f in below.items()}, "overload": at(OVERLOAD)}
