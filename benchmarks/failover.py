"""How long training stands still when whoever holds the parameters is lost, and one replica has a copy.

Three hosts with a worker each, and a fourth that only coordinates. One of the three is the home: a server there owns
the parameters, and another host is its replica. Lost are the server alone (`kill -9`), all processes of the home, or
the home's link (nobody is told). Every worker notes which version each of its units is computed from. The pause is the
longest stretch, from the loss on, in which no survivor gets a new version; it is watched until a server owns the
parameters again and training goes on, so that the coming of the new server counts, too.

At the end the run is asked to stop, and must have used each sample of its steps once.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import Failed, scratch, script, wait_until
from benchmarks.hosts import HostCrew, lab_of
from benchmarks.hosts_pause import BATCH, ENOUGH, HOSTS, LIMIT, first_seen, lose, notes, pause, stepping, told
from benchmarks.report import Check, Line, Result, Series

MODES = ("bounded:4", "async")
WAYS = {
    "server": "kill -9 of the server", "kill": "all processes of the home killed", "cut": "link of the home cut",
}  # fmt: skip
#: Seconds, for the median.
TARGETS = {"server": 2.0, "kill": 2.0, "cut": 3.0}
STEPS = 1_000_000  # more than it ever makes


class Standing(NamedTuple):
    """Who holds the parameters now."""

    home: str  #: the name of the host
    server: int  #: pid


def standing(status: dict[str, Any]) -> Standing | None:
    """Who does, where a server owns them on the home and another host has a copy; None while that is not so."""
    roles = {host["role"]: host for host in status.get("hosts", ())}
    owners = [one for one in status.get("servers", ()) if one["state"] == "member" and one["slices"]]
    if not owners or not {"home", "replica"} <= set(roles) or status["waiting_for"]:
        return None
    home = roles["home"]
    return Standing(home["name"], owners[0]["pid"]) if owners[0]["host_number"] == home["host"] else None


def fail_over(mode: str, way: str) -> tuple[float, bool]:
    """(the pause, whether each sample counts once)."""
    args = ["--workload", "lenet", "--batch", str(BATCH), "--steps", str(STEPS), "--warm", "0", "--note-versions"]
    options = ["--workers", "0", "--hosts", str(HOSTS), "--servers", "1", "--replicas", "1", "--sync", mode]
    with scratch() as where, lab_of(HOSTS + 1, None) as lab:
        args += ["--lanes", "6", "--out", str(where)]
        with HostCrew(lab, script("train"), *args, where=where, options=options) as crew:
            seconds = told(where, lambda: struck(crew, where, way))
            crew.launcher.send_signal(signal.SIGTERM)
            crew.launcher.wait(LIMIT)
            summary = crew.summary()
            return seconds, summary["samples"] == summary["steps"] * BATCH > 0


def struck(crew: HostCrew, where: Path, way: str) -> float:
    """Lose who holds the parameters; the pause."""
    stepping(where, crew.going)
    before = held_again(crew, None)
    (home,) = (host.number for host in crew.lab.hosts if host.name == before.home)
    moment = time.monotonic()
    if way == "server":
        lost = {before.server}
        os.kill(before.server, signal.SIGKILL)
    else:
        lost = lose(crew.lab, home, way)
    held_again(crew, before)

    def survivors() -> list[list[tuple[int, float]]]:
        return [seen for pid, seen in notes(where).items() if pid not in lost and seen]

    newest = max(seen[-1][0] for seen in survivors())
    wait_until(lambda: max(seen[-1][0] for seen in survivors()) > newest + ENOUGH, "training to go on", LIMIT)
    return pause(first_seen(survivors()), moment)


def held_again(crew: HostCrew, before: Standing | None) -> Standing:
    """Wait until a server owns the parameters, another one than before."""
    found: list[Standing] = []

    def owned() -> bool:
        if not crew.going():
            raise Failed("it ended")
        now = standing(crew.status())
        if now is not None and (before is None or now.server != before.server):
            found.append(now)
        return bool(found)

    wait_until(owned, "a server that owns the parameters", LIMIT)
    return found[0]


def measure(repeats: int, quick: bool) -> Result:
    """In every round, each mode and each way to lose the parameters' holder."""
    pauses: dict[tuple[str, str], list[float]] = {}
    once = True
    for _ in range(repeats):
        for mode in MODES:
            for way in WAYS:
                seconds, exact = fail_over(mode, way)
                pauses.setdefault((mode, way), []).append(seconds)
                once = once and exact
    lines, checks = [], []
    for (mode, way), found in pauses.items():
        own, what = Series(tuple(found)), f"{mode}: {WAYS[way]}"
        lines.append(Line(what, "s", own, higher=False))
        limit = TARGETS[way]
        checks.append(Check(f"{what}: median pause", own.shown(" s"), f"< {limit:g} s", own.median < limit))
    checks.append(Check("each sample of a step counts once", str(once).lower(), "true", once))
    title = f"Whoever holds the parameters is lost ({HOSTS} hosts, 1 server, 1 replica, LeNet, global batch {BATCH})"
    raw = {f"{mode} {way}": found for (mode, way), found in pauses.items()}
    return Result("failover", title, lines, checks, [], raw)
