"""`kill -9` of a worker, of a server, of both, in every mode: each push counts once, by the audit model's numbers."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.process.counted import TALLY, applied_once, arguments, settings
from tests.process.harness import Launch, until

pytestmark = [pytest.mark.process, pytest.mark.sharing]

MODES = ("exact", "bounded:2", "async", "quorum:2", "local:3")
#: Who is struck, by how many schedules in each mode. An owner is a worker, where there are no servers.
WHO = {"worker": 20, "server": 20, "both": 20, "owner": 10}
#: Schedules that one run goes through, one after the other: a start takes longer than a few of them.
SPAN = 10
FEW = [(mode, who, 0, 2) for mode, who in (("async", "both"), ("quorum:2", "both"), ("local:3", "server"))]
MANY = [(mode, who, seed, SPAN) for mode in MODES for who, seeds in WHO.items() for seed in range(0, seeds, SPAN)]
PACE = 0.02


def there(run: Launch, servers: int) -> tuple[list[int], list[int]]:
    """Wait until the crew is complete and at work. The pids of its workers and of its servers."""
    status = run.wait(
        lambda s: [w["state"] for w in s["workers"]] == ["member"] * 2 and not s["waiting_for"]
        and [one["state"] for one in s["servers"]] == ["member"] * servers
        and (not servers or any(one["slices"] for one in s["servers"])),
        f"2 workers and {servers} servers", 60.0,
    )  # fmt: skip
    return [one["pid"] for one in status["workers"]], [one["pid"] for one in status["servers"]]


def strike(run: Launch, who: str, servers: int, chance: random.Random) -> int:
    """Kill, a few units and a moment after the crew is there. How many."""
    workers, owners = there(run, servers)
    before, units = run.status()["workers_lost"], run.trace.read().tries + chance.randrange(8)
    until(lambda: run.trace.read().tries >= units, f"some units\n{run.err}")
    time.sleep(chance.uniform(0.0, 2 * PACE))  # a seeded moment of a unit, or of a push, or of a version
    struck = [chance.choice(workers)] if who != "server" else []
    struck += [chance.choice(owners)] if who in ("server", "both") else []
    chance.shuffle(struck)
    for pid in struck:
        run.strike(pid)
    run.wait(lambda s: s["workers_lost"] >= before + len(struck), "the loss")
    return len(struck)


@pytest.mark.parametrize(
    ("mode", "who", "first", "schedules"), [*FEW, *(pytest.param(*case, marks=pytest.mark.chaos) for case in MANY)]
)
def test_every_push_is_applied_exactly_once(tmp_path: Path, mode: str, who: str, first: int, schedules: int) -> None:
    """Servers are one or two. The last steps are slow until all was struck that is to be."""
    servers = 0 if who == "owner" else 1 + first // SPAN % 2
    epochs, lost = 2 + schedules, 0
    args = f"{arguments(tmp_path, epochs)} --pace {PACE} --hold {8 * epochs - 12}"
    with Launch(tmp_path, TALLY, "--workers", 2, "--servers", servers, *settings(mode), args=args) as run:
        for seed in range(first, first + schedules):
            if seed % 2:  # a run forgives five losses without a step in between, and a round is three of them
                step = run.status()["step"] or 0
                run.wait(lambda s, step=step: (s["step"] or 0) > step, "a step")
            lost += strike(run, who, servers, random.Random(f"{mode} {who} {seed}"))
        (tmp_path / "go").touch()
        assert run.end(120) == 0, run.err
    assert run.summary["workers_lost"] >= lost
    applied_once(run, epochs)
