"""Strangers at the door: 10,000 connections that are not ours while two hosts train.

They knock at the coordinator's port, without a token: connect and close, garbage, half a greeting that never goes on,
an absurd length, a guessed proof. The run must end with the weights of an undisturbed one, and no step may take more
than twice the median; what steps take without strangers is shown beside it.
"""

from __future__ import annotations

import os
import random
import socket
import statistics
import struct
import sys
import time
from itertools import pairwise
from pathlib import Path

from benchmarks.harness import Failed, finish, scratch, script
from benchmarks.hosts import HostCrew, lab_of
from benchmarks.hosts_pause import notes
from benchmarks.report import Check, Line, Result, Series

STEPS, BATCH, KNOCKS = 1800, 64, 10_000
UNIT_MS = 10.0  # a step of 20 ms: one core is free for whoever answers the door


def knock(address: str, port: int, count: int, seed: int) -> int:
    """Come as a stranger so many times; how often somebody was there."""
    chance, held, came = random.Random(seed), [], 0
    for number in range(count):
        one = socket.socket()
        one.settimeout(5)
        try:
            one.connect((address, port))
            came += 1
            kind = number % 5
            if kind == 1:
                one.sendall(chance.randbytes(chance.randrange(1, 4096)))
            elif kind == 2:
                one.sendall(b"HOLDFAST"[: chance.randrange(1, 9)])
                held.append(one)  # never goes on: the door must have a deadline
                continue
            elif kind == 3:
                one.sendall(b"HOLDFAST" + struct.pack("<I", 0xFFFFFFFF) + chance.randbytes(64))
            elif kind == 4:
                one.sendall(b"HOLDFAST" + chance.randbytes(200))
        except OSError:
            pass  # it shut the door on us
        one.close()
        if len(held) > 200:
            held.pop(0).close()
    for one in held:
        one.close()
    return came


def run(strangers: bool) -> tuple[list[float], str, int]:
    """(seconds of the steps of the first worker, weights, how many strangers were met)."""
    told = ["--workload", "tiny", "--batch", str(BATCH), "--steps", str(STEPS), "--warm", "0", "--note-steps"]
    told += ["--lanes", "2", "--unit-ms", str(UNIT_MS)]
    with scratch() as where, lab_of(2, None) as lab:
        crew = HostCrew(lab, script("train"), *told, "--out", str(where), where=where)
        with crew:
            met = 0
            if strangers:
                _wait(where, crew)
                argv = [sys.executable, "-m", "benchmarks.hosts_strangers", lab.hosts[0].address, str(crew.PORT)]
                env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
                knocking = lab.run(1, argv, env=env, stdout=-1, text=True)
                met = int(knocking.communicate()[0])
            finish([crew.launcher], crew.log)
            sha = str(crew.summary()["weights_sha256"])
        first = max(notes(where).values(), key=len)
        return [b - a for (_, a), (_, b) in pairwise(first)][20:], sha, met


def _wait(where: Path, crew: HostCrew) -> None:
    until = time.monotonic() + 60
    while not any(len(seen) > 20 for seen in notes(where).values()):
        if time.monotonic() > until or not crew.going():
            raise Failed("the run makes no steps")
        time.sleep(0.05)


def measure(repeats: int, quick: bool) -> Result:
    """With and without strangers, in turns."""
    worst: dict[bool, list[float]] = {True: [], False: []}
    medians: dict[bool, list[float]] = {True: [], False: []}
    hashes, met = set(), []
    for _ in range(repeats):
        for strangers in (True, False):
            steps, sha, number = run(strangers)
            hashes.add(sha)
            medians[strangers].append(1e3 * statistics.median(steps))
            worst[strangers].append(max(steps) / statistics.median(steps))
            if strangers:
                met.append(number)
    lines = [
        _line("median step", "ms", medians), _line("slowest step", "medians", worst),
    ]
    checks = [
        Check("the same weights with and without strangers", f"{len(hashes)} hash", "1 hash", len(hashes) == 1),
        Check("strangers that came to the door", str(min(met)), str(KNOCKS), min(met) >= KNOCKS * 0.99),
        Check("no step slower than twice the median", f"{max(worst[True]):.2f}x", "<= 2x", max(worst[True]) <= 2.0),
    ]
    return Result("hosts_strangers", "10,000 strangers at the door of a run on two hosts", lines, checks, [])


def _line(what: str, unit: str, found: dict[bool, list[float]]) -> Line:
    return Line(what, unit, Series(tuple(found[True])), Series(tuple(found[False])), "undisturbed", higher=False)


if __name__ == "__main__":
    print(knock(sys.argv[1], int(sys.argv[2]), KNOCKS, 1))
