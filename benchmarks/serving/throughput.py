"""LeNet as fast as it is answered: requests a second and their latency, 16 and 64 connections, JSON and binary.

Connections send their next request when they have their answer (a closed loop); each server is on one core, torch has
one thread. Every peer is at its best setting (`benchmarks.serving.grid`), ours is told the objective. BentoML has no v2
protocol and is asked with plain lists of the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import scratch
from benchmarks.report import Check, Line, Result, Series
from benchmarks.serving import grid, ours
from benchmarks.serving.contenders import PEERS, Peer, Server, going

__all__ = ["measure"]

MODEL, CONNECTIONS, OBJECTIVE = "lenet", (16, 64), 0.05
#: How many times a peer's requests a second, in JSON; of LitServe's p99; and in binary, of LitServe's in JSON.
TARGETS, HALF, BINARY = {"litserve": 2.5, "ray": 8.0}, 2.0, 6.0
OURS = "holdfast"
#: By contender, encoding and connections: figures of each round.
Rounds = dict[tuple[str, str, int], list[dict[str, Any]]]


def measure(repeats: int, quick: bool) -> Result:
    """A grid for each peer, once; then rounds in which all take turns."""
    rounds: Rounds = {}
    warm, seconds = (1.0, 1.0) if quick else (5.0, 10.0)
    with scratch() as where:
        best = grid.best(list(PEERS), MODEL, CONNECTIONS, where, quick=quick)
        directory = ours.library(MODEL, where)

        @contextmanager
        def mine(encoding: str, there: Path) -> Iterator[Server]:
            with ours.going(directory, encoding, there, objective=OBJECTIVE) as server:
                yield server

        for number in range(repeats):
            for name in (OURS, *best.peers):
                for encoding in ("json", "binary") if name == OURS else PEERS[name].encodings:
                    for count in CONNECTIONS:
                        there = where / f"{number}-{name}-{encoding}-{count}"
                        there.mkdir()
                        peer: Peer | None = None if name == OURS else best.peers[name][count]
                        with mine(encoding, there) if peer is None else going(peer, MODEL, encoding, there) as server:
                            found = grid.closed(server, MODEL, count, there / "load", warm=warm, seconds=seconds)
                        rounds.setdefault((name, encoding, count), []).append(found.figures)
    return Result(
        "serving.throughput", "LeNet behind an endpoint, as fast as it is answered", _lines(rounds), _checks(rounds),
        [*best.notes, "the servers have one core, the generator has another"],
        {"grid": best.tried, "rounds": {" ".join(map(str, key)): values for key, values in rounds.items()}},
    )  # fmt: skip


def _series(rounds: Rounds, key: tuple[str, str, int], figure: str) -> Series:
    return Series(tuple(found[figure] for found in rounds[key]))


def _lines(rounds: Rounds) -> list[Line]:
    lines = []
    peers = [key for key in rounds if key[0] != OURS]
    for count in CONNECTIONS:
        rate = {how: _series(rounds, (OURS, how, count), "rate") for how in ("json", "binary")}
        p99 = {how: _series(rounds, (OURS, how, count), "p99") for how in ("json", "binary")}
        for key in peers:
            if key[2] != count:
                continue
            name, encoding, how = key[0], key[1], "binary" if key[1] == "binary" else "json"
            what = f"{'binary' if how == 'binary' else 'JSON'}, {count} connections"
            theirs, slowest = _series(rounds, key, "rate"), _series(rounds, key, "p99")
            said = PEERS[name].name
            lines.append(Line(what, "requests/s", rate[how], theirs, said, target=TARGETS.get(name)))
            half = HALF if name == "litserve" else None
            lines.append(Line(f"{what}: p99", "ms", p99[how], slowest, said, higher=False, target=half))
            if name == "litserve" and encoding == "json":
                other = f"{said}, JSON"
                lines.append(
                    Line(f"binary, {count} connections", "requests/s", rate["binary"], theirs, other, target=BINARY)
                )
    return lines


def _checks(rounds: Rounds) -> list[Check]:
    bad = {
        key: sum(found[what] for found in values for what in ("failed", "wrong", "unanswered", "refused"))
        for key, values in rounds.items()
    }
    found = sum(count for key, count in bad.items() if key[0] == OURS)
    return [Check("ours: requests that failed, were refused or answered wrongly", str(found), "0", found == 0)]
