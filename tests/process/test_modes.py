"""Ways of keeping step on real processes: what is promised in each mode holds, whoever is killed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.process.harness import SCRIPTS, Launch, golden, until

pytestmark = pytest.mark.process

COUNTING = SCRIPTS / "counting.py"
EPOCHS, STEPS, LANES, SAMPLES, BATCH = 4, 8, 4, 256, 32


def counted(run: Launch) -> tuple[float, float, list[float]]:
    """How often the push of a sample was applied: the least, the most; and in sum for each of the other parameters."""
    lines = {line.split()[0]: line.split()[1:] for line in run.out.splitlines()}
    return float(lines["lowest"][0]), float(lines["lowest"][2]), list(map(float, lines["more"]))


# ---------------------------------------------------------------- bounded:0 is exact


@pytest.mark.parametrize("servers", [0, 1])
@pytest.mark.parametrize("model", ["normed", "lenet", "transformer"])
def test_bounded_0_gives_the_bits_of_exact(tmp_path: Path, model: str, servers: int) -> None:
    with Launch(tmp_path, model, "--workers", 2, "--servers", servers, "--sync", "bounded:0") as run:
        assert run.end() == 0, run.err
    assert run.sha256 == golden(model, 4)
    run.trace.audit(samples=484, steps_of_epoch=16, epochs=3)


def test_bounded_0_gives_the_bits_of_exact_though_workers_are_killed(tmp_path: Path) -> None:
    with Launch(
        tmp_path, "normed", "--workers", 2, "--servers", 1, "--sync", "bounded:0",
        args=f"--epochs 6 --pace 0.008 --linger {tmp_path}/go",
    ) as run:  # fmt: skip
        run.at_step(5)
        run.strike(run.crewed(2)[0])
        run.at_step(9)
        run.strike(run.wait(lambda s: s["servers"], "a server")["servers"][0]["pid"])
        (tmp_path / "go").touch()
        assert run.end() == 0, run.err
    assert run.sha256 == golden("normed", 4, "--epochs", "6")


# ---------------------------------------------------------------- exactly once


def strike(run: Launch, tmp_path: Path, seed: int, rounds: int) -> None:
    """Kill a worker, a server, or one of each, again and again; then let it end."""
    chance = random.Random(seed)
    until((tmp_path / "began").exists, lambda: f"the first unit\n{run.err}")
    for _ in range(rounds):
        before = run.status()["workers_lost"]
        workers = run.crewed(2)
        servers = [one["pid"] for one in run.status()["servers"]]
        what = chance.choice(("worker", "server", "both"))
        struck = [chance.choice(workers)] * (what != "server") + servers[:1] * (what != "worker")
        for pid in struck or workers[:1]:
            run.strike(pid)
        run.wait(lambda s, before=before: s["workers_lost"] > before, "the loss")
    (tmp_path / "go").touch()


def exactly_once(tmp_path: Path, mode: str, seed: int, rounds: int, servers: int = 1) -> None:
    with Launch(
        tmp_path, COUNTING, "--workers", 2, "--servers", servers, "--sync", mode,
        args=f"--epochs {EPOCHS} --pace 0.02 --go {tmp_path}/go --began {tmp_path}/began",
    ) as run:  # fmt: skip
        strike(run, tmp_path, seed, rounds)
        assert run.end() == 0, run.err
    lowest, highest, more = counted(run)
    assert run.summary["samples"] == EPOCHS * SAMPLES, "of all pushes that were applied, those that count less too"
    assert run.summary["steps"] == EPOCHS * STEPS
    if mode.startswith("quorum"):  # the late ones count less, and never nothing
        assert 0.0 < lowest <= highest <= EPOCHS
        assert len(set(more)) == 1, "every slice has seen the same pushes"
    else:
        assert (lowest, highest) == (EPOCHS, EPOCHS), run.err
        assert more == [EPOCHS * SAMPLES / BATCH * LANES] * 4, run.err


@pytest.mark.parametrize("mode", ["exact", "bounded:2", "async", "quorum:2"])
def test_every_push_is_applied_exactly_once(tmp_path: Path, mode: str) -> None:
    exactly_once(tmp_path, mode, seed=1, rounds=2)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("mode", ["exact", "bounded:2", "bounded:4", "async", "quorum:2"])
def test_every_push_is_applied_exactly_once_under_many_schedules(tmp_path: Path, mode: str, seed: int) -> None:
    exactly_once(tmp_path, mode, seed, rounds=3, servers=seed % 3)
