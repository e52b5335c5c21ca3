"""What is left behind after random `kill -9` of workers, nurseries and launchers: it must be nothing.

Every process of these runs carries a mark in its environment, and has a temporary directory of its own, so
what it leaves can be told from what others do on the machine. After every run, however it ended, we wait a
moment and count: marked processes (and with them memfds, which live only in processes), names in /dev/shm,
bound sockets. A killed launcher can not take its socket file, its lock and its temporary files along; the next
`holdfast` command sweeps them up, so at the end one looks at every run before these are counted.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Crew, Failed, children, environment, scratch, wait_until
from benchmarks.report import Check, Result

#: How often each kind of process is the victim.
ODDS = {"worker": 6, "forkserver": 2, "launcher": 2}
PER_RUN = 8  # kills in one run, unless its launcher is hit before
WORKERS, LANES = 2, 4
_MARK = "HOLDFAST_BENCHMARK_MARK"
#: How long processes may take to notice that their launcher is gone. The kernel tells them at once.
MOMENT = 3.0


def marked(mark: str) -> Iterator[int]:
    """The live processes that carry the mark."""
    wanted = f"{_MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)


def memfds(pids: list[int]) -> int:
    """How many of our memfds these processes hold."""
    count = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            count += sum("memfd:holdfast" in os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir())
    return count


def victim_of(kind: str, crew: Crew, dice: random.Random) -> int | None:
    """A process of this kind, if there is one now."""
    if kind == "launcher":
        return crew.launcher.pid
    forkservers = children(crew.launcher.pid)
    if kind == "forkserver":
        return dice.choice(forkservers) if forkservers else None
    workers = [worker for forkserver in forkservers for worker in children(forkserver)]  # starting ones included
    return dice.choice(workers) if workers else None


def _count(mark: str, before: set[str], where: Path, left: Counter[str]) -> None:
    """Add what is left now to `left`."""
    with contextlib.suppress(Failed):
        wait_until(lambda: not list(marked(mark)), "processes to end", MOMENT)
    pids = list(marked(mark))
    left["processes"] += len(pids)
    left["memfds"] += memfds(pids)
    left["names in /dev/shm"] += len(set(os.listdir("/dev/shm")) - before)
    with contextlib.suppress(OSError):
        left["bound sockets"] += Path("/proc/net/unix").read_text().count(str(where))


def _swept(where: Path, env: dict[str, str], left: Counter[str]) -> None:
    """Let a `holdfast` command look at every run, then count what only a going run may have."""
    for run in sorted(where.glob("run-*")):
        if (run / "run.json").exists():
            command = [sys.executable, "-m", "holdfast.cli.main", "status", str(run)]
            subprocess.run(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        left["files of a going run"] += sum((run / name).exists() for name in ("control.sock", "lock"))
        left["files of a going run"] += len(list(run.rglob("*.new")))
    # torch makes a directory for its compiler as soon as it is imported, in plain PyTorch, too.
    ours = [path for path in (where / "tmp").iterdir() if not path.name.startswith("torchinductor_")]
    left["temporary files"] += len(ours)


def _one_run(number: int, kills: int, where: Path, env: dict[str, str], dice: random.Random, hit: Counter[str]) -> None:
    """A run that is shot at until its launcher falls, it ends by itself, or `kills` are spent."""
    # A run that loses worker after worker without a step gives up, as it should; here it shall go on.
    options = ["--lanes", str(LANES), "--set", "crew.luck_budget=1000", "--set", "crew.unit_attempts=1000"]
    arguments = ["--workload", "tiny", "--batch", "64", "--steps", "1000000", "--warm", "0", "--unit-ms", "1"]
    with Crew(WORKERS, *arguments, where=where, options=options, env=env, run=f"run-{number}") as crew:
        for shot in range(kills):
            if shot == 0 and dice.random() < 0.7:
                crew.await_members(1)  # else: in the middle of the start
            time.sleep(dice.uniform(0.05, 1.5))
            (kind,) = dice.choices(list(ODDS), list(ODDS.values()))
            victim = victim_of(kind, crew, dice)
            if not crew.going():
                return
            if victim is None:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
                hit[kind] += 1
            if kind == "launcher":
                crew.launcher.wait()
                return
        crew.launcher.send_signal(signal.SIGTERM)
        try:
            crew.launcher.wait(30.0)
        except subprocess.TimeoutExpired:
            raise Failed(f"the run did not drain within 30 s:\n{crew.log.read_text()[-2000:]}") from None


def measure(repeats: int, quick: bool) -> Result:
    """`repeats` kills, over as many runs as that takes."""
    dice, hit, left = random.Random(0), Counter[str](), Counter[str]()
    number = 0
    with scratch() as where:
        (where / "tmp").mkdir()
        before = set(os.listdir("/dev/shm"))
        mark = where.name
        env = environment(TMPDIR=str(where / "tmp"), **{_MARK: mark})
        while hit.total() < repeats:
            number += 1
            _one_run(number, min(PER_RUN, repeats - hit.total()), where, env, dice, hit)
            _count(mark, before, where, left)
        _swept(where, env, left)
    said = ", ".join(f"{kind} {count}x" for kind, count in hit.items())
    checks = [Check(what, str(count), "0", count == 0) for what, count in left.items()]
    title = f"Left behind after {hit.total()} random kills in {number} runs"
    extra = {"killed": dict(hit), "left": dict(left)}
    return Result("leftovers", title, checks=checks, notes=[f"killed: {said}"], extra=extra)
