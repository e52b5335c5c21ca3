"""A run that begins with another one's weights, and weights that a script saves and loads by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from holdfast.train.weights.final_weights import save_weights
from tests.process.harness import SCRIPTS, Launch, environment, golden, holdfast
from tests.process.joined import LOOPBACK, Joined
from tests.process.test_resume import OFTEN, crash, has_checkpoint_of

pytestmark = [pytest.mark.process, pytest.mark.sharing]
WARM = SCRIPTS / "warm.py"


def told(out: str, word: str = "evaluated") -> list[str]:
    """What a script printed after this word."""
    return [line for line in out.splitlines() if line.startswith(word)]


def plain(cwd: Path, *args: object) -> str:
    """What it prints under plain python, with its log after it."""
    done = subprocess.run(
        [sys.executable, WARM, *map(str, args)], env=environment(), capture_output=True, text=True, check=False,
        cwd=cwd, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_run_begins_with_what_another_ended_with(tmp_path: Path) -> None:
    """Of a run that has ended, on one worker, on two, and under plain python."""
    with Launch(tmp_path, WARM, "--workers", 2, dir="old") as run:
        run._traced = False
        assert run.end() == 0, run.err
    last = told(run.out)[-1]
    ends = []
    for workers in (1, 2):
        options = ("--workers", workers, "--init-from", "old")
        with Launch(tmp_path, WARM, *options, args="--epochs 1", dir=f"new{workers}") as run:
            run._traced = False
            assert run.end() == 0, run.err
        assert told(run.out)[0] == last
        ended = tmp_path / "old" / "model.safetensors"
        said = f"holdfast: weights: 10 of the 10 tensors of the models are those of {ended}"
        assert told(run.out, "holdfast: weights") == [said]
        logs = sorted((run.dir / "logs").glob("worker-*.log"))
        assert len(logs) == workers and all(said in log.read_text() for log in logs)
        ends.append((run.sha256, told(run.out)))
    assert ends[0] == ends[1]
    alone = plain(tmp_path, "--epochs", 1, "--load", "old")
    assert told(alone) == ends[0][1]
    assert told(alone, "loaded") == ["loaded ((), (), ())"]


@pytest.mark.chaos
def test_from_a_checkpoint_and_through_a_crash(tmp_path: Path) -> None:
    """A checkpoint of a run that did not end; and that run's own checkpoints lead to the bits it would have had."""
    with Launch(tmp_path, "lenet", "--workers", 2, "--lanes", 4, *OFTEN, args="--pace 0.02", dir="old") as run:
        has_checkpoint_of(run, 10)
        crash(run)
    options = ("--workers", 1, "--lanes", 4, "--init-from", "old")
    with Launch(tmp_path, "lenet", *options, dir="whole") as whole:
        assert whole.end() == 0, whole.err
    assert "checkpoints/step-" in whole.out and whole.sha256 != golden("lenet", 4)
    with Launch(tmp_path, "lenet", *options, *OFTEN, args="--pace 0.02") as run:
        has_checkpoint_of(run, 10)
        crash(run)
    (tmp_path / "old").rename(tmp_path / "gone")
    with Launch(tmp_path, "lenet", "--resume", run.dir, "--workers", 2) as run:
        assert run.end() == 0, run.err
        assert "which cannot be used any more" in run.err
    assert run.sha256 == whole.sha256


def test_saved_at_its_best_though_the_lead_is_killed_while_it_saves(tmp_path: Path) -> None:
    expected = told(plain(tmp_path, "--save", "plain.safetensors"))
    options = ("--workers", 2, "--checkpoint", "off")
    with Launch(tmp_path, WARM, *options, args="--save best.safetensors --kill 0:2") as run:
        run._traced = False
        assert run.end() == 0, run.err
    assert run.summary["workers_lost"] == 1, run.err
    assert (tmp_path / "best.safetensors").read_bytes() == (tmp_path / "plain.safetensors").read_bytes()
    assert not list(tmp_path.glob(".best*"))
    assert told(run.out)[-1] == expected[-1]
    again = told(plain(tmp_path, "--epochs", 0, "--load", "best.safetensors"))
    assert again == expected[-1:]


def test_saved_by_a_crew_on_two_hosts(tmp_path: Path) -> None:
    expected = told(plain(tmp_path, "--save", "plain.safetensors"))
    options = (*LOOPBACK, "--hosts", 2, "--workers", 1)
    with Launch(tmp_path, WARM, *options, args="--save best.safetensors") as run, Joined(tmp_path, run):
        run._traced = False
        assert run.end() == 0, run.err
    assert told(run.out) == expected
    assert (tmp_path / "best.safetensors").read_bytes() == (tmp_path / "plain.safetensors").read_bytes()


def test_what_does_not_fit_is_said_once(tmp_path: Path) -> None:
    plain(tmp_path, "--epochs", 1, "--save", "ten.safetensors")
    options = ("--workers", 2, "--init-from", "ten.safetensors")
    with Launch(tmp_path, WARM, *options, args="--epochs 0 --classes 12") as run:
        run._traced = False
        assert run.end() == 0, run.err
    assert told(run.out, "holdfast: weights")[1:] == [
        f"holdfast: weights: 11.{name} is float32 {here} here and float32 {there} in the file; it stays as the script "
        "has made it"
        for name, here, there in (("weight", [12, 84], [10, 84]), ("bias", [12], [10]))
    ]


def test_mistakes(tmp_path: Path) -> None:
    nothing = holdfast("run", "--init-from", tmp_path / "nowhere", WARM)
    assert nothing.returncode == 15 and "nowhere: there is nothing. Give a run's directory" in nothing.stderr
    torch.save({"weight": torch.ones(2)}, tmp_path / "model.pt")
    pickle = holdfast("run", "--init-from", tmp_path / "model.pt", WARM)
    assert pickle.returncode == 15 and "it is a pickle" in pickle.stderr and "Convert it once" in pickle.stderr
    folder = holdfast("run", "--init-from", tmp_path, WARM)
    assert folder.returncode == 15 and "is no checkpoint: it has no manifest.json" in folder.stderr
    other = tmp_path / "other.safetensors"
    save_weights(other, [torch.nn.BatchNorm1d(3)])
    with Launch(tmp_path, WARM, "--workers", 2, "--init-from", other) as run:
        run._traced = False
        assert run.end() == 15, run.err
    assert f"{other} has nothing in common with the models of this script: here they are called 0.weight" in run.err
    assert not (tmp_path / "runs").exists()
    with Launch(tmp_path, "lenet", "--workers", 1, *OFTEN, args="--pace 0.02", dir="old") as run:
        has_checkpoint_of(run, 2)
        crash(run)
    both = holdfast("run", "--resume", run.dir, "--init-from", other)
    assert both.returncode == 2
    why = f"init_from = {other}: {run.dir} is resumed, with the weights that it had (set by --init-from)."
    assert why in both.stderr
