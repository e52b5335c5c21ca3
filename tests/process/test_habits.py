"""What scripts do around their loops has the same result on every crew and through every kill."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.harness import SCRIPTS, Launch, environment

pytestmark = pytest.mark.process

HABITS = SCRIPTS / "habits.py"


@functools.cache
def plain(*args: str) -> str:
    """What the script prints under plain `python`: when it stopped, what it has drawn, its rate, its weights."""
    command = [sys.executable, str(HABITS), *args]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "stopped after epoch 22 at step 184" in done.stdout and "seed 11" in done.stdout
    return done.stdout


@pytest.mark.sharing
@pytest.mark.parametrize("workers", [1, 2, pytest.param(3, marks=pytest.mark.chaos)])
@pytest.mark.parametrize(
    "args", ["--glance", pytest.param("", marks=pytest.mark.chaos), pytest.param("--range", marks=pytest.mark.chaos)]
)
def test_every_crew_does_what_one_process_does(tmp_path: Path, workers: int, args: str) -> None:
    with Launch(tmp_path, HABITS, "--workers", workers, args=args) as run:
        assert run.end() == 0, run.err
    assert run.out == (plain("--glance") if args == "--glance" else plain())


@pytest.mark.parametrize("epochs", ["", "--range"])
@pytest.mark.parametrize(
    ("place", "step"),
    [
        pytest.param("in a unit", 20, marks=pytest.mark.chaos), ("after the step", 23),
        pytest.param("after the loop", 24, marks=pytest.mark.chaos), ("after the evaluation", 24),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("workers", "lost"),
    [(2, 2), pytest.param(1, 1, marks=pytest.mark.chaos), pytest.param(2, 1, marks=pytest.mark.chaos)],
)
def test_workers_are_lost_around_the_end_of_a_loop(
    tmp_path: Path, epochs: str, place: str, step: int, workers: int, lost: int
) -> None:
    died = f"{epochs} --die {place.replace(' ', '_')}:{step}:{lost}:{tmp_path}"
    with Launch(tmp_path, HABITS, "--workers", workers, args=died) as run:
        assert run.end() == 0, run.err
    assert run.out == plain(), run.err
    assert run.summary["workers_lost"] == lost and "UserWarning" not in run.err + run.out


@pytest.mark.parametrize("epochs", ["", pytest.param("--range", marks=pytest.mark.chaos)])
def test_patience_that_is_kept_outlives_every_worker_in_turn(tmp_path: Path, epochs: str) -> None:
    with Launch(tmp_path, HABITS, "--workers", 3, args=f"--pace 0.008 {epochs}") as run:
        for step in (20, 70, 120):
            run.wait(lambda s, step=step: s.get("step", -1) >= step, f"step {step}")
            run.strike(run.crew_of(3)[0])
        assert run.end() == 0, run.err
    assert run.out == plain(), run.err
    assert run.summary["workers_lost"] == 3


def test_patience_in_plain_variables_is_named_and_never_another_result(tmp_path: Path) -> None:
    with Launch(tmp_path, HABITS, "--workers", 3, args="--pace 0.008 --variables") as run:
        run.wait(lambda s: s.get("step", -1) >= 30, "step 30")
        run.strike(run.crew_of(3)[0])
        run.told("is let go, and the run goes on without it: A worker that came late to step ")
        assert run.end() == 0, run.err
    told = next(line for line in run.story if "is let go" in line)
    assert re.search(r" has (best = inf|waited = 0) where the others' scripts have ", told), told
    assert run.out.splitlines()[1:] == plain().splitlines()[1:], run.err


def test_reports_after_a_loop_fail_in_no_worker_that_comes_late(tmp_path: Path) -> None:
    """A late worker goes past the loops that are over with one turn of each, of which nothing counts."""
    script = SCRIPTS / "reports.py"
    command = [sys.executable, str(script)]
    alone = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    with Launch(tmp_path, script, "--workers", 3) as run:
        for step in (10, 40):
            run.wait(lambda s, step=step: s.get("step", -1) >= step, f"step {step}")
            run.strike(run.crew_of(3)[1])
        run.crew_of(3)
        assert run.end() == 0, run.err
    assert run.out == alone.stdout, run.err
    assert run.summary["workers_lost"] == 2, "none was let go"


@pytest.mark.sharing
def test_bars_and_counts_of_late_workers_are_those_of_the_others(tmp_path: Path) -> None:
    """Of a plain loop and of one by steps, each entered in its middle by the only worker there is."""
    pytest.importorskip("tqdm", reason="the package tqdm is not installed")
    with Launch(tmp_path, SCRIPTS / "bars.py", "--workers", 1, args="--pace 0.02") as run:
        for step in (3, 15, 27, 39):  # of 12 an epoch
            run.wait(lambda s, step=step: (s.get("step") or 0) >= step, f"step {step}")
            run.strike(run.crew_of(1)[0])
        assert run.end() == 0, run.err
    assert run.out.splitlines()[-1] == str([(12, 12)] * 4), run.err
    assert run.summary["workers_lost"] == 4


@pytest.mark.sharing
@pytest.mark.parametrize(
    ("workers", "place", "step", "epochs"),
    [
        (1, "after the loop", 16, ""), (1, "after the step", 18, "--range"), (3, "after the step", 19, "--range"),
        pytest.param(1, "after the loop", 16, "--range", marks=pytest.mark.chaos),
        pytest.param(1, "after the evaluation", 16, "--range", marks=pytest.mark.chaos),
        pytest.param(3, "after the loop", 16, "", marks=pytest.mark.chaos),
        pytest.param(3, "after the evaluation", 16, "--range", marks=pytest.mark.chaos),
    ],
)  # fmt: skip
def test_a_worker_is_lost_around_a_plain_loop(
    tmp_path: Path, workers: int, place: str, step: int, epochs: str
) -> None:
    """Evaluations in the loop and after it, schedulers, draws, reports: a late worker makes the same of them."""
    script = SCRIPTS / "plain_habits.py"
    alone = subprocess.run([sys.executable, str(script)], env=environment(), capture_output=True, text=True, check=True)
    died = f"{epochs} --pace 0.02 --die {place.replace(' ', '_')}:{step}:1:{tmp_path}"
    with Launch(tmp_path, script, "--workers", workers, args=died) as run:
        assert run.end() == 0, run.err
    told, best = run.out.splitlines()
    expected, its_best = alone.stdout.splitlines()
    assert told == expected, run.err
    assert float(best.split()[1]) == pytest.approx(float(its_best.split()[1]), rel=0.1)
    assert run.summary["workers_lost"] == 1
