"""What scripts do to a step's whole gradient, with a gradient scaler: the same on every crew and through kills."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.harness import SCRIPTS, Launch, environment

pytestmark = pytest.mark.process

EDITS = SCRIPTS / "edits.py"
PLACES = [
    "at the top", "in a unit of the first loss", "after the first loss", "in a unit of the second loss",
    "after the second loss", "before the step", "after the step",
]  # fmt: skip


@functools.cache
def plain() -> list[str]:
    """What the script prints under plain `python`."""
    command = [sys.executable, str(EDITS)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.sharing
@pytest.mark.parametrize("options", [["--workers", 1], ["--workers", 2], ["--workers", 3], ["--servers", 1]])
def test_the_same_on_every_crew(tmp_path: Path, options: list[object]) -> None:
    with Launch(tmp_path, EDITS, *options) as run:
        assert run.end() == 0, run.err
    assert run.out.splitlines() == plain()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("workers", "lost"), [(1, 1), pytest.param(2, 1, marks=pytest.mark.chaos)])
def test_workers_are_lost_in_every_place_of_a_turn(tmp_path: Path, place: str, workers: int, lost: int) -> None:
    died = f"--die {place.replace(' ', '_')}:16:{lost}:{tmp_path}"
    with Launch(tmp_path, EDITS, "--workers", workers, "--verify", "off", args=died) as run:
        assert run.end() == 0, run.err
    assert run.out.splitlines() == plain(), run.err
    assert run.summary["workers_lost"] == lost and run.summary["steps"] == 26


# ---------------------------------------------------------------- a gradient that was set aside


def test_one_that_is_not_kept_is_named(tmp_path: Path) -> None:
    died = f"--unkept --die after_the_second_loss:16:1:{tmp_path}"
    with Launch(tmp_path, EDITS, "--workers", 1, "--verify", "off", args=died) as run:
        assert run.end() == 13, run.err
    assert "holdfast: A worker that came late to step 16 needs, for the gradient of 0.weight, the" in run.err
