"""How long training stands still after `kill -9` of a worker, and what is lost: Holdfast beside torchrun.

Every worker notes when it sees a step committed (CLOCK_MONOTONIC, written at once). The pause of a kill is the
longest stretch without a committed step between the kill and the next one, so the coming of the replacement
counts, too. With one worker there is no survivor: the pause is the start of a new one, the script's own
beginning (reading the data) included.

torchrun restarts all ranks from the script's beginning; its pause is the time from the kill to the first step
after it. What the script would lose besides (all steps since its last checkpoint) is not in that number.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from benchmarks.harness import (
    Crew,
    Failed,
    Process,
    crew_figures,
    environment,
    finish,
    scratch,
    script,
    started,
    step_times,
    wait_until,
)  # fmt: skip
from benchmarks.report import Check, Line, Result, Series, quantity

LIMIT = 1.0  # seconds, for the median
PER_RUN = 4  # kills in one run
STEPS = 2000  # of a run, for every kill in it
BATCH = 64


@dataclass(slots=True)
class Found:
    """What the kills of one kind of crew showed."""

    pauses: list[float] = field(default_factory=list)
    went_back: int = 0  #: steps seen again after a later one was seen
    missing: int = 0  #: steps that nobody saw
    hashes: set[str] = field(default_factory=set)


def _arguments(steps: int) -> list[str]:
    return ["--workload", "lenet", "--batch", str(BATCH), "--steps", str(steps), "--warm", "0", "--note-steps"]


def kill_workers(workers: int, kills: int, steps: int, dice: random.Random, found: Found) -> None:
    """One run with `kills` kills."""
    with scratch() as where, Crew(workers, *_arguments(steps), "--by-steps", where=where) as crew:
        moments: list[float] = []
        for _ in range(kills):
            members = crew.await_members(workers)
            time.sleep(dice.uniform(0.2, 0.8))
            if not members or not crew.going():
                raise Failed(f"the run ended after {len(moments)} of {kills} kills; it needs more steps")
            moments.append(time.monotonic())
            os.kill(dice.choice(members), signal.SIGKILL)
            time.sleep(0.3)  # until the launcher's status knows
        crew.await_members(workers)
        finish([crew.launcher], crew.log)
        found.hashes.add(crew.summary()["weights_sha256"])
        times = step_times(where)
        found.pauses += [longest_gap(times.values(), a, b) for a, b in pairwise([*moments, float("inf")])]
        found.missing += len(set(range(steps + 1)) - set(times))
        found.went_back += went_back(where)


def longest_gap(times: Iterable[float], start: float, stop: float) -> float:
    """The longest stretch without a step that lies, at least in part, between `start` and `stop`."""
    return max(b - a for a, b in pairwise(sorted(times)) if b > start and a < stop)


def went_back(where: Path) -> int:
    """How often a step was begun after a later one had begun: what a lost step would look like."""
    lines = [line.split() for log in where.glob("steps-*.log") for line in log.read_text().splitlines()]
    newest = backwards = 0
    for _, step in sorted((float(when), int(step)) for step, when in lines):
        backwards += step < newest
        newest = max(newest, step)
    return backwards


def kill_ranks(kills: int, dice: random.Random) -> list[float]:
    """The same to two ranks under torchrun: seconds from each kill to the next step."""
    pauses = []
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "--max-restarts", str(10 * kills), script("ddp"), *_arguments(100_000),
    ]  # fmt: skip
    # With the agent's own store (the default) ranks were seen to look for dead ones after a restart, for minutes.
    env = environment(TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    with scratch() as where, started([*command, "--out", str(where)], log=where / "log", env=env) as (agent,):
        old: set[Path] = set()
        for _ in range(kills):
            ranks = _stepping(agent, where, old)
            time.sleep(dice.uniform(0.2, 0.8))
            victim = int(dice.choice(ranks).stem.partition("-")[2])
            old |= set(ranks)
            killed = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            first = min(float(log.read_text().split()[1]) for log in _stepping(agent, where, old))
            pauses.append(first - killed)
        agent.terminate()  # it ends its ranks
        agent.wait(30.0)
    return pauses


def _stepping(agent: Process, where: Path, old: set[Path]) -> list[Path]:
    """The step logs of two new ranks, once both are past their first step."""

    def fresh() -> list[Path]:
        return [log for log in where.glob("steps-*.log") if log not in old and log.read_text().count("\n") >= 2]

    wait_until(lambda: agent.poll() is not None or len(fresh()) >= 2, "two ranks under torchrun that make steps", 120.0)
    if agent.poll() is not None:
        finish([agent], where / "log")
    return sorted(fresh())


def measure(repeats: int, quick: bool) -> Result:
    """`repeats` kills of each kind, a few per run: two workers, torchrun, one worker, and again."""
    found = {2: Found(), 1: Found()}
    restarts: list[float] = []
    dice = random.Random(0)
    kills = min(repeats, PER_RUN)
    steps = (STEPS // 2 if quick else STEPS) * kills
    rounds = -(-repeats // kills)
    with scratch() as where:
        undisturbed = crew_figures(1, *_arguments(steps), "--by-steps", where=where)["weights_sha256"]
    for _ in range(rounds):
        kill_workers(2, kills, steps, dice, found[2])
        restarts += kill_ranks(kills, dice)
        kill_workers(1, kills, steps, dice, found[1])
    lines, checks = [], []
    for workers, name in ((2, "one of 2 workers"), (1, "the only worker")):
        pauses = Series(tuple(found[workers].pauses))
        peer = Series(tuple(restarts))
        lines.append(Line(f"kill -9 of {name}", "s", pauses, peer, "torchrun, 2 ranks", higher=False))
        said = f"{quantity(pauses.median)} s, at most {quantity(max(pauses.values))} s over {len(pauses.values)} kills"
        checks.append(Check(f"{name}: median pause", said, f"< {LIMIT:g} s", pauses.median < LIMIT))
        lost = found[workers].missing + found[workers].went_back
        checks.append(Check(f"{name}: steps lost or made again", str(lost), "0", lost == 0))
        same = found[workers].hashes == {undisturbed}
        checks.append(Check(f"{name}: weights of an undisturbed run", str(same).lower(), "true", same))
    return Result("pause", f"Pause after kill -9 (LeNet, global batch {BATCH})", lines, checks)
