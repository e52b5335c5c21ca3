"""The plain loop: one turn is one step, on every crew; the samples of a lost worker join the next step."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.observe.audit import audit, read
from tests.process.harness import SCRIPTS, Launch, environment
from tests.process.schedules import draw, play

pytestmark = pytest.mark.process
PLAIN = SCRIPTS / "plain.py"


def told(out: str) -> dict[str, Any]:
    """What the lead said of its loop at the end."""
    found = re.search(r"^turns (.*)$", out, re.MULTILINE)
    assert found, out
    facts: dict[str, Any] = json.loads(found[1])
    return facts


def alone(*args: str) -> dict[str, Any]:
    """The same of plain `python`."""
    command = [sys.executable, str(PLAIN), *args]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return told(done.stdout)


@pytest.mark.sharing
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("args", ["", "--accumulate 3", "--along"])
def test_a_turn_is_a_step_on_every_crew(tmp_path: Path, workers: int, args: str) -> None:
    with Launch(tmp_path, PLAIN, "--workers", workers, args=args) as run:
        assert run.end() == 0, run.err
    here, there = told(run.out), alone(*args.split())
    assert {name: here[name] for name in ("turns", "steps", "rates")} == {
        name: there[name] for name in ("turns", "steps", "rates")
    }
    assert here["ema"] == pytest.approx(there["ema"], rel=1e-4), "an average of all steps"
    assert here["weights"] == pytest.approx(there["weights"], rel=1e-4)
    assert run.summary["units"] == "worker"
    assert run.summary["samples"] == 3 * 200


@pytest.mark.parametrize("seed", range(3))
def test_no_sample_is_lost_or_used_twice_whoever_is_killed(tmp_path: Path, seed: int) -> None:
    check(tmp_path, seed)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(3, 23))
def test_many_schedules(tmp_path: Path, seed: int) -> None:
    check(tmp_path, seed)


def check(tmp_path: Path, seed: int) -> None:
    lanes, workers, epochs = (4, 6, 8)[seed % 3], 1 + seed % 3, 14
    options = ["--workers", workers, "--lanes", lanes, "--set", "crew.frozen_limit=0.6s", "--set", "audit=true"]
    with Launch(tmp_path, PLAIN, *options, args=f"--epochs {epochs} --pace 0.004") as run:
        # Status tells of a step a moment later: the run is not to end before the last fault.
        faults = draw(seed, 7 * 9, lanes)
        play(run, faults)
        assert run.end() == 0, f"{faults}\n{run.err}"
    here, what = told(run.out), f"{faults}\n{run.err}"
    assert here["steps"] == here["turns"] == epochs * 9, what
    assert run.summary["samples"] + run.summary["samples_left_out"] == epochs * 200, what
    passes = audit(read(run.dir / "audit"), epochs * 9)
    for found in passes:
        assert found.exact, f"{found.told()}\n{what}"
    assert sum(found.samples for found in passes) + run.summary["samples_left_out"] == epochs * 200, what
