"""Strangers at the door: 10,000 connections that must not get in while two hosts train.

They knock at the coordinator's port, without the token (tests/hosts/strangers.py): connect and close, garbage, half a
greeting that is held open, a right opening and then an oversized length, a greeting with a wrong token, a greeting that
was recorded and is said once more. All of them must have come before the training ends, and each must be turned away as
its kind has to be. The run must end with the weights of an undisturbed one, and no step may take more than twice the
median; what steps take without strangers is shown beside it. Steps are short, so time in which the machine itself stood
still (stalls.py), with or without strangers, is taken out of a step; how long the slowest took with it is shown, too.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import Failed, environment, finish, scratch, script
from benchmarks.hosts import HostCrew, lab_of
from benchmarks.hosts_pause import notes
from benchmarks.report import Check, Line, Result, Series
from benchmarks.stalls import standing_still, witnessed, witnesses
from tests.hosts.strangers import KINDS

STEPS, BATCH, KNOCKS = 2400, 64, 10_000
UNIT_MS = 10.0  # a step of 20 ms: one core is free for whoever answers the door

#: Kind of stranger -> how many came, and how many of those were turned away.
Told = dict[str, tuple[int, int]]


class Outcome(NamedTuple):
    """One run."""

    whole: list[float]  #: seconds of the steps of the first worker
    steps: list[float]  #: the same, without what the machine stood still
    sha: str  #: of the weights
    met: Told  #: what became of the strangers


def run(strangers: bool) -> Outcome:
    """Train to the end, with strangers at the door or without."""
    told = ["--workload", "tiny", "--batch", str(BATCH), "--steps", str(STEPS), "--warm", "0", "--note-steps"]
    told += ["--lanes", "2", "--unit-ms", str(UNIT_MS)]
    with scratch() as where, lab_of(2, None) as lab:
        crew = HostCrew(lab, script("train"), *told, "--out", str(where), where=where)
        with witnesses(where), crew:
            met: Told = {}
            if strangers:
                _wait(where, crew)
                met = _knock(crew)
            finish([crew.launcher], crew.log)
            sha = str(crew.summary()["weights_sha256"])
        first = max(notes(where).values(), key=len)[20:]
        stalls = witnessed(where)
        whole = [b - a for (_, a), (_, b) in pairwise(first)]
        steps = [b - a - standing_still(stalls, a, b) for (_, a), (_, b) in pairwise(first)]
        return Outcome(whole, steps, sha, met)


def _knock(crew: HostCrew) -> Told:
    """All of them, from the other host. They would have machines of their own; here they get what the run leaves over,
    so that what shows is the work of whoever answers the door, and not theirs.
    """
    door = [crew.lab.hosts[0].address, crew.PORT]
    argv = ["nice", "-n", "19", sys.executable, "-m", "tests.hosts.strangers", *door, KNOCKS, crew.directory / "token"]
    knocking = crew.lab.run(1, argv, env=environment(), stdout=subprocess.PIPE, text=True)
    answer, _ = knocking.communicate()
    if knocking.returncode:
        raise Failed(f"the strangers ended with status {knocking.returncode}")
    if not crew.going():
        raise Failed("the training had ended before all strangers had come: it needs more steps")
    return {kind: (came, refused) for kind, (came, refused) in json.loads(answer).items()}


def _wait(where: Path, crew: HostCrew) -> None:
    until = time.monotonic() + 60
    while not any(len(seen) > 20 for seen in notes(where).values()):
        if time.monotonic() > until or not crew.going():
            raise Failed("the run makes no steps")
        time.sleep(0.05)


def measure(repeats: int, quick: bool) -> Result:
    """With and without strangers, in turns."""
    found: dict[bool, list[Outcome]] = {True: [], False: []}
    for _ in range(repeats):
        for strangers in (True, False):
            found[strangers].append(run(strangers))
    hashes = {outcome.sha for outcomes in found.values() for outcome in outcomes}
    met = [outcome.met for outcome in found[True]]
    lines = [
        _line("median step", "ms", found, lambda outcome: 1e3 * statistics.median(outcome.steps)),
        _line("slowest step", "medians", found, lambda outcome: _slowest(outcome.steps)),
        _line("slowest step with the machine's stalls", "medians", found, lambda outcome: _slowest(outcome.whole)),
    ]
    slowest = max(_slowest(outcome.steps) for outcome in found[True])
    checks = [
        Check("the same weights with and without strangers", f"{len(hashes)} hash", "1 hash", len(hashes) == 1),
        _count("strangers that came to the door", [sum(came for came, _ in told.values()) for told in met]),
        _count("turned away as their kind has to be", [sum(refused for _, refused in told.values()) for told in met]),
        Check("no step slower than twice the median", f"{slowest:.2f}x", "<= 2x", slowest <= 2.0),
    ]
    title = "10,000 strangers at the door of a run on two hosts"
    return Result("hosts_strangers", title, lines, checks, [_spoken(met[-1])])


def _count(what: str, found: list[int]) -> Check:
    return Check(what, f"{min(found):,}", f"{KNOCKS:,}", set(found) == {KNOCKS})


def _spoken(told: Told) -> str:
    return "turned away, of those who came: " + ", ".join(f"{kind} {told[kind][1]}/{told[kind][0]}" for kind in KINDS)


def _slowest(steps: list[float]) -> float:
    return max(steps) / statistics.median(steps)


def _line(what: str, unit: str, found: dict[bool, list[Outcome]], of: Callable[[Outcome], float]) -> Line:
    with_them, without = (Series(tuple(of(outcome) for outcome in found[strangers])) for strangers in (True, False))
    return Line(what, unit, with_them, without, "undisturbed", higher=False)
