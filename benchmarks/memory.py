"""Memory of a host that trains a 20-million-parameter MLP with Adam: Holdfast beside DDP.

Parameters are 80 MB, Adam's state 160 MB. Under Holdfast they lie in one arena that all workers map; under DDP
every rank has its own. Shown are

* the arena's share of each worker by PSS (/proc/PID/smaps: a page that n processes map counts 1/n for each), added
  over the workers: what the arena takes once per host;
* which part of it are parameters and optimizer state, from the pages that the arena's descriptor really holds
  (SEEK_DATA), so that gradients, of which there is one per open partial sum, can be told apart;
* the PSS of all processes together (launcher and forkserver included) beside that of all ranks under DDP.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Crew, family, going_ranks, scratch, step_times, wait_until
from benchmarks.report import Check, Line, Result, Series, quantity

WORKERS = (1, 2, 4)
LANES = 4
PARAMETERS = 20_037_642
STATE_MB = PARAMETERS * 4 * 3 / 1e6  # parameters and Adam's two averages
STEPS = 4  # seen before anything is read
#: Padding, step counters and the like.
SLACK = 1.05


def pss_mb(pid: int, mapped: str = "") -> float:
    """PSS of a process, or of its mappings whose name holds `mapped`."""
    total, counts = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        first = line.split(maxsplit=1)[0]
        if not first.endswith(":"):  # the head of a mapping
            counts = mapped in line
        elif counts and first == "Pss:":
            total += int(line.split()[1])
    return total * 1024 / 1e6


def resident(fd: int) -> Iterator[tuple[int, int]]:
    """The stretches of a memfd that have pages."""
    at = 0
    while True:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        at = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, at


def arena_parts(launcher: int, spans: dict[str, tuple[int, int]]) -> dict[str, float]:
    """MB of the arena that have pages, by kind of section."""
    held = [link for link in Path(f"/proc/{launcher}/fd").iterdir() if "memfd:holdfast" in os.readlink(link)]
    fd = os.open(held[0], os.O_RDONLY)
    try:
        stretches = list(resident(fd))
    finally:
        os.close(fd)
    parts = {"state": 0.0, "gradients": 0.0, "other": 0.0}
    for name, (start, size) in spans.items():
        kind = name.partition("/")[0]
        kind = "state" if kind in ("parameters", "state") else "gradients" if kind in ("slot", "sum") else "other"
        parts[kind] += sum(max(0, min(stop, start + size) - max(at, start)) for at, stop in stretches) / 1e6
    return parts


def _arguments() -> list[str]:
    return [
        "--workload", "mlp", "--batch", "32", "--optimizer", "adam", "--lanes", str(LANES), "--steps", "5000",
        "--warm", "0", "--note-steps",
    ]  # fmt: skip


def ours(workers: int) -> dict[str, Any]:
    """What a going run with so many workers holds."""
    with scratch() as where, Crew(workers, *_arguments(), "--sections", where=where) as crew:
        wait_until(lambda: max(step_times(where), default=0) >= STEPS, f"{STEPS} steps of {workers} workers", 300.0)
        members = crew.await_members(workers)
        done = max(step_times(where))
        wait_until(lambda: max(step_times(where)) >= done + 2, "two more steps", 300.0)
        spans = json.loads((where / "sections.json").read_text())
        arena = [pss_mb(pid, "memfd:holdfast") for pid in members]
        found = {
            "arena_mb": sum(arena), "arena_each_mb": arena, "parts_mb": arena_parts(crew.launcher.pid, spans),
            "total_mb": sum(pss_mb(pid) for pid in family(crew.launcher.pid)),
        }
    return found


def ddp(workers: int) -> dict[str, Any]:
    """The same under DDP."""
    with scratch() as where, going_ranks(workers, "ddp", *_arguments(), where=where) as children:
        wait_until(lambda: max(step_times(where), default=0) >= STEPS, f"{STEPS} steps of {workers} ranks", 300.0)
        return {"total_mb": sum(pss_mb(child.pid) for child in children)}


def measure(repeats: int, quick: bool) -> Result:
    """For 1, 2 and 4 workers: ours, then DDP."""
    lines: list[Line] = []
    checks: list[Check] = []
    raw: dict[str, Any] = {}
    for workers in WORKERS[:2] if quick else WORKERS:
        rounds = [(ours(workers), ddp(workers)) for _ in range(repeats)]
        raw[str(workers)] = rounds
        mine, theirs = Series(tuple(r[0]["total_mb"] for r in rounds)), Series(tuple(r[1]["total_mb"] for r in rounds))
        lines.append(Line(f"{workers} workers: all processes", "MB PSS", mine, theirs, "DDP", higher=False))
        arena = Series(tuple(r[0]["arena_mb"] for r in rounds))
        state = max(r[0]["parts_mb"]["state"] for r in rounds)
        gradients = max(r[0]["parts_mb"]["gradients"] for r in rounds)
        lines.append(Line(f"{workers} workers: the arena", "MB PSS", arena))
        checks.append(
            Check(
                f"{workers} workers: parameters and optimizer state once per host",
                f"{quantity(state)} MB (and {quantity(gradients)} MB of gradients)",
                f"<= {quantity(STATE_MB * SLACK)} MB", STATE_MB / SLACK <= state <= STATE_MB * SLACK,
            )
        )  # fmt: skip
    notes = [f"parameters and Adam's state: {STATE_MB:,.0f} MB; a DDP rank holds them, and a gradient, each for itself"]
    return Result("memory", f"Memory per host: 20M-parameter MLP with Adam, lanes = {LANES}", lines, checks, notes, raw)
