"""Bad input, from outside: one clear error, culprit first, under 15 lines, the exit code of its class."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import listed
from tests.process.harness import SCRIPTS, Launch, environment, golden, holdfast
from tests.process.joined import LOOPBACK, Joined

pytestmark = [pytest.mark.process, pytest.mark.sharing]

BAD = SCRIPTS / "misbehave.py"


def error(text: str) -> str:
    """The one error in what a command said, all of it."""
    lines = text.splitlines()
    first = [number for number, line in enumerate(lines) if line.startswith("holdfast: ")]
    assert len(first) == 1, f"{len(first)} errors:\n{text}"
    told = lines[first[0] :]
    assert len(told) < 15, f"{len(told)} lines:\n{text}"
    assert "Traceback" not in text and "holdfast itself failed" not in text, text
    return "\n".join(told)


def refused(*words: object, code: int) -> str:
    """A command line that ends before anything is started."""
    done = holdfast(*words)
    assert done.returncode == code, done
    assert done.stdout == ""
    told = error(done.stderr)
    assert told.count("\n") == 0, told
    return told


def failed(tmp_path: Path, what: str, *options: object, code: int, args: str = "") -> str:
    """A run of `misbehave.py` that fails; what it says."""
    with Launch(tmp_path, BAD, *options, args=f"{what} {args}") as run:
        assert run.end() == code, run.err
    told = error(run.err)
    assert run.summary["outcome"] == "failed" and run.summary["exit_code"] == code
    assert run.summary["error"].partition(": ")[2].splitlines()[0] in told
    return told


# ---------------------------------------------------------------- before anything is started


def test_an_unknown_option() -> None:
    told = refused("run", "--wrokers", 2, BAD, code=2)
    assert "--wrokers" in told and "Did you mean --workers?" in told


def test_an_unknown_setting(tmp_path: Path) -> None:
    told = refused("run", "--set", "crew.setle=1s", "--dir", tmp_path / "run", BAD, code=2)
    assert "crew.setle" in told and "crew.settle" in told
    assert not (tmp_path / "run").exists()


def test_more_workers_than_lanes(tmp_path: Path) -> None:
    told = refused("run", "--workers", 5, "--lanes", 4, "--dir", tmp_path / "run", BAD, code=2)
    assert "workers = 5: more than lanes = 4" in told and "--workers 4" in told


def test_servers(tmp_path: Path) -> None:
    told = refused("run", "--servers", 99, "--dir", tmp_path / "run", BAD, code=2)
    assert "servers = 99: must be 0 to 16" in told
    assert not (tmp_path / "run").exists()


def test_no_such_script(tmp_path: Path) -> None:
    told = refused("run", "--dir", tmp_path / "run", tmp_path / "trian.py", code=2)
    assert "trian.py: there is no such script" in told
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------- refused by the script's own settings


def test_more_workers_than_lanes_of_the_script(tmp_path: Path) -> None:
    told = failed(tmp_path, "", "--workers", 5, code=2)
    assert "workers = 5: more than lanes = 4" in told


@pytest.mark.chaos
def test_a_batch_smaller_than_lanes(tmp_path: Path) -> None:
    told = failed(tmp_path, "small-batch", "--workers", 2, code=2)
    assert "batch_size = 3: smaller than lanes = 4" in told


@pytest.mark.chaos
def test_an_optimizer_that_cannot_be_cut(tmp_path: Path) -> None:
    told = failed(tmp_path, "lbfgs", "--workers", 8, "--lanes", 8, code=2)
    assert "cannot be kept exact" in told and "LBFGS" in told


def test_data_that_changes_its_length(tmp_path: Path) -> None:
    told = failed(tmp_path, "shrinking-data", "--workers", 2, code=2)
    assert "had 192 samples when it was prepared and has 191 now" in told


# ---------------------------------------------------------------- scripts that fail


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.chaos), 8])
def test_a_script_that_raises_at_once(tmp_path: Path, workers: int) -> None:
    told = failed(tmp_path, "raise-at-import", "--workers", workers, "--lanes", 8, code=1)
    assert "RuntimeError: no such thing as luck at misbehave.py:" in told
    assert ("workers" in told and "the same" in told) == (workers > 1)


def test_a_script_that_raises_in_its_first_unit(tmp_path: Path) -> None:
    told = failed(tmp_path, "raise-in-first-unit", "--workers", 8, "--lanes", 8, code=1)
    assert "KeyError: 'a column is missing' at misbehave.py:" in told and "in unit (step 0, lane " in told
    assert "the same" in told


def test_a_unit_that_raises_wherever_it_is_tried(tmp_path: Path) -> None:
    told = failed(tmp_path, "raise-in-one-unit", "--workers", 2, code=3)
    assert "KeyError: 'a column is missing'" in told
    assert "37" in told.partition("Its samples are ")[2].partition(".")[0].split(", "), told


def test_a_unit_that_raises_once_is_tried_again(tmp_path: Path) -> None:
    with Launch(tmp_path, BAD, "--workers", 2, args=f"raise-once {tmp_path / 'once'}") as run:
        assert run.end() == 0, run.err
    assert run.summary["workers_lost"] == 1 and "the network was away for a moment" in run.err


def test_a_unit_that_kills_every_worker(tmp_path: Path) -> None:
    told = failed(tmp_path, "die-in-one-unit", "--workers", 2, code=3)
    assert f"signal {int(signal.SIGABRT)}" in told
    assert "37" in told.partition("Its samples are ")[2].partition(".")[0].split(", "), told


@pytest.mark.chaos
def test_a_sample_that_cannot_be_read(tmp_path: Path) -> None:
    told = failed(tmp_path, "bad-sample", "--workers", 2, code=3)
    assert "ValueError: sample 37 cannot be read" in told
    assert "37" in told.partition("Its samples are ")[2].partition(".")[0].split(", "), told


def test_a_unit_that_hangs(tmp_path: Path) -> None:
    limits = ["--set", "crew.hang_limit=1s", "--set", "crew.hang_factor=2"]
    told = failed(tmp_path, "hang-in-one-unit", "--workers", 2, *limits, code=5)
    assert "made no progress for" in told and "misbehave.py:" in told
    line = told.partition("misbehave.py:")[2].split()[0]
    assert "time.sleep(3600)" in BAD.read_text().splitlines()[int(line.rstrip(".,")) - 1]
    assert all("misbehave.py" in path.read_text() for path in (tmp_path / "run").glob("hang-*.txt"))


def test_sys_exit_in_the_middle(tmp_path: Path) -> None:
    told = failed(tmp_path, "exit-in-a-unit", "--workers", 1, code=3)
    assert "sys.exit(0) in the middle of step 5" in told


def test_nan(tmp_path: Path) -> None:
    told = failed(tmp_path, "nan", "--workers", 2, code=4)
    text = r"^holdfast: Step \d+, lane \d: the loss is nan. It was not applied. Its samples are (.+?)\. Look at them"
    found = re.search(text, told)
    assert found and "37" in found[1].split(", "), told
    assert re.search(r"It was so on workers \d and \d\.$", told.splitlines()[0]), "it was computed twice"


@pytest.mark.parametrize("unit", [(5, 1), pytest.param((0, 2), marks=pytest.mark.chaos)])
def test_a_gradient_that_is_not_finite_once(tmp_path: Path, unit: tuple[int, int]) -> None:
    step, lane = unit
    with Launch(tmp_path, "normed", "--workers", 2, args=f"--poison {step}:{lane}:{tmp_path}/once") as run:
        assert run.end() == 0, run.err
    assert run.summary["workers_lost"] == 1 and run.sha256 == golden("normed", 4)
    assert f"Step {step}, lane {lane}: the gradient of 0.weight is not finite" in run.err


@pytest.mark.parametrize(
    "sync", ["quorum:3", *(pytest.param(sync, marks=pytest.mark.chaos)
                           for sync in ("exact", "exact alone", "bounded:2", "async", "local:3"))]
)  # fmt: skip
def test_a_gradient_that_is_never_finite(tmp_path: Path, sync: str) -> None:
    mode, _, alone = sync.partition(" ")
    with Launch(tmp_path, "normed", "--workers", 1 if alone else 2, "--sync", mode, args="--poison 5:0:") as run:
        assert run.end() == 4, run.err
    samples = listed([numbers for step, lane, numbers in run.trace.read().made if (step, lane) == (5, 0)][-1])
    assert re.search(
        r"^holdfast: Step 5, lane 0: the gradient of 0.weight is not finite, with a loss of \d.\d+. It was not "
        rf"applied. Its samples are {re.escape(samples)}. Look at them, lower the learning rate or clip; "
        r"hf.join\(finite=False\) lets such numbers pass. It was so on workers \d and \d\.$",
        error(run.err), re.MULTILINE,
    ), run.err  # fmt: skip


def test_a_script_that_never_joins(tmp_path: Path) -> None:
    assert "without hf.join()" in failed(tmp_path, "never-join", "--workers", 2, code=2)


NEVER_PREPARED = (
    "The script came to its end after hf.join() without run.prepare(...), so nothing was shared: each worker ran "
    "all of it by itself. Hand over what is trained: model, optimizer, loader = run.prepare(model, optimizer, loader)."
)


def test_a_script_that_never_prepares(tmp_path: Path) -> None:
    assert NEVER_PREPARED in failed(tmp_path, "never-prepare", "--workers", 2, code=2)
    alone = subprocess.run(
        [sys.executable, str(BAD), "never-prepare"], env=environment(), capture_output=True, text=True, check=False
    )
    assert (alone.returncode, alone.stderr) == (2, f"holdfast: {NEVER_PREPARED}\n")
    assert alone.stdout == "done without preparing\n"


AGAIN = (
    "hf.join() was called again after run.close(), and here a run can be one training only: {why}. Start one run for "
    "each, with its number as an argument of the script (`holdfast run --dir runs/fold-0 train.py 0`), or use plain "
    "python, where a script may join as often as it closes."
)


@pytest.mark.parametrize(
    ("how", "options", "why"),
    [
        ("listen", ("--listen", "127.0.0.1"),
         "other machines take part in it, or may, and what a training ends with is on this one"),
        ("store", (), "the script uses run.store, and what a store holds does not outlive its training"),
        ("left", (), "a training was left by an exception, so nobody knows what it ended with"),
    ],
)  # fmt: skip
def test_a_script_that_joins_again_where_it_cannot(
    tmp_path: Path, how: str, options: tuple[str, ...], why: str
) -> None:
    told = failed(tmp_path, "join-again", "--workers", 1, *options, code=2, args=how)
    assert AGAIN.format(why=why) in told


def test_a_script_that_joins_again_in_one_worker_only(tmp_path: Path) -> None:
    assert re.search(
        r"holdfast: Worker \d calls hf.join\(\) again, for another training, where worker \d has ended the script. "
        r"Every worker must make the same trainings: let their number follow from the script and its arguments, or "
        r"from run.evaluate and what run.keep holds.",
        failed(tmp_path, "join-again", "--workers", 2, code=9, args="apart"),
    )


def test_a_mode_that_was_changed_in_a_training_before(tmp_path: Path) -> None:
    with Launch(tmp_path, SCRIPTS / "folds.py", "--workers", 1, args="--plain --pace 0.4") as run:
        run.wait(lambda s: s.get("step", -1) >= 1, "a step")
        assert holdfast("set", run.dir, "sync=async").returncode == 0
        assert run.end() == 2, run.err
    assert (
        "The script calls hf.join() again, for another training, and training 1 was begun with sync = exact and ended "
        "with async: nobody could go through it again. Keep one mode in a run of several trainings, or start "
        "one run for each."
    ) in run.err


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.chaos), 2])
def test_a_gradient_scaler_in_a_plain_loop_of_a_crew(tmp_path: Path, workers: int) -> None:
    assert (
        "This cannot be kept exact: a GradScaler is used in a plain loop, at step 0, "
        "where each worker has the gradient "
        "of its own share, so one would leave out a step that others make. Use the loop by steps, `for step in "
        "run.steps(loader)`, where it decides on the gradient of the whole batch; or bfloat16, which needs no scaler: "
        "GradScaler(enabled=False)."
    ) in failed(tmp_path, "plain-scaler", "--workers", workers, code=2)


def test_a_plain_loop_that_makes_its_steps_at_other_turns_in_each_worker(tmp_path: Path) -> None:
    assert (
        "This cannot be kept exact: workers ended step 0 after 2 and 3 batches, or at different turns ([(0, 2), (0, "
        "3)]). Call optimizer.step() in the same turns in every worker: not by what one share has shown."
    ) in failed(tmp_path, "plain-apart", "--workers", 2, code=2)


def test_a_script_that_closes_its_run_has_a_result(tmp_path: Path) -> None:
    with Launch(tmp_path, BAD, "--workers", 2, args="close") as run:
        assert run.end() == 0, run.err
    assert run.summary["steps"] == 12 and f"weights_sha256 {run.sha256}\n" == run.out


def test_workers_that_build_different_models(tmp_path: Path) -> None:
    """The one that is ready first is the measure, and goes on."""
    with Launch(tmp_path, BAD, "--workers", 2, args="another-width") as run:
        assert run.end() == 0, run.err
    found = re.search(
        r"worker (\d) has built something else than worker (\d), which was ready first. They differ in parameter "
        r"0.weight \(worker \2: \[(\d+), 1\] float32; worker \1: \[(\d+), 1\] float32\), parameter 0.bias \(", run.err
    )
    assert found and int(found[3]) == 16 + int(found[2]) and int(found[4]) == 16 + int(found[1]), run.err


def line(text: str) -> int:
    """The line of apart.py that this is."""
    return [one.strip() for one in (SCRIPTS / "apart.py").read_text().splitlines()].index(text) + 1


EVALUATED = line('run.evaluate(lambda a, b: {"loss": F.mse_loss(model(a), b)}, data)')
UPDATED, SKIPPED, LOOP = line("optimizer.step()"), line("step.skip()"), line("for step in run.steps(loader):")
OTHERWISE = (
    rf"Step 3 was ended by optimizer\.step\(\) in worker 0 \(line {UPDATED} of the script\) and by %s in worker 1 "
    r"\(line %d of the script\)\. Decide it by what is the same in every worker: step\.number, step\.loss, "
)
WITHOUT = (
    r"the turn of step 3 ended without its units and optimizer\.step\(\) in worker 1, and the loop at line "
    rf"{LOOP} of the script went on\. Call it once a turn, after"
)
APART = {
    "continue": (2, WITHOUT),
    "break-at-the-top": (9, r"Worker 1 (has ended|is further on in) the script"),
    "break": (9, OTHERWISE % ("leaving the loop", LOOP)),
    "skip": (9, OTHERWISE % (r"step\.skip\(\)", SKIPPED)),
}


@pytest.mark.parametrize("what", APART)
def test_a_turn_that_some_workers_take_otherwise(tmp_path: Path, what: str) -> None:
    code, text = APART[what]
    with Launch(tmp_path, SCRIPTS / "apart.py", "--workers", 2, args=what) as run:
        assert run.end() == code, run.err
    assert re.search(text, error(run.err)), run.err


ELSEWHERE = {
    **{what: APART[what] for what in ("break", "skip")},
    "skip-last": (9, (OTHERWISE % (r"step\.skip\(\)", SKIPPED)).replace("Step 3", "Step 15")),
    "evaluate": (9, rf"Worker 1 is further on in the script \(line {EVALUATED}\), while worker 0 waits for it at "),
}


@pytest.mark.sharing
@pytest.mark.parametrize("what", ELSEWHERE)
def test_a_turn_that_some_hosts_take_otherwise(tmp_path: Path, what: str) -> None:
    code, text = ELSEWHERE[what]
    with Launch(tmp_path, SCRIPTS / "apart.py", *LOOPBACK, "--hosts", 2, "--workers", 1, args=what) as run, \
            Joined(tmp_path, run):  # fmt: skip
        assert run.end() == code, run.err
    assert re.search(text, error(run.err)), run.err


def test_a_loop_by_steps_in_a_relaxed_mode(tmp_path: Path) -> None:
    with Launch(tmp_path, SCRIPTS / "apart.py", "--workers", 2, "--sync", "bounded:2", args="nothing") as run:
        assert run.end() == 2, run.err
    assert (
        "run.steps(loader) was called with sync = bounded:2, where lanes are at different steps. Use the plain loop, "
        "`for x, y in loader`, or --sync exact."
    ) in error(run.err)


# ---------------------------------------------------------------- resources


def test_more_memory_than_there_is(tmp_path: Path) -> None:
    told = failed(tmp_path, "huge", "--workers", 1, code=7)
    assert "of shared memory" in told and "Use fewer lanes" in told


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("only root may mount a small file system")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> None:
    with open(place / "ballast", "wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while file.write(b"x" * 4096):
            pass


def test_a_disk_that_is_full_from_the_start(small_disk: Path) -> None:
    fill(small_disk)
    told = refused("run", "--workers", 2, "--dir", small_disk / "run", BAD, code=7)
    assert "cannot be written: No space left on device" in told and "another --dir" in told


def test_a_disk_that_fills_up(small_disk: Path, tmp_path: Path) -> None:
    """Training goes on; what could not be written is said, and the summary is told on the screen."""
    with Launch(tmp_path, "normed", "--workers", 2, args="--epochs 6 --pace 0.004", dir="small/run") as run:
        run.at_step(20)
        fill(small_disk)
        run.strike(run.members()[1])
        assert run.end() == 7, run.err
    assert run.err.count("cannot be written (No space left on device)") <= 1
    told = error(run.err)
    assert "The run's summary could not be written" in told and golden("normed", 4, "--epochs", "6") in told


# ---------------------------------------------------------------- directories


def test_a_directory_that_holds_another_run(tmp_path: Path) -> None:
    with Launch(tmp_path, BAD, "--workers", 1) as run:
        assert run.end() == 0, run.err
    before = {path: path.read_bytes() for path in run.dir.rglob("*") if path.is_file()}
    told = refused("run", "--dir", run.dir, BAD, code=8)
    assert f"{run.dir} holds another run, which ended well" in told and "another --dir" in told
    assert {path: path.read_bytes() for path in run.dir.rglob("*") if path.is_file()} == before


def test_two_launchers_on_one_directory(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", "--workers", 2, args="--pace 0.01") as run:
        run.at_step(2)
        told = refused("run", "--dir", run.dir, BAD, code=8)
        assert f"is being used by another run (pid {run.process.pid})" in told
        assert run.end() == 0, run.err
    assert run.sha256 == golden("normed", 4)


def test_a_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    assert "is not a directory" in refused("run", "--dir", tmp_path / "run", BAD, code=2)
    assert os.listdir(tmp_path) == ["run"] and (tmp_path / "run").read_text() == "mine"
