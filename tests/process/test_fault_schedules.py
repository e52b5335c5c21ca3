"""Schedules of kills, stops, joins, leaves and slowness: the same weights, every sample once in an epoch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.harness import Launch, golden, holdfast
from tests.process.schedules import Slow, draw, play

pytestmark = pytest.mark.process

EPOCHS = 10
LENGTH = f"--epochs {EPOCHS}"
STEPS = EPOCHS * 16
LANES = (4, 6, 8)


def check(tmp_path: Path, model: str, seed: int, lanes: int) -> None:
    faults = draw(seed, STEPS, lanes)
    slow = " ".join(fault.option for fault in faults if isinstance(fault, Slow))
    options = ["--workers", 2 + seed % 2, "--lanes", lanes, "--set", "crew.frozen_limit=0.6s", "--set", "audit=true"]
    with Launch(tmp_path, model, *options, args=f"{LENGTH} --pace 0.003 {slow}") as run:
        play(run, faults)
        told = f"{faults}\n{run.err}"
        assert run.end() == 0, told
        run.trace.audit(samples=484, steps_of_epoch=16, epochs=EPOCHS)
    assert run.summary["steps"] == STEPS and run.summary["outcome"] == "ok"
    judged = holdfast("explain", run.dir, "--samples")
    assert judged.returncode == 0 and judged.stdout.count("484 samples in ") == EPOCHS, judged
    assert run.sha256 == golden(model, lanes, *LENGTH.split()), told


@pytest.mark.parametrize(("model", "seed", "lanes"), [
    ("lenet", 1001, 4), ("normed", 1002, 6), ("transformer", 1003, 8), ("normed", 1004, 6),
])  # fmt: skip
def test_a_schedule_changes_nothing(tmp_path: Path, model: str, seed: int, lanes: int) -> None:
    check(tmp_path, model, seed, lanes)


@pytest.mark.chaos
@pytest.mark.parametrize("model", ["lenet", "normed", "transformer"])
@pytest.mark.parametrize("seed", range(24))
def test_many_schedules_change_nothing(tmp_path: Path, model: str, seed: int) -> None:
    check(tmp_path, model, seed, LANES[seed % len(LANES)])
