"""What `--tls` costs: bytes per second between two processes on loopback, TLS 1.3 beside plain TCP, and their CPU.

Both go through the run's own streams, in turns within one pair of processes. Loopback has no wire that could be the
limit, so the figures say how fast the processors of this machine encrypt and copy; a network that is slower than that
stays as fast as it is. One way: one side sends, the other receives. Both ways: each side does both at once, as the
exchange of a run does; the rate is that of each direction.
"""

from __future__ import annotations

import json
import sys

from benchmarks.harness import finish, scratch, script, started
from benchmarks.report import Check, Line, Result, Series
from benchmarks.scripts.streams import PIECE, Trip
from holdfast.transport.auth import token
from holdfast.transport.auth.credentials import Credentials
from holdfast.transport.auth.tls import Authority

#: Bytes in each direction.
SIZE, QUICK_SIZE = 512 * PIECE, 64 * PIECE
GB = 1e9


def run(rounds: int, size: int) -> dict[str, list[Trip]]:
    """What was measured, once per round, by name: "plain one", "plain both", "tls one", "tls both"."""
    with scratch() as where:
        Credentials(token.make()).write(where / "token")
        Credentials(token.make(), Authority("measured").issue("both sides")).write(where / "credentials")
        command = [sys.executable, script("streams")]
        calling = [*command, "call", str(where), str(where / "found"), str(rounds), str(size)]
        with (
            started([*command, "serve", str(where)], log=where / "log"),
            started(calling, log=where / "log") as running,
        ):
            finish(running, where / "log")
        found: dict[str, list[list[float]]] = json.loads((where / "found").read_text())
    return {name: [Trip(seconds, cpu, bool(right)) for seconds, cpu, right in trips] for name, trips in found.items()}


def measure(repeats: int, quick: bool) -> Result:
    """One way and both, with and without TLS."""
    size = QUICK_SIZE if quick else SIZE
    found = run(repeats, size)
    lines: list[Line] = []
    for ways, what, directions in (("one", "one way", 1), ("both", "both ways at once, each", 2)):
        tls, plain = found[f"tls {ways}"], found[f"plain {ways}"]
        lines.append(Line(what, "GB/s", _rates(tls, size), _rates(plain, size), "plain TCP"))
        ours, peer = (_cpu(trips, size * directions) for trips in (tls, plain))
        lines.append(Line(f"{what}: CPU of both sides", "s/GB", ours, peer, "plain TCP", higher=False))
    right = all(trip.right for trips in found.values() for trip in trips)
    checks = [Check("what was sent has arrived", str(right).lower(), "true", right)]
    notes = [f"{size // PIECE} MiB in each direction, in pieces of 1 MiB; the processes share this machine's cores"]
    raw = {name: [trip._asdict() for trip in trips] for name, trips in found.items()}
    return Result("tls", "TLS 1.3 beside plain TCP, two processes on loopback", lines, checks, notes, raw)


def _rates(trips: list[Trip], size: int) -> Series:
    return Series(tuple(size / GB / trip.seconds for trip in trips))


def _cpu(trips: list[Trip], carried: int) -> Series:
    return Series(tuple(trip.cpu / (carried / GB) for trip in trips))
