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


#: What the script is asked for -> (turns, steps, samples) of an epoch.
EPOCHS = {"": (9, 9, 200), "--along": (9, 9, 200), "--accumulate 3": (9, 3, 200), "--count": (7, 7, 168)}


@pytest.mark.sharing
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("args", ["", "--accumulate 3", "--along"])
def test_a_turn_is_a_step_on_every_crew(tmp_path: Path, workers: int, args: str) -> None:
    with Launch(tmp_path, PLAIN, "--workers", workers, "--set", "audit=true", args=args) as run:
        assert run.end() == 0, run.err
    here, there = told(run.out), alone(*args.split())
    assert {name: here[name] for name in ("turns", "steps", "rates")} == {
        name: there[name] for name in ("turns", "steps", "rates")
    }
    assert here["ema"] == pytest.approx(there["ema"], rel=1e-4), "an average of all steps"
    assert here["weights"] == pytest.approx(there["weights"], rel=1e-4)
    assert run.summary["units"] == "worker"
    check_counts(run, args, 3)
    assert run.summary["samples_left_out"] == 0


@pytest.mark.parametrize(
    ("seed", "args"), [(0, ""), (2, ""), (1, "--along"), (2, "--accumulate 3"), (4, "--count")]
)
def test_no_sample_is_lost_or_used_twice_whoever_is_killed(tmp_path: Path, seed: int, args: str) -> None:
    check(tmp_path, seed, args)


@pytest.mark.chaos
@pytest.mark.parametrize("args", EPOCHS)
@pytest.mark.parametrize("seed", range(3, 13))
def test_many_schedules(tmp_path: Path, seed: int, args: str) -> None:
    check(tmp_path, seed, args)


def check(tmp_path: Path, seed: int, args: str) -> None:
    lanes, workers, epochs = (4, 6, 8)[seed % 3], 1 + seed % 3, 14
    options = ["--workers", workers, "--lanes", lanes, "--set", "crew.frozen_limit=0.6s", "--set", "audit=true"]
    with Launch(tmp_path, PLAIN, *options, args=f"--epochs {epochs} --pace 0.004 {args}") as run:
        # Status tells of a step a moment later: the run is not to end before the last fault.
        faults = draw(seed, 7 * EPOCHS[args][1], lanes)
        play(run, faults)
        assert run.end() == 0, f"{faults}\n{run.err}"
    assert told(run.out)["rates"] == alone("--epochs", str(epochs), *args.split())["rates"], f"{faults}\n{run.err}"
    check_counts(run, args, epochs, str(faults))


def check_counts(run: Launch, args: str, epochs: int, what: str = "") -> None:
    """Turns and steps are as many as alone, and each sample was used in one committed step, or is told of."""
    here, what = told(run.out), f"{what}\n{run.err}"
    turns, steps, samples = (epochs * number for number in EPOCHS[args])
    assert (here["turns"], here["steps"], run.summary["steps"]) == (turns, steps, steps), what
    left_out = run.summary["samples_left_out"]
    assert run.summary["samples"] + left_out == samples, what
    passes = audit(read(run.dir / "audit"), steps)
    for found in passes:
        assert found.exact, f"{found.told()}\n{what}"
    assert len(passes) == epochs and sum(found.samples for found in passes) + left_out == samples, what
