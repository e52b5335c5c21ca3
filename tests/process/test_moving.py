"""Slices move away from a slow server while a run goes on: the same weights, and every push counts once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.process.harness import SCRIPTS, Launch, golden

pytestmark = pytest.mark.process

COUNTING = SCRIPTS / "counting.py"
#: Numbers 2 and 3 are the servers. For a million numbers, of which there are as many, one takes three times as long.
HEAVY = "--heavy 2:0.06 --heavy 3:0.02"
EPOCHS, SAMPLES, BATCH = 16, 256, 32


def moved(run: Launch) -> list[dict[str, int]]:
    """Wait until the slow server owns less than the other one. Both."""
    status = run.wait(
        lambda s: len(s.get("servers", ())) == 2 and not s["waiting_for"]
        and 0.0 < s["servers"][0]["share"] < s["servers"][1]["share"]
        and 0 < s["servers"][0]["slices"] < s["servers"][1]["slices"],
        "slices that have moved",
    )  # fmt: skip
    run.told("slices move: a version should take ")
    return status["servers"]


@pytest.mark.chaos
def test_slices_move_away_from_a_slow_server(tmp_path: Path) -> None:
    args = f"--linger {tmp_path}/go {HEAVY}"
    with Launch(tmp_path, "wide", "--workers", 2, "--servers", 2, args=args) as run:
        slow, fast = moved(run)
        assert slow["bytes_per_second"] < fast["bytes_per_second"] and slow["share"] + fast["share"] == 1.0
        (tmp_path / "go").touch()
        assert run.end() == 0, run.err
    assert run.sha256 == golden("wide", 4), run.err
    run.trace.audit(samples=484, steps_of_epoch=16, epochs=3)
    assert run.summary["workers_lost"] == 0


def exactly_once(tmp_path: Path, mode: str, strikes: int, chance: random.Random) -> None:
    """Kill a server as soon as slices have moved; the other one, or one of the next two, later."""
    with Launch(
        tmp_path, COUNTING, "--workers", 2, "--servers", 2, "--sync", mode, "--set", "staleness=plain",
        args=f"--epochs {EPOCHS} --pace 0.08 --go {tmp_path}/go --began {tmp_path}/began {HEAVY}",
    ) as run:  # fmt: skip
        run.strike(chance.choice(moved(run))["pid"])
        for lost in range(1, strikes):
            owning = run.wait(
                lambda s, lost=lost: s["workers_lost"] >= lost and len(s.get("servers", ())) == 2
                and all(one["state"] == "member" and one["pid"] for one in s["servers"]), "two servers"
            )["servers"]  # fmt: skip
            run.strike(chance.choice(owning)["pid"])
        run.wait(lambda s: s["workers_lost"] == strikes, "the loss")
        (tmp_path / "go").touch()
        assert run.end() == 0, run.err
    lines = {line.split()[0]: line.split()[1:] for line in run.out.splitlines()}
    assert (float(lines["lowest"][0]), float(lines["lowest"][2])) == pytest.approx((EPOCHS, EPOCHS)), run.err
    more = list(map(float, lines["more"]))
    if mode != "exact":  # each push adds 1; here each worker's share of a step does
        assert more[0] == pytest.approx(sum(run.summary["staleness"])), run.err
    assert more == [more[0]] * 4 and more[0] >= EPOCHS * SAMPLES / BATCH, run.err
    assert run.summary["samples"] == EPOCHS * SAMPLES and run.summary["workers_lost"] == strikes


def test_a_server_is_killed_right_after_slices_have_moved(tmp_path: Path) -> None:
    exactly_once(tmp_path, "bounded:2", strikes=1, chance=random.Random(1))


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("mode", ["exact", "bounded:2", "async"])
def test_servers_are_killed_after_slices_have_moved_by_a_seed(tmp_path: Path, mode: str, seed: int) -> None:
    exactly_once(tmp_path, mode, strikes=3, chance=random.Random(seed))
