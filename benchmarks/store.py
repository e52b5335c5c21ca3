"""Push + apply + pull: Holdfast's store beside torch RPC, a Ray actor and gRPC on one host; and between two hosts.

One client, one server, and real arithmetic on the server (w -= 0.1 g). Every contender is a process that is started
once (scripts/store_contender.py) and asked in turns, so that a machine that slows down slows all of them. Who
waits for a turn is stopped: torch RPC's processes look for work without a pause, on as many cores as there are, and
whoever is measured beside them would have to share. Both directions are counted: a trip of 100 MB moves 200.

Peers live in an environment of their own, which has torch, ray, grpcio and numpy: HOLDFAST_PEERS=/path/to/venv. Those
that it lacks are left out, and the result says so. Between hosts see `store_hosts`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks import store_hosts
from benchmarks.harness import Failed, environment, script
from benchmarks.report import Check, Line, Result, Series
from tests.hosts.lab import why_not

SIZES = {"1 MB": 250_000, "10 MB": 2_500_000, "100 MB": 25_000_000}
#: As many bytes each time, and so many that what a contender finds in the caches when its turn comes is no matter.
TRIPS = {"1 MB": 400, "10 MB": 40, "100 MB": 4}
OURS = {"holdfast": "", "copied": ", copied into private memory", "buffer": ", gradient already in shared memory"}
PEERS = {"torch_rpc": "torch RPC", "ray": "Ray actor", "grpc": "gRPC"}
TARGET = 3.0


class Contender:
    """One contender, going.

    Resources: `close` ends it.
    """

    def __init__(self, name: str, python: str) -> None:
        self.name = name
        self._child = subprocess.Popen(
            [python, script("store_contender"), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            stderr=None if name in OURS else subprocess.DEVNULL, env=environment(), start_new_session=True,
        )  # fmt: skip

    def line(self) -> str:
        """The next thing it says. Raises Failed."""
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.strip():
                return line.strip()
        raise Failed(f"contender {self.name} ended with status {self._child.wait()}")

    def ask(self, words: str) -> str:
        """Ask for a measurement."""
        assert self._child.stdin is not None
        self._signal(signal.SIGCONT)
        self._child.stdin.write(words + "\n")
        self._child.stdin.flush()
        answer = self.line()
        self.rest()
        return answer

    def rest(self) -> None:
        """Have all its processes stand still until it is asked for something."""
        self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it is said why where its next line is missing
            os.killpg(self._child.pid, number)

    def close(self) -> None:
        """Let it end by itself; make it, if it does not."""
        assert self._child.stdin is not None
        self._signal(signal.SIGCONT)
        self._child.stdin.close()
        try:
            self._child.wait(20)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        assert self._child.stdout is not None
        self._child.stdout.close()


@contextlib.contextmanager
def going(notes: list[str]) -> Iterator[dict[str, Contender]]:
    """All contenders that can be started here."""
    peers = os.environ.get("HOLDFAST_PEERS", "")
    python = str(Path(peers) / "bin" / "python") if peers else sys.executable
    with contextlib.ExitStack() as stack:
        found: dict[str, Contender] = {}
        for name in (*OURS, *PEERS):
            contender = Contender(name, sys.executable if name in OURS else python)
            stack.callback(contender.close)
            try:
                if contender.line() == "ready":
                    found[name] = contender
                    contender.rest()
            except Failed:
                if name in OURS:
                    raise
                notes.append(f"{PEERS[name]} is not installed here, and left out (HOLDFAST_PEERS)")
        yield found


def measure(repeats: int, quick: bool) -> Result:
    """All contenders in turns."""
    names = list(SIZES)[:2] if quick else list(SIZES)
    notes: list[str] = []
    seconds: dict[str, dict[str, list[float]]] = {}
    right: dict[str, bool] = {}
    with going(notes) as contenders:
        for name in names:
            seconds[name] = {contender: [] for contender in contenders}
            for _ in range(repeats):
                for contender, process in contenders.items():
                    seconds[name][contender].append(float(process.ask(f"{SIZES[name]} {TRIPS[name]}")))
        for contender, process in contenders.items():
            right[contender] = process.ask(f"check {SIZES[names[0]]}") == "True"
    lines = []
    for name in names:
        rates = {
            contender: Series(tuple(8e-9 * SIZES[name] / value for value in values))
            for contender, values in seconds[name].items()
        }
        peers = {contender: rates[contender] for contender in PEERS if contender in rates}
        best = max(peers, key=lambda contender: peers[contender].median, default=None)
        for ours, how in OURS.items():
            target = TARGET if ours == "holdfast" else None
            peer, peer_name = (None, "") if best is None else (peers[best], PEERS[best])
            lines.append(Line(f"{name}{how}", "GB/s", rates[ours], peer, peer_name, target=target))
        for contender, rate in peers.items():
            if contender != best:
                lines.append(Line(name, "GB/s", rates["holdfast"], rate, PEERS[contender]))
    checks = [Check("every contender's server has the true value", str(right), "all true", all(right.values()))]
    if reason := why_not():
        notes.append(f"no hosts to measure between: {reason}")
    else:
        more, found = store_hosts.across(repeats, quick)
        lines += more
        checks += found
    return Result(
        "store", "Push + apply + pull, one client and one server (float32, both directions)", lines, checks,
        ["a target is held against the best peer of its size", *notes],
    )  # fmt: skip
