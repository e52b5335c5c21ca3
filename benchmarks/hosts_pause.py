"""How long training stands still when one of three hosts is lost: Holdfast beside torchrun and torchft.

A host is lost in two ways: all its processes are killed (its connections are closed by its kernel), or its link goes
silent (nobody is told). The pause is the longest stretch without a committed step that the two others see from then
on. The lost host is never host 0, which holds the coordinator, torchrun's store and torchft's lighthouse.

torchrun restarts all ranks from the script's beginning; what the script would lose besides (all steps since its last
checkpoint) is not in that number. torchft drops the step and goes on with two. Both are run as their documentation
says, and tuned as far as somebody might who knows all their timeouts and whose steps take milliseconds (the values are
in `TORCHRUN` and `TORCHFT`). A peer that has not made a step after `LIMIT` seconds is counted with that.

torchft is no dependency: it runs where HOLDFAST_BENCH_TORCHFT names the bin directory of an environment that has it.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import Failed, finish, scratch, script, wait_until
from benchmarks.hosts import HostCrew, Lab, joins, lab_of, on_hosts, peer_environment
from benchmarks.report import Check, Line, Result, Series, quantity

HOSTS, BATCH, LOST = 3, 64, 2
STEPS = 1200  #: of one of our runs
LIMIT = 120.0
ENOUGH = 40  #: steps after which training counts as going on
#: Seconds, for the median of ours.
TARGETS = {"kill": 1.5, "cut": 3.0}
WAYS = {"kill": "all processes of a host killed", "cut": "link of a host cut"}
PEERS = Path(__file__).resolve().parent / "peers"


class Torchrun(NamedTuple):
    """How torchrun is set up."""

    agent: Sequence[str]  #: options of torchrun
    script: Sequence[str]  #: options of the script


class Torchft(NamedTuple):
    """How torchft is set up."""

    lighthouse: Sequence[str]
    replica: Sequence[str]


TORCHRUN = {
    "defaults": Torchrun((), ()),
    "tuned": Torchrun(
        (
            "--monitor-interval", "0.05",
            "--rdzv-conf", "keep_alive_interval=1,keep_alive_max_attempt=2,last_call_timeout=1,heartbeat=1",
        ),
        ("--timeout", "2"),
    ),
}  # fmt: skip
TORCHFT = {
    # As in torchft's README and train_ddp.py.
    "defaults": Torchft(("--quorum_tick_ms", "100", "--join_timeout_ms", "10000"), ()),
    "tuned": Torchft(
        ("--quorum_tick_ms", "20", "--join_timeout_ms", "1000", "--heartbeat_timeout_ms", "1000"),
        ("--collective", "1", "--timeout", "5"),
    ),
}


# ---------------------------------------------------------------- what steps were made


def notes(where: Path) -> dict[int, list[tuple[int, float]]]:
    """What each process noted, by its pid (all hosts of a lab share the numbers): (step, when)."""
    found = {}
    for log in where.glob("steps-*.log"):
        lines = [line.split() for line in log.read_text().split("\n")[:-1]]
        found[int(log.stem.partition("-")[2])] = [(int(step), float(when)) for step, when in lines]
    return found


def pause(times: Sequence[float], moment: float) -> float:
    """The longest stretch without a step from `moment` on (the step that was under way then counts)."""
    ordered = sorted(times)
    return max((b - a for a, b in pairwise(ordered) if b > moment), default=LIMIT)


def first_seen(noted: Iterable[Sequence[tuple[int, float]]]) -> list[float]:
    """When somebody saw a step that was further than all that anybody had seen before."""
    newest, times = -1, []
    for when, step in sorted((when, step) for seen in noted for step, when in seen):
        if step > newest:
            newest = step
            times.append(when)
    return times


def stepping(where: Path, going: Callable[[], bool]) -> None:
    """Wait until all hosts make steps, and for a moment that nobody chose."""

    def all_do() -> bool:
        return sum(len(seen) > ENOUGH for seen in notes(where).values()) >= HOSTS or not going()

    wait_until(all_do, f"{HOSTS} hosts that make steps", LIMIT)
    time.sleep(random.uniform(0.2, 0.8))
    if not going():
        raise Failed("it ended before anything was lost")


def lose(lab: Lab, host: int, way: str) -> set[int]:
    """Lose a host; the processes it had."""
    lost = set(lab.pids(host))
    if way == "kill":
        lab.kill_all(host)
    else:
        lab.cut(host)
    return lost


def watched(lab: Lab, where: Path, going: Callable[[], bool], way: str, *, restarts: bool) -> float:
    """Wait until all hosts step, lose one, and wait until the others step again. The pause, at most LIMIT."""
    stepping(where, going)
    old, moment = set(notes(where)), time.monotonic()
    lost = lose(lab, LOST, way)

    def survivors() -> dict[int, list[tuple[int, float]]]:
        return {pid: seen for pid, seen in notes(where).items() if pid not in lost and seen}

    newest = max(step for seen in survivors().values() for step, _ in seen)

    def again() -> bool:
        if restarts:  # in new processes, from the beginning
            return any(len(seen) > ENOUGH for pid, seen in survivors().items() if pid not in old)
        return any(seen[-1][0] > newest + ENOUGH for seen in survivors().values())

    while not again():
        if not going():
            raise Failed("it ended when a host was lost")
        if time.monotonic() - moment > LIMIT:
            return LIMIT
        time.sleep(0.05)
    noted = survivors().values()
    return pause([when for seen in noted for _, when in seen] if restarts else first_seen(noted), moment)


# ---------------------------------------------------------------- the contenders


def torchrun(way: str, setting: Torchrun) -> float:
    """One host lost under torchrun."""
    with scratch() as where, lab_of(HOSTS, None) as lab:
        commands = {
            host.number: [
                sys.executable, "-m", "torch.distributed.run", "--nnodes", f"2:{HOSTS}", "--nproc-per-node", "1",
                "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{lab.hosts[0].address}:29400", "--rdzv-id", "pause",
                "--local-addr", host.address, "--max-restarts", "100", *setting.agent, PEERS / "elastic.py",
                "--batch", BATCH, "--steps", 10_000_000, "--out", where, *setting.script,
            ]
            for host in lab.hosts
        }  # fmt: skip
        # With the agent's own store (the default) ranks were seen to look for dead ones after a restart, for minutes.
        env = peer_environment(TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        with on_hosts(lab, commands, where / "log", env) as agents:
            going = lambda: all(agent.poll() is None for agent in agents[:LOST])  # noqa: E731
            return told(where, lambda: watched(lab, where, going, way, restarts=True))


def torchft(way: str, setting: Torchft) -> float:
    """One host lost under torchft."""
    place = torchft_place()
    assert place is not None
    with scratch() as where, lab_of(HOSTS, None) as lab:
        commands = {
            host.number: [
                place / "python", PEERS / "ft.py", "--address", host.address, "--batch", BATCH,
                "--lighthouse", f"http://{lab.hosts[0].address}:29510", "--out", where, *setting.replica,
            ]
            for host in lab.hosts
        }  # fmt: skip
        lighthouse = [place / "torchft_lighthouse", "--min_replicas", "2", *setting.lighthouse]
        with (
            on_hosts(lab, {0: lighthouse}, where / "lighthouse.log"),
            on_hosts(lab, commands, where / "log", peer_environment()) as replicas,
        ):
            going = lambda: all(one.poll() is None for one in replicas[:LOST])  # noqa: E731
            return told(where, lambda: watched(lab, where, going, way, restarts=False))


def torchft_place() -> Path | None:
    """Where torchft is installed; None where it is not."""
    place = os.environ.get("HOLDFAST_BENCH_TORCHFT")
    return Path(place) if place else None


def ours(way: str) -> tuple[float, str]:
    """One host lost under `holdfast run`: the pause, and the weights."""
    with scratch() as where, lab_of(HOSTS, None) as lab, our_crew(lab, where) as crew:
        found = told(where, lambda: watched(lab, where, crew.going, way, restarts=False))
        finish([crew.launcher], crew.log)
        return found, str(crew.summary()["weights_sha256"])


def undisturbed() -> str:
    """The weights of the same run without a loss."""
    with scratch() as where, lab_of(HOSTS, None) as lab, our_crew(lab, where) as crew:
        finish([crew.launcher], crew.log)
        return str(crew.summary()["weights_sha256"])


@contextlib.contextmanager
def our_crew(lab: Lab, where: Path) -> Iterator[HostCrew]:
    """A run on all hosts of a lab, whose workers note their steps."""
    told = ["--workload", "lenet", "--batch", str(BATCH), "--steps", str(STEPS), "--warm", "0", "--note-steps"]
    told += ["--lanes", "6", "--out", str(where)]
    with HostCrew(lab, script("train"), *told, where=where) as crew:
        yield crew


def told(where: Path, act: Callable[[], float]) -> float:
    """Do it; what fails carries the end of the output."""
    try:
        return act()
    except Failed as error:
        logs = sorted(where.glob("*log"))
        tails = [f"{log.name}: " + "\n".join(log.read_text(errors="replace").splitlines()[-12:]) for log in logs]
        raise Failed(f"{error}\n" + "\n".join(tails)) from None


# ---------------------------------------------------------------- the whole


def measure(repeats: int, quick: bool) -> Result:
    """In every round, for each way to lose a host: ours, then each peer in each set-up."""
    mine: dict[str, list[float]] = {way: [] for way in WAYS}
    peers: dict[str, dict[str, list[float]]] = {way: {} for way in WAYS}
    hashes = {undisturbed()} if joins() else set()
    for _ in range(repeats):
        for way in WAYS:
            if joins():
                seconds, sha = ours(way)
                mine[way].append(seconds)
                hashes.add(sha)
            for name, act in contenders(way, quick):
                found = peers[way].setdefault(name, [])
                # One wait to the limit tells as much as several.
                found.append(LIMIT if LIMIT in found else act())
    lines: list[Line] = []
    checks: list[Check] = []
    said: list[str] = []
    for way, what in WAYS.items():
        for name, pauses in peers[way].items():
            peer = Series(tuple(pauses))
            said.append(f"{what}: {name} {peer.shown(' s')}" + " (the limit)" * (LIMIT in pauses))
            if mine[way]:
                lines.append(Line(what, "s", Series(tuple(mine[way])), peer, name, higher=False))
        if mine[way]:
            own = Series(tuple(mine[way]))
            wanted = f"< {TARGETS[way]:g} s"
            checks.append(Check(f"{what}: median pause", own.shown(" s"), wanted, own.median < TARGETS[way]))
    if hashes:
        same = f"{len(hashes)} hash" + "es" * (len(hashes) > 1)
        checks.append(Check("weights of an undisturbed run", same, "1 hash", len(hashes) == 1))
    if torchft_place() is None:
        said.append("torchft was left out: HOLDFAST_BENCH_TORCHFT does not name where it is installed")
    said.append(f"a peer that stood still for {quantity(LIMIT)} s was given up")
    raw = {"ours": mine, "peers": peers}
    return Result("hosts_pause", f"One of {HOSTS} hosts lost (LeNet, global batch {BATCH})", lines, checks, said, raw)


def contenders(way: str, quick: bool) -> Iterator[tuple[str, Callable[[], float]]]:
    """Who else is measured, and how."""
    for name, setting in TORCHRUN.items():
        if not (quick and name == "defaults"):
            yield f"torchrun, {name}", partial(torchrun, way, setting)
    if torchft_place() is not None:
        for name, other in TORCHFT.items():
            yield f"torchft, {name}", partial(torchft, way, other)
