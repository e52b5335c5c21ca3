"""Several trainings in one script: each ends as it does under plain python, whatever the crew and whoever is killed."""

from __future__ import annotations

import functools
import json
import re
import signal
from pathlib import Path

import pytest

from holdfast.observe.audit import audit, read
from tests.process.harness import SCRIPTS, Launch, holdfast, printed
from tests.process.test_resume import OFTEN, crash, resumed
from tests.process.trail import AUDITED

pytestmark = [pytest.mark.process, pytest.mark.sharing]
FOLDS = SCRIPTS / "folds.py"
EACH = ("steps", "samples", "weights_sha256", "loss", "lanes", "seed")


plain = functools.partial(printed, FOLDS)  # of each fold its weights, what it keeps, and what it has drawn


def weights(lines: list[str]) -> list[str]:
    return [line.split(", ")[1] for line in lines if line.startswith("fold ")]


def begun(run: Launch, training: int, step: int = 0) -> None:
    """Wait until so many steps of this training are made."""
    run.wait(lambda s: s.get("training") == training and s["step"] >= step and s["generation"], f"training {training}")


@pytest.mark.parametrize(
    "options",
    [
        ["--workers", 1], ["--workers", 2], pytest.param(["--workers", 3], marks=pytest.mark.chaos),
        ["--workers", 2, "--servers", 1, "--checkpoint", "off"],
    ],
)  # fmt: skip
def test_each_fold_ends_as_under_plain_python(tmp_path: Path, options: list[object]) -> None:
    with Launch(tmp_path, FOLDS, *options) as run:
        assert run.end() == 0, run.err
    assert run.out.splitlines() == plain(), run.err
    summary = run.summary
    assert [one["weights_sha256"] for one in summary["trainings"]] == weights(run.out.splitlines())
    assert [(one["steps"], one["samples"], one["lanes"], one["seed"]) for one in summary["trainings"]] == [
        (8, 128, 4, 0), (8, 128, 6, 1), (8, 128, 4, 2),
    ]  # fmt: skip
    assert {name: summary[name] for name in EACH} == {name: summary["trainings"][-1][name] for name in EACH}
    assert "\ndone: 3 trainings, 8 steps in the last one, all in " in run.err and "training 3 of the script" in run.err


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "place", ["in_a_unit:2", "after_the_step:15", "after_the_loop:0", "after_the_close:1", "in_a_unit:8"]
)
def test_workers_are_lost_in_each_fold(tmp_path: Path, place: str, workers: int) -> None:
    """All of them. In the last place, where they go through the first fold without its 8 steps."""
    with Launch(tmp_path, FOLDS, "--workers", workers, args=f"--die {place}:{workers}:{tmp_path}") as run:
        assert run.end() == 0, run.err
    assert [*dict.fromkeys(run.out.splitlines())] == plain(), run.err  # a line that was said before the end, twice
    assert run.summary["workers_lost"] == workers


def test_a_plain_loop_over_a_range_of_epochs(tmp_path: Path) -> None:
    with Launch(tmp_path, FOLDS, "--workers", 2, *AUDITED, args="--plain --range --pace 0.1") as run:
        for training in (1, 2, 3):
            begun(run, training, 3)
            run.strike(run.members()[0])
        assert run.end() == 0, run.err
    here, there = ([float(line.split(", ")[3]) for line in lines if line.startswith("fold ")]
                   for lines in (run.out.splitlines(), plain("--plain", "--range")))  # fmt: skip
    assert here == [pytest.approx(one, rel=0.05) for one in there], run.err
    for training, folder in enumerate(("audit", "audit/training-2", "audit/training-3")):
        passes = audit(read(run.dir / folder), 8)
        assert [(one.samples, one.repeated, one.contradictions) for one in passes] == [(64, (), ())] * 2
        assert run.summary["trainings"][training]["samples"] == 2 * 64


