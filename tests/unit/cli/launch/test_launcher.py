"""`holdfast run` from outside, with fake workers: every end, and that nothing is left after it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.unit.cli.launched import Launched, children, gone, holdfast, training

pytestmark = [pytest.mark.process, pytest.mark.sharing]

LONG = "steps=100000 pace=0.01"


def left(directory: Path) -> set[str]:
    """What a run that has ended leaves, besides what it always leaves."""
    return {path.name for path in directory.iterdir()} - {"run.json", "story.jsonl", "summary.json", "logs"}


def test_a_run_ends_well(tmp_path: Path) -> None:
    with Launched(tmp_path, "--workers", "2", script="steps=10") as run:
        assert run.end() == 0, run.err
    assert run.out == "the first step is done\n"
    assert "done: 10 steps" in run.err
    assert run.summary["outcome"] == "ok"
    assert {
        "steps", "epochs", "samples", "weights_sha256", "seconds", "samples_per_second", "generations",
        "workers_lost", "loss", "config",
    } <= set(run.summary)
    assert run.summary["config"]["lanes"] == 4 and run.summary["config"]["workers"] == 2
    assert left(run.dir) == set()
    assert "limits: " in run.story and "limits: " not in run.err


def test_status_explain_and_scale_while_it_goes(tmp_path: Path) -> None:
    with Launched(tmp_path, "--workers", "2", script=LONG) as run:
        status = run.wait(training)
        assert status["coordinator"]["pid"] == run.process.pid
        assert [worker["lanes"] for worker in status["workers"]] == [[0, 1], [2, 3]]
        assert {"pid", "host", "lanes", "step", "speed", "state"} <= set(status["workers"][0])
        assert status["servers"] == []
        assert os.stat(run.dir / "control.sock").st_mode & 0o777 == 0o600
        scaled = holdfast("scale", run.dir, "--workers", "3")
        assert scaled.returncode == 0 and "3 workers were asked for" in scaled.stdout
        run.wait(lambda s: sum(worker["state"] == "member" for worker in s["workers"]) == 3)
        assert holdfast("scale", run.dir, "--workers", "9").returncode == 2
        assert holdfast("scale", run.dir, "--workers", "1").returncode == 0
        run.wait(lambda s: len(s["workers"]) == 1 and len(s["workers"][0]["lanes"]) == 4)
        assert "generation 2" in holdfast("explain", run.dir).stdout
        assert "lead" in holdfast("status", run.dir).stdout
        busy = holdfast("run", "--dir", run.dir, tmp_path / "train.py")
        assert busy.returncode == 8
        assert f"is being used by another run (pid {run.process.pid})" in busy.stderr


def test_ctrl_c_drains_and_a_second_one_kills(tmp_path: Path) -> None:
    with Launched(tmp_path, "--workers", "2", script=LONG) as run:
        run.wait(training)
        run.signal(signal.SIGINT)
        assert run.end() == 130
    assert "Ctrl-C: the run ends at its next step" in run.err
    assert run.summary["outcome"] == "stopped" and run.summary["steps"] > 0
    assert run.summary["weights_sha256"]
    with Launched(tmp_path / "..", "--dir", str(tmp_path / "two"), script="steps=9 pace=60") as run:
        run.dir = tmp_path / "two"
        run.wait(lambda s: s["generation"] == 1)
        tree = children(run.process.pid)
        began = time.monotonic()
        run.signal(signal.SIGTERM)
        time.sleep(0.2)
        run.signal(signal.SIGTERM)
        assert run.end() == 143
    assert time.monotonic() - began < 3
    assert run.summary["outcome"] == "stopped" and "second SIGTERM" in run.summary["error"]
    assert all(gone(pid) for pid in tree)
    assert left(run.dir) <= {"failure.txt"}


def test_a_killed_worker_is_replaced(tmp_path: Path) -> None:
    with Launched(tmp_path, "--workers", "2", script=LONG) as run:
        victim = run.wait(training)["workers"][1]["pid"]
        os.kill(victim, signal.SIGKILL)
        run.wait(lambda s: s["generation"] >= 2 and [w["worker"] for w in s["workers"]] == [0, 2])
        run.signal(signal.SIGINT)
        assert run.end() == 130
    assert run.summary["workers_lost"] == 1
    assert "worker 1 lost (signal 9)" in run.err


def test_a_stopped_worker_is_replaced_after_the_limit(tmp_path: Path) -> None:
    with Launched(tmp_path, "--workers", "2", "--set", "crew.frozen_limit=0.5s", script=LONG) as run:
        victim = run.wait(training)["workers"][1]["pid"]
        os.kill(victim, signal.SIGSTOP)
        run.wait(lambda s: s["workers_lost"] == 1 and len(s["workers"]) == 2)
        assert gone(victim)
        assert "stopped by the system for 0." in run.story


def test_a_killed_forkserver_takes_its_workers_along_and_comes_back(tmp_path: Path) -> None:
    with Launched(tmp_path, "--workers", "2", script=LONG) as run:
        workers = [worker["pid"] for worker in run.wait(training)["workers"]]
        (forkserver,) = (pid for pid in children(run.process.pid) if pid not in workers)
        os.kill(forkserver, signal.SIGKILL)
        assert all(gone(pid) for pid in workers)
        status = run.wait(lambda s: s["generation"] >= 2 and len(s["workers"]) == 2)
        assert {worker["pid"] for worker in status["workers"]}.isdisjoint(workers)


def test_a_killed_launcher_leaves_nothing_and_the_next_command_says_so(tmp_path: Path) -> None:
    with Launched(tmp_path, "--workers", "2", script=LONG) as run:
        run.wait(training)
        tree = children(run.process.pid)
        assert len(tree) == 3
        run.signal(signal.SIGKILL)
        run.end()
    assert all(gone(pid) for pid in tree)
    assert (run.dir / "control.sock").exists()
    swept = holdfast("status", run.dir)
    assert f"the launcher of this run (pid {run.process.pid}) was killed; removed control.sock" in swept.stderr
    assert "ended (killed)" in swept.stdout
    assert left(run.dir) == set()
    assert holdfast("status", run.dir).stderr == ""
    taken = holdfast("run", "--dir", run.dir, tmp_path / "train.py")
    assert taken.returncode == 8 and "holds another run, which was killed" in taken.stderr


def test_the_next_run_sweeps_up_beside_it(tmp_path: Path) -> None:
    with Launched(tmp_path, cwd=tmp_path, script=LONG) as run:
        until = time.monotonic() + 10
        while not list(tmp_path.glob("runs/*/control.sock")) and time.monotonic() < until:
            time.sleep(0.05)
        (run.dir,) = (tmp_path / "runs").iterdir()
        run.signal(signal.SIGKILL)
        run.end()
    assert "orphaned" not in holdfast("doctor", cwd=tmp_path).stdout.partition("runs ")[2]
    with Launched(tmp_path, cwd=tmp_path, script="steps=3") as second:
        assert second.end() == 0
    assert "was killed; removed control.sock" in second.err
    assert run.summary["outcome"] == "killed"


@pytest.mark.parametrize(
    ("script", "code", "told"),
    [
        ("first=raise", 1, "failed with ValueError: nothing works"),
        ("raise=3", 1, "with ValueError: bad sample"),
        ("die=3", 3, "Unit (step 3, lane "),
        ("hang=3", 5, "made no progress for 1."),
    ],
)
def test_failures_are_told_once_shortly_and_by_exit_code(tmp_path: Path, script: str, code: int, told: str) -> None:
    options = ("--workers", "8", "--lanes", "8", "--set", "crew.hang_limit=1s")
    with Launched(tmp_path, *options, script=script) as run:
        assert run.end() == code, run.err
        last = run.err[run.err.rindex("holdfast: ") :]
    assert told in last
    assert len(last.splitlines()) < 15
    assert run.err.count(last.splitlines()[0].removeprefix("holdfast: ")) == 1
    assert "Traceback" not in run.out + run.err
    assert run.summary["outcome"] == "failed" and run.summary["exit_code"] == code
    assert left(run.dir) - {f"hang-{n}.txt" for n in range(20)} == {"failure.txt"}
    if script.startswith("hang"):
        report = next(run.dir.glob("hang-*.txt")).read_text()
        assert "fake_worker.py" in report and "in unit" in report


def test_more_workers_than_the_scripts_lanes(tmp_path: Path) -> None:
    with Launched(tmp_path, "--workers", "3", script="lanes=2") as run:
        assert run.end() == 0  # `hf.join()` refuses this in the worker; here is what the crew makes of it
    assert "the script has 2 lanes" in run.err and "worker 2 will leave" in run.err


def test_a_script_with_other_lanes_than_the_default(tmp_path: Path) -> None:
    with Launched(tmp_path, "--workers", "6", script="lanes=8 steps=5") as run:
        assert run.end() == 0
    assert run.summary["config"]["lanes"] == 8
    with Launched(tmp_path, "--dir", str(tmp_path / "one"), script="lanes=1 steps=5") as run:
        assert run.end() == 0
    assert json.loads((tmp_path / "one" / "summary.json").read_text())["config"]["lanes"] == 1


def test_a_worker_that_does_not_leave_is_ended(tmp_path: Path) -> None:
    with Launched(tmp_path, "--workers", "1", "--set", "crew.exit_grace=0.3s", script="steps=3 linger=60") as run:
        assert run.end(10) == 0
    assert run.summary["outcome"] == "ok"


def test_a_full_disk_does_not_stop_a_run(tmp_path: Path) -> None:
    with Launched(tmp_path, "--workers", "1", script="steps=60 pace=0.05") as run:
        run.wait(training)
        (run.dir / "story.jsonl").unlink()
        (run.dir / "story.jsonl").symlink_to("/dev/full")
        assert run.end() == 0
    assert run.err.count("cannot be written (No space left on device); training goes on") == 1
    assert run.summary["steps"] == 60


def test_a_directory_with_a_long_name(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    with Launched(tmp_path, "--dir", str(deep), "--workers", "1", script=LONG) as run:
        run.dir = deep
        run.wait(training)
        run.signal(signal.SIGINT)
        assert run.end() == 130
