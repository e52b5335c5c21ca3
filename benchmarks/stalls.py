"""When the machine itself stood still: a witness on each core, to tell a machine's pauses from the software's.

A virtual machine shares its cores with others, and now and then all that runs on one waits for tens of milliseconds. A
benchmark that looks at the slowest of thousands of steps would measure that. So a process on each core sleeps for a
millisecond, over and over, above all ordinary processes (`SCHED_FIFO`, which needs root): no load of ours can hold it
up, and when it wakes late all the same, nothing on that core ran meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness import environment

__all__ = ["Stall", "standing_still", "witnessed", "witnesses"]

#: From when to when, as `time.monotonic` has it (which is the same for all processes).
Stall = tuple[float, float]

_NAP, _LATE = 0.001, 0.001


@contextlib.contextmanager
def witnesses(where: Path) -> Iterator[None]:
    """A witness on each core while the block runs; what they saw is in `where`."""
    cores = sorted(os.sched_getaffinity(0))
    argv = [sys.executable, "-m", "benchmarks.stalls"]
    running = [subprocess.Popen([*argv, str(core), str(where / f"stalls-{core}")], env=environment()) for core in cores]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def witnessed(where: Path) -> list[Stall]:
    """When at least one core stood still, in order, without overlaps."""
    seen = []
    for path in where.glob("stalls-*"):
        lines = [line.split() for line in path.read_text().split("\n")[:-1]]
        seen += [(float(begin), float(end)) for begin, end in lines]
    joined: list[Stall] = []
    for begin, end in sorted(seen):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def standing_still(stalls: Sequence[Stall], begin: float, end: float) -> float:
    """How many seconds between two moments were stalls."""
    return sum(max(0.0, min(end, there) - max(begin, here)) for here, there in stalls)


def _watch(core: int, path: str) -> None:
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    with open(path, "w", buffering=1) as log:
        while True:
            due = time.monotonic() + _NAP
            time.sleep(_NAP)
            now = time.monotonic()
            if now - due > _LATE:
                log.write(f"{due} {now}\n")


if __name__ == "__main__":
    _watch(int(sys.argv[1]), sys.argv[2])