@pytest.mark.parametrize(("training", "often"), [(1, OFTEN), (2, OFTEN), (3, ("--checkpoint", "off"))])
def test_all_killed_and_resumed_in_each_fold(tmp_path: Path, training: int, often: tuple[str, ...]) -> None:
    args = "--pace 0.03"
    with Launch(tmp_path, FOLDS, "--workers", 2, *often, args=args) as run:
        begun(run, training, 3)
        crash(run)
    with resumed(tmp_path, FOLDS, "--workers", 1, args=args) as run:
        assert run.end() == 0, run.err
    assert [one["weights_sha256"] for one in run.summary["trainings"]] == weights(plain()), run.err
    assert run.out.splitlines()[-1] == plain()[-1]
    assert (run.summary["resumed"]["step"] > 0) is (often == OFTEN)


def test_a_signal_ends_the_run_in_its_fold(tmp_path: Path) -> None:
    with Launch(tmp_path, FOLDS, "--workers", 2, args="--pace 0.03") as run:
        begun(run, 2, 3)
        run.send(signal.SIGINT)
        assert run.end() == 128 + signal.SIGINT, run.err
    assert run.summary["outcome"] == "stopped" and len(run.summary["trainings"]) == 2
    status = json.loads(holdfast("status", "--json", run.dir).stdout)
    assert status["trainings"][0]["weights_sha256"] == weights(plain())[0]
    with resumed(tmp_path, FOLDS, "--workers", 2) as run:
        assert run.end() == 0, run.err
    assert [one["weights_sha256"] for one in run.summary["trainings"]] == weights(plain()), run.err
    open_to_others = holdfast("run", "--resume", run.dir, "--listen", "127.0.0.1")
    assert open_to_others.returncode == 2 and (
        "holdfast: --listen: the run goes on in training 3 of its script, and what those before it have ended with is "
        "on this machine only. Leave it out."
    ) in open_to_others.stderr


@pytest.mark.parametrize("sync", ["async", "local:2", pytest.param("bounded:1", marks=pytest.mark.chaos)])
def test_folds_in_relaxed_modes(tmp_path: Path, sync: str) -> None:
    with Launch(tmp_path, FOLDS, "--workers", 2, "--sync", sync, args="--plain --pace 0.05") as run:
        begun(run, 2, 3)
        run.strike(run.members()[0])
        assert run.end() == 0, run.err
    assert [one["steps"] for one in run.summary["trainings"]] == [8, 8, 8], run.err
    assert [one["weights_sha256"] for one in run.summary["trainings"]] == weights(run.out.splitlines())


def test_what_was_asked_for_counts_in_later_trainings_too(tmp_path: Path) -> None:
    """A mode that nobody came to in the training at hand, and another number of workers."""
    with Launch(tmp_path, FOLDS, "--workers", 1, args="--plain --folds 2 --epochs 1 --pace 0.3") as run:
        run.wait(lambda s: s["step"] >= 2 if s["generation"] else False, "the last step but one")
        run.scale(2)
        run.wait(lambda s: s.get("training") == 2 and len(s["workers"]) == 2, "two workers")
        assert run.end() == 0, run.err
    assert [one["weights_sha256"] for one in run.summary["trainings"]] == weights(run.out.splitlines())


@pytest.mark.parametrize(
    ("workers", "lack", "sentence"),
    [
        (1, "turns",
         r"A worker that has not been in training 1 has turns = \d when training 2 begins, where the scripts of those "
         r"that made it have 8: it goes through a training that is over without its steps, so what a script changes in "
         r"its loops, and reads later, has to be kept for it. Use `kept = run.keep\(turns=...\)` before the loop, and "
         r"kept.turns in place of turns."),
        (2, "best", r"A worker that has not been in training 1 has (best|turns) = .* Use `kept = run.keep\("),
        (2, "epochs", r"A worker that has not been in training 1 has (best|turns) = .* Use `kept = run.keep\("),
    ],
)  # fmt: skip
def test_what_a_later_fold_needs_of_a_loop_is_named(tmp_path: Path, workers: int, lack: str, sentence: str) -> None:
    with Launch(tmp_path, FOLDS, "--workers", workers, args=f"--lack {lack}") as run:
        assert run.end() == 13, run.err
    assert re.search(rf"^holdfast: {sentence}", run.err, re.MULTILINE), run.err
    assert [one["weights_sha256"] for one in run.summary["trainings"]] != []
