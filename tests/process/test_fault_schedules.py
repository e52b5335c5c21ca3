"""Schedules of kills, stops, joins, leaves and slowness: the same weights, every sample once in an epoch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.harness import Launch, golden, holdfast
from tests.process.schedules import Slow, draw, play

pytestmark = [pytest.mark.process, pytest.mark.sharing]

LANES = (4, 6, 8)


def check(tmp_path: Path, model: str, seed: int, lanes: int, epochs: int) -> None:
    steps, length = epochs * 16, f"--epochs {epochs}"
    faults = draw(seed, steps, lanes)
    slow = " ".join(fault.option for fault in faults if isinstance(fault, Slow))
    options = ["--workers", 2 + seed % 2, "--lanes", lanes, "--set", "crew.frozen_limit=0.6s", "--set", "audit=true"]
    with Launch(tmp_path, model, *options, args=f"{length} --pace 0.003 {slow}") as run:
        play(run, faults)
        told = f"{faults}\n{run.err}"
        assert run.end() == 0, told
        run.trace.audit(samples=484, steps_of_epoch=16, epochs=epochs)
    assert run.summary["steps"] == steps and run.summary["outcome"] == "ok"
    judged = holdfast("explain", run.dir, "--samples")
    assert judged.returncode == 0 and judged.stdout.count("484 samples in ") == epochs, judged
    assert run.sha256 == golden(model, lanes, *length.split()), told


@pytest.mark.parametrize(
    ("model", "seed", "lanes"),
    [pytest.param("lenet", 1001, 4, marks=pytest.mark.chaos), ("normed", 1002, 4), ("transformer", 1003, 8)],
)
def test_a_schedule_changes_nothing(tmp_path: Path, model: str, seed: int, lanes: int) -> None:
    check(tmp_path, model, seed, lanes, epochs=6)


@pytest.mark.chaos
@pytest.mark.parametrize("model", ["lenet", "normed", "transformer"])
@pytest.mark.parametrize("seed", range(24))
def test_many_schedules_change_nothing(tmp_path: Path, model: str, seed: int) -> None:
    check(tmp_path, model, seed, LANES[seed % len(LANES)], epochs=10)
