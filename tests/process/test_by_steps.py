"""The loop by steps keeps the promise: the same weights, whatever the crew and whoever is killed where in a turn."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests.process.harness import SCRIPTS, Launch, golden, printed
from tests.process.schedules import draw, play

pytestmark = pytest.mark.process


@pytest.mark.sharing
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("lenet", ["--workers", 2, "--lanes", 6]), ("normed", ["--workers", 3, "--lanes", 8]),
        ("transformer", ["--workers", 1]), ("transformer", ["--workers", 2, "--servers", 1]),
    ],
)  # fmt: skip
def test_weights_are_those_of_plain_python(tmp_path: Path, model: str, options: list[object]) -> None:
    lanes = int(str(options[-1])) if "--lanes" in options else 4
    with Launch(tmp_path, model, *options) as run:
        assert run.end() == 0, run.err
        run.trace.audit(samples=484, steps_of_epoch=16, epochs=3)
        assert run.trace.tries == len(run.trace.units), "a unit was computed twice without need"
    assert run.sha256 == golden(model, lanes)
    assert run.summary["steps"] == 48 and run.summary["samples"] == 3 * 484


def check(tmp_path: Path, model: str, seed: int, lanes: int, workers: int, epochs: int) -> None:
    length = f"--epochs {epochs}"
    faults = draw(seed, epochs * 16, lanes)
    options = ["--workers", workers, "--lanes", lanes, "--set", "crew.frozen_limit=0.6s"]
    with Launch(tmp_path, model, *options, args=f"{length} --pace 0.003") as run:
        play(run, faults)
        told = f"{faults}\n{run.err}"
        assert run.end() == 0, told
        run.trace.audit(samples=484, steps_of_epoch=16, epochs=epochs)
    assert run.summary["steps"] == epochs * 16, told
    assert run.sha256 == golden(model, lanes, *length.split()), told


@pytest.mark.parametrize(
    ("model", "seed", "lanes", "workers"), [("normed", 2001, 4, 1), ("transformer", 2002, 8, 2), ("lenet", 2003, 4, 3)]
)
def test_a_schedule_changes_nothing(tmp_path: Path, model: str, seed: int, lanes: int, workers: int) -> None:
    check(tmp_path, model, seed, lanes, workers, epochs=6)


@pytest.mark.chaos
@pytest.mark.parametrize("model", ["lenet", "normed", "transformer"])
@pytest.mark.parametrize("seed", range(24))
def test_many_schedules_change_nothing(tmp_path: Path, model: str, seed: int) -> None:
    check(tmp_path, model, seed, (4, 6, 8)[seed % 3], 1 + seed % 3, epochs=10)


# ---------------------------------------------------------------- what scripts do in a turn


TURNS = SCRIPTS / "turns.py"
PLACES = [
    "at the top", "in a unit", "after the units", "in the update", "after the step", "in an evaluation",
    "after the loop",
]  # fmt: skip


plain = functools.partial(printed, TURNS)  # what it has drawn, its settings, its weights


@pytest.mark.sharing
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_script_draws_clips_skips_and_breaks_as_it_does_alone(tmp_path: Path, workers: int) -> None:
    with Launch(tmp_path, TURNS, "--workers", workers, args="--stop 12") as run:
        assert run.end() == 0, run.err
    assert run.out.splitlines() == plain("--stop", "12")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("workers", "lost"),
    [(2, 2), pytest.param(1, 1, marks=pytest.mark.chaos), pytest.param(2, 1, marks=pytest.mark.chaos)],
)
def test_workers_are_lost_in_every_place_of_a_turn(tmp_path: Path, place: str, workers: int, lost: int) -> None:
    step = {"in an evaluation": 8, "after the loop": 8}.get(place, 9)
    died = f"--die {place.replace(' ', '_')}:{step}:{lost}:{tmp_path}"
    with Launch(tmp_path, TURNS, "--workers", workers, args=died) as run:
        assert run.end() == 0, run.err
    assert run.out.splitlines() == plain(), run.err
    assert run.summary["workers_lost"] == lost and run.summary["steps"] == 24


# ---------------------------------------------------------------- plain variables


def at(run: Launch, step: int, *, members: int) -> None:
    """Wait for this step, with so many members."""
    run.wait(lambda s: s.get("step", -1) >= step and [w["state"] for w in s["workers"]] == ["member"] * members, "it")


def test_a_plain_counter_is_named_and_the_run_goes_on_without_the_late_worker(tmp_path: Path) -> None:
    with Launch(tmp_path, SCRIPTS / "not_kept.py", "--workers", 3) as run:
        at(run, 20, members=3)
        run.strike(run.members()[1])
        run.told("is let go, and the run goes on without it: A worker that came late to step ")
        assert run.end() == 0, run.err
    told = next(line for line in run.story if "is let go" in line)
    assert "has turns = 0 where the others' scripts have " in told, told
    assert "Use `kept = run.keep(turns=...)` before the loop, and kept.turns in place of turns" in told
    assert run.out.splitlines() == ["320 turns"] and run.summary["steps"] == 320


def test_with_nobody_else_left_the_run_ends_with_that_sentence(tmp_path: Path) -> None:
    with Launch(tmp_path, SCRIPTS / "not_kept.py", "--workers", 1) as run:
        at(run, 20, members=1)
        run.strike(run.members()[0])
        assert run.end() == 13, run.err
    assert "holdfast: A worker that came late to step " in run.err and "has turns = 0 where" in run.err


def test_kept_values_and_measured_times_are_no_lack(tmp_path: Path) -> None:
    with Launch(tmp_path, SCRIPTS / "not_kept.py", "--workers", 3, args="--kept") as run:
        for step in (20, 80):
            at(run, step, members=3)
            run.strike(run.members()[1])
        assert run.end() == 0, run.err
    assert run.out.splitlines() == ["320 turns"]
