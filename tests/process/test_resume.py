"""A run of which everything was killed goes on from its newest checkpoint, on another crew, with the same bits."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
from pathlib import Path

import pytest

from tests.process.harness import SCRIPTS, Launch, golden, holdfast, until
from tests.process.joined import LOOPBACK, Joined
from tests.process.test_by_steps import TURNS, plain
from tests.process.test_plain_loop import PLAIN, alone, told
from tests.process.trail import AUDITED, each_sample_once

pytestmark = [pytest.mark.process, pytest.mark.sharing]
OFTEN = ("--checkpoint", "1step")


def crash(run: Launch) -> None:
    """Kill everything, as a loss of power does."""
    run.status()
    run.process.kill()
    run.process.wait()
    until(lambda: not run.processes() and not run.holders(), "the end of all processes", 5.0)
    assert "was killed; removed" in holdfast("status", run.dir).stderr


def has_checkpoint_of(run: Launch, step: int) -> None:
    """Wait until one of this step or a later one is there, or the run has ended."""

    def there() -> bool:
        names = [path.name for path in (run.dir / "checkpoints").glob("step-*")]
        return any(int(name.split("-")[1]) >= step for name in names) or run.process.poll() is not None

    until(there, lambda: f"a checkpoint of step {step}\n{run.err}", 60.0)
    assert run.process.poll() is None, run.err


def resumed(tmp_path: Path, script: str | Path, *options: object, args: str = "") -> Launch:
    return Launch(tmp_path, script, "--resume", tmp_path / "run", *options, args=args)


@pytest.mark.parametrize(
    ("model", "lanes", "before", "after"),
    [("normed", 4, (2,), (3,)), ("transformer", 8, (1, "--servers", 1), (2, "--servers", 0))],
)
def test_all_killed_and_resumed_on_another_crew(
    tmp_path: Path, model: str, lanes: int, before: tuple[object, ...], after: tuple[object, ...]
) -> None:
    with Launch(tmp_path, model, "--workers", *before, "--lanes", lanes, *OFTEN, args="--pace 0.01") as run:
        has_checkpoint_of(run, 10)
        crash(run)
    with resumed(tmp_path, model, "--workers", *after, args="--pace 0.01") as run:
        assert run.end() == 0, run.err
    assert run.sha256 == golden(model, lanes), run.err
    assert run.summary["steps"] == 48 and run.summary["samples"] == 3 * 484
    assert run.summary["resumed"]["step"] >= 10
    again = holdfast("run", "--dir", run.dir, SCRIPTS / "train.py", model)
    assert again.returncode == 8 and "ended well" in again.stderr


def test_what_a_script_keeps_goes_along(tmp_path: Path) -> None:
    """An EMA, schedules, counters and random numbers, through two crashes."""
    args = "--epochs 3 --pace 0.004"
    with Launch(tmp_path, TURNS, "--workers", 2, *OFTEN, args=args) as run:
        has_checkpoint_of(run, 7)
        crash(run)
    with resumed(tmp_path, TURNS, "--workers", 1, *OFTEN, args=args) as run:
        has_checkpoint_of(run, 20)
        crash(run)
    with resumed(tmp_path, TURNS, "--workers", 3, args=args) as run:
        assert run.end() == 0, run.err
    expected = plain("--epochs", "3")
    assert [line for line in run.out.splitlines() if line.startswith(("ema", "weights"))] == [
        line for line in expected if line.startswith(("ema", "weights"))
    ], run.err


def test_a_plain_loop_goes_on_with_each_sample_once(tmp_path: Path) -> None:
    with Launch(tmp_path, PLAIN, "--workers", 2, *OFTEN, *AUDITED, args="--pace 0.02") as run:
        has_checkpoint_of(run, 8)
        crash(run)
    with resumed(tmp_path, PLAIN, "--workers", 3, *AUDITED) as run:
        assert run.end() == 0, run.err
    each_sample_once(run, 200, 3)
    here, there = told(run.out), alone()
    assert here["steps"] == there["steps"]
    assert here["weights"] == pytest.approx(there["weights"], rel=1e-4)


def test_from_two_hosts_to_one(tmp_path: Path) -> None:
    options = (*LOOPBACK, "--hosts", 2, "--workers", 1, "--lanes", 4, *OFTEN)
    with Launch(tmp_path, "lenet", *options, args="--pace 0.02") as run, Joined(tmp_path, run):
        has_checkpoint_of(run, 10)
        crash(run)
    with resumed(tmp_path, "lenet", "--workers", 2, "--hosts", 1, args="") as run:
        assert run.end() == 0, run.err
    assert run.sha256 == golden("lenet", 4), run.err


@pytest.mark.parametrize("loop", [pytest.param("", marks=pytest.mark.chaos), "--range", "--plain --range"])
def test_a_run_that_has_ended_goes_on_for_more_epochs(tmp_path: Path, loop: str) -> None:
    """What its script did after the last loop is done again, after the last one of now."""
    with Launch(tmp_path, "normed", "--workers", 2, "--lanes", 4, args=loop) as run:
        assert run.end() == 0, run.err
    with resumed(tmp_path, "normed", "--workers", 1, args=f"--epochs 5 {loop}") as run:
        assert run.end() == 0, run.err
    assert (run.summary["steps"], run.summary["resumed"]["step"]) == (80, 48)
    if "--plain" not in loop:
        assert run.sha256 == golden("normed", 4, "--epochs", "5"), run.err


def test_a_run_that_has_ended_goes_on_with_more_data(tmp_path: Path) -> None:
    with Launch(tmp_path, "lenet", "--workers", 1, "--lanes", 4, *AUDITED) as run:
        assert run.end() == 0, run.err
    with resumed(tmp_path, "lenet", "--workers", 2, args="--epochs 5 --samples 600") as run:
        assert run.end() == 0, run.err
    assert run.summary["samples"] == 3 * 484 + 2 * 600
    assert "the script reads other data than the run did before" in (run.dir / "story.jsonl").read_text()
    other = holdfast("run", "--resume", run.dir, SCRIPTS / "train.py", "wide")
    assert other.returncode == 9 and "the run's checkpoint" in other.stderr, other.stderr


def test_sigterm_leaves_a_checkpoint_of_where_it_was(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", "--workers", 2, "--lanes", 4, args="--pace 0.02") as run:
        run.at_step(12)
        run.send(signal.SIGTERM)
        assert run.end() == 128 + signal.SIGTERM, run.err
    assert [path.name for path in (run.dir / "checkpoints").iterdir() if path.name.startswith("step-")], run.err
    again = holdfast("run", "--dir", run.dir, SCRIPTS / "train.py", "normed")
    assert again.returncode == 8 and f"`holdfast run --resume {run.dir}` goes on with it from step" in again.stderr
    with resumed(tmp_path, "normed", "--workers", 1) as run:
        assert run.end() == 0, run.err
    assert run.sha256 == golden("normed", 4) and run.summary["resumed"]["step"] >= 12


def test_what_cannot_be_resumed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text((SCRIPTS / "train.py").read_text())
    with Launch(tmp_path, script, "--workers", 1, "--lanes", 4, *OFTEN, args="lenet --pace 0.05") as run:
        run._traced = False
        has_checkpoint_of(run, 2)
        busy = holdfast("run", "--resume", run.dir)
        assert busy.returncode == 8 and "is being used by another run" in busy.stderr
        crash(run)
    nothing = holdfast("run", "--resume", tmp_path / "nowhere")
    assert nothing.returncode == 15 and "is no checkpoint: there is nothing" in nothing.stderr
    lanes = holdfast("run", "--resume", run.dir, "--lanes", 8)
    assert lanes.returncode == 2 and "lanes = 8: the run was started with 4" in lanes.stderr
    script.write_text(script.read_text() + "# another line\n")
    changed = holdfast("run", "--resume", run.dir)
    assert changed.returncode == 2 and "is not the script any more" in changed.stderr
    script.write_text(script.read_text().replace("nn.Linear(84, 10)", "nn.Linear(84, 12)"))
    other = holdfast("run", "--resume", run.dir, "--changed-script", "ok", "--workers", 1)
    assert other.returncode == 9, other.stderr
    assert "the run's checkpoint" in other.stderr and "[12, 84]" in other.stderr and "[10, 84]" in other.stderr


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    with Launch(tmp_path, "lenet", "--workers", 1, "--lanes", 4, *OFTEN, args="--pace 0.02") as run:
        has_checkpoint_of(run, 8)
        crash(run)
    newest = max((run.dir / "checkpoints").glob("step-*")) / "state.safetensors"
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    with resumed(tmp_path, "lenet", "--workers", 2) as run:
        assert run.end() == 0, run.err
        assert "is damaged" in run.err
    assert run.sha256 == golden("lenet", 4)


@pytest.mark.chaos
@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("model", ["lenet", "normed", "transformer"])
def test_killed_at_twenty_moments(tmp_path: Path, model: str, hosts: int) -> None:
    """Everything is killed again and again, on crews of all sizes, with servers and without, until it is through."""
    random_ = random.Random(f"resume {model} {hosts}")
    options = ("--lanes", 4, "--checkpoint", "3steps")
    length = "--epochs 6"
    with Launch(tmp_path, model, "--workers", 2, *options, args=f"{length} --pace 0.02") as run:
        has_checkpoint_of(run, 3)
        run.go_on_for(random_.uniform(0.0, 0.5))
        crash(run)
    for _ in range(19):
        several = random_.randint(1, hosts)
        crew = ("--workers", random_.randint(1, 4), "--servers", random_.randint(0, 1), "--hosts", several)
        listening = LOOPBACK if several > 1 else ()
        with resumed(tmp_path, model, *crew, *listening, args=f"{length} --pace 0.02") as run, (
            Joined(tmp_path, run) if listening else contextlib.nullcontext()
        ):
            run.wait(lambda status: status["generation"] > 0, "the first generation")
            run.go_on_for(random_.uniform(0.0, 1.0))
            crash(run)
    with resumed(tmp_path, model, "--workers", 2, "--servers", 0, "--hosts", 1, args=length) as run:
        assert run.end() == 0, run.err
    assert run.sha256 == golden(model, 4, *length.split()), run.err


@pytest.mark.parametrize(
    "seconds", [pytest.param(0.1, marks=pytest.mark.chaos), 1.0, pytest.param(30.0, marks=pytest.mark.chaos)]
)
def test_a_machine_that_is_taken_away(tmp_path: Path, seconds: float) -> None:
    """A notice, and so many seconds later the end: there is a checkpoint that can be gone on from."""
    gone = tmp_path / "gone"
    options = ("--workers", 2, "--lanes", 4, "--checkpoint", "10steps", "--notice", gone)
    with Launch(tmp_path, "normed", *options, args="--pace 0.02") as run:
        has_checkpoint_of(run, 10)
        gone.touch()
        run.said("notice given by")
        with contextlib.suppress(subprocess.TimeoutExpired):
            assert run.process.wait(seconds) == 128 + signal.SIGTERM, run.err
        assert seconds < 30.0 or run.process.poll() is not None, run.err
        run.process.kill()
        run.process.wait()
        until(lambda: not run.processes() and not run.holders(), "the end of all processes", 5.0)
        holdfast("status", run.dir)  # closes the directory of a run that was killed
    gone.unlink()
    with resumed(tmp_path, "normed", "--workers", 1) as run:
        assert run.end() == 0, run.err
    assert run.sha256 == golden("normed", 4), run.err


def test_copies_elsewhere(tmp_path: Path) -> None:
    """Each checkpoint is copied to a URL, from which the run goes on in another directory."""
    url = f"file://{tmp_path}/far away"
    with Launch(
        tmp_path, "lenet", "--workers", 1, "--lanes", 4, *OFTEN, "--checkpoint-to", url, args="--pace 0.02"
    ) as run:
        run.told("a copy of step-")
        crash(run)
    with Launch(tmp_path, "lenet", "--resume", url, "--workers", 2, args="", dir="elsewhere") as run:
        assert run.end() == 0, run.err
    assert run.sha256 == golden("lenet", 4), run.err


@pytest.mark.parametrize("sync", ["bounded:2", "local:2", pytest.param("async", marks=pytest.mark.chaos)])
def test_relaxed_modes_go_on_with_each_push_once(tmp_path: Path, sync: str) -> None:
    options = ("--lanes", 4, "--sync", sync, *OFTEN, *AUDITED)
    with Launch(tmp_path, "normed", "--workers", 2, *options, args="--pace 0.02") as run:
        has_checkpoint_of(run, 6)
        crash(run)
    with resumed(tmp_path, "normed", "--workers", 3) as run:
        assert run.end() == 0, run.err
    each_sample_once(run, 484, 3)
    assert run.summary["steps"] == 48 and run.summary["resumed"]["step"] >= 6


def test_a_disk_that_is_full_for_a_while(tmp_path: Path) -> None:
    """It is said, training goes on, and checkpoints are written again when there is room."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", disk], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        filling = disk / "filling"
        filling.write_bytes(bytes(22 << 20))
        options = ("--workers", 1, "--lanes", 4, *OFTEN, "--keep", 1)
        with Launch(tmp_path, "lenet", *options, args="--pace 0.02 --epochs 4", dir="disk/run") as run:
            run.said("No checkpoint could be written")
            filling.unlink()
            run.said("checkpoints are written again")
            assert run.end() == 0, run.err
        assert run.sha256 == golden("lenet", 4, "--epochs", "4")
    finally:
        subprocess.run(["umount", disk], check=True)
