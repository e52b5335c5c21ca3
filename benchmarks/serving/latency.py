"""What the way through a server costs: a model that gives 16 numbers back, 500 requests a second, 16 connections.

An open loop: requests are sent at equal distances (and, shown for information, as of many clients who know nothing of
each other), and latency counts from when a request should have been sent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.harness import Failed, scratch
from benchmarks.report import Check, Line, Result, Series
from benchmarks.serving import exchange, ours
from benchmarks.serving.contenders import PEERS, cores, going
from benchmarks.serving.exchange import Target
from benchmarks.serving.load import Plan, load
from benchmarks.serving.networks import answers

__all__ = ["measure"]

MODEL, CONNECTIONS, RATE, OBJECTIVE = "noop", 16, 500.0, 0.05
#: Milliseconds.
P50, P99 = 0.5, 1.5
OURS = "holdfast"
_WAYS = {"json": False, "binary": False, "json, Poisson": True}
#: Without batching where that can be had: there is nothing to wait for.
_SETTINGS = {"litserve": ("--fast-queue",), "mlserver": ("--workers", "0")}


def measure(repeats: int, quick: bool) -> Result:
    """In every round, each server in turn."""
    warm, seconds = (1.0, 2.0) if quick else (3.0, 10.0)
    rounds: dict[tuple[str, str], list[dict[str, Any]]] = {}
    notes: list[str] = []
    with scratch() as where:
        directory = ours.library(MODEL, where)
        for number in range(repeats):
            for name in (OURS, *PEERS):
                speaks = ("json", "binary") if name == OURS else PEERS[name].encodings
                there = where / f"{number}-{name}"
                there.mkdir()
                try:
                    running = (
                        ours.going(directory, "json", there, objective=OBJECTIVE)
                        if name == OURS
                        else going(PEERS[name].with_options(*_SETTINGS.get(name, ())), MODEL, speaks[0], there)
                    )
                    with running as server:
                        for turn, (way, poisson) in enumerate(_WAYS.items()):
                            encoding = "binary" if way == "binary" else speaks[0]
                            if encoding in speaks:
                                target = replace(server.target, encoding=encoding)
                                plan = _plan(target, warm, seconds, poisson)
                                figures = load(plan, there / str(turn)).figures
                                rounds.setdefault((name, way), []).append(figures)
                except Failed as error:
                    if name == OURS:
                        raise
                    notes.append(f"{PEERS[name].name}: {str(error)[:300]}")
    whole = {key: values for key, values in rounds.items() if len(values) == repeats}
    late = max((found["sent_late_p99"] for values in rounds.values() for found in values), default=0.0)
    notes.append(f"the generator sent 99% of the requests at most {late:.2f} ms late, in its worst round")
    return Result(
        "serving.latency", f"A model that does nothing, {RATE:.0f} requests a second", _lines(whole), _checks(whole),
        notes, {" ".join(key): values for key, values in rounds.items()},
    )  # fmt: skip


def _plan(target: Target, warm: float, seconds: float, poisson: bool) -> Plan:
    expected = answers(MODEL, exchange.numbers(target, exchange.DIFFERENT, 1))
    return Plan(
        target=target, connections=CONNECTIONS, rate=RATE, warm=warm, seconds=seconds, poisson=poisson,
        core=cores()[1], expected=expected, objective=OBJECTIVE,
    )  # fmt: skip


def _lines(rounds: dict[tuple[str, str], list[dict[str, Any]]]) -> list[Line]:
    lines = []
    for (name, way), values in rounds.items():
        if name == OURS:
            continue
        for figure in ("p50", "p99", "p99.9"):
            mine = Series(tuple(found[figure] for found in rounds[OURS, way]))
            theirs = Series(tuple(found[figure] for found in values))
            lines.append(Line(f"{way}: {figure}", "ms", mine, theirs, PEERS[name].name, higher=False))
    return lines


def _checks(rounds: dict[tuple[str, str], list[dict[str, Any]]]) -> list[Check]:
    checks = []
    for way, poisson in _WAYS.items():
        values = rounds[OURS, way]
        for figure, limit in (("p50", P50), ("p99", P99)):
            if not poisson:
                found = Series(tuple(value[figure] for value in values))
                met = found.median <= limit
                checks.append(Check(f"{way}: {figure}", found.shown(" ms"), f"<= {limit} ms", met))
        lost = sum(value[what] for value in values for what in ("failed", "wrong", "unanswered", "refused"))
        checks.append(Check(f"{way}: requests without a right answer", str(lost), "0", lost == 0))
    return checks
