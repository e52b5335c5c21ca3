"""Kills at bad moments and ends of every kind: what must go on goes on, what must end leaves nothing."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from pathlib import Path

import pytest

from holdfast.transport import processes
from tests.process.harness import Launch, alive, golden, holdfast, until
from tests.process.six_epochs import finished, go, slow

pytestmark = pytest.mark.process


#: 96 steps, of about 10 ms or more.
RELAXED = "--epochs 6 --pace 0.004"


# ---------------------------------------------------------------- it goes on


@pytest.mark.sharing
def test_all_workers_killed_at_once(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", "--workers", 3, args=RELAXED) as run:
        run.at_step(30)
        for pid in run.members():
            run.strike(pid)
        finished(run)
    assert run.summary["workers_lost"] == 3


@pytest.mark.sharing
def test_the_forkserver_killed(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", "--workers", 2, args=RELAXED) as run:
        run.at_step(30)
        run.strike(run.forkserver())
        finished(run)
    assert run.summary["workers_lost"] == 2


@pytest.mark.sharing
def test_the_forkserver_killed_before_it_has_forked(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", "--workers", 2, args=RELAXED) as run:
        until(lambda: (run.dir / "control.sock").exists(), "a control socket")
        run.strike(until(lambda: run.process.poll() is None and run.forkserver(), "a forkserver"))
        finished(run)


@pytest.mark.sharing
def test_a_worker_killed_while_it_starts(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", "--workers", 2, args=RELAXED) as run:
        status = run.wait(lambda s: s["workers"] and s["workers"][0]["pid"], "a first process")
        assert not status["generation"]
        run.strike(status["workers"][0]["pid"])
        finished(run)
    assert run.summary["workers_lost"] == 1


def test_a_worker_killed_that_has_processes_of_its_own(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", "--workers", 2, args=f"{RELAXED} --fetchers 1") as run:
        run.at_step(30)
        victim = run.crew_of(2)[0]
        (child,) = map(int, Path(f"/proc/{victim}/task/{victim}/children").read_text().split())
        run.strike(victim)
        until(lambda: not alive(child), "the end of what the worker had started", 2.0)
        finished(run)
    assert run.summary["workers_lost"] == 1


@pytest.mark.sharing
def test_a_worker_killed_in_an_evaluation(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", "--workers", 2, args=f"{RELAXED} --slow-evaluation 0.05") as run:
        run.at_step(15)
        # The epoch's last unit is begun; the evaluation after it takes 9 x 0.05 s, most of them after this.
        run.wait(lambda s: s["step"] == 16, "the epoch's end")
        run.strike(run.members()[0])
        run.at_step(31)
        run.wait(lambda s: s["step"] == 32, "the epoch's end")
        run.strike(run.members()[-1])
        finished(run)
    assert run.summary["workers_lost"] == 2
    assert len(set(re.findall(r"^evaluated .*$", run.out, re.MULTILINE))) == 1


def test_a_frozen_worker_is_waited_for_or_replaced(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", "--workers", 2, "--set", "crew.frozen_limit=1s", args=RELAXED) as run:
        run.at_step(20)
        first, second = run.members()
        run.strike(first, signal.SIGSTOP)
        until(lambda: processes.stat(first).state == "T", "stopped")
        time.sleep(0.2)
        run.strike(first, signal.SIGCONT)
        run.at_step(40)
        assert alive(first), "it was stopped for less than the limit"
        run.strike(second, signal.SIGSTOP)
        run.told("stopped by the system for 1.")
        assert not alive(second) or until(lambda: not alive(second), "its end", 2)
        finished(run)
    assert run.summary["workers_lost"] == 1


@pytest.mark.sharing
def test_sigterm_is_a_leave_not_a_loss_of_work(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", "--workers", 2, args=RELAXED) as run:
        run.at_step(30)
        run.strike(run.members()[1], signal.SIGTERM)
        run.told("is to leave (SIGTERM)")
        finished(run)
        assert run.trace.tries == len(run.trace.units), "a worker that leaves ends its unit first"
    assert run.summary["workers_lost"] == 0


@pytest.mark.sharing
def test_scale_up_and_down(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", "--workers", 1, args=slow(tmp_path)) as run:
        run.at_step(2)
        up = holdfast("scale", run.dir, "--workers", 4)
        assert up.returncode == 0 and "4 workers were asked for instead of 1" in up.stdout
        run.crew_of(4)
        shown = json.loads(holdfast("status", run.dir, "--json").stdout)
        assert sorted(lane for worker in shown["workers"] for lane in worker["lanes"]) == [0, 1, 2, 3]
        too_many = holdfast("scale", run.dir, "--workers", 5)
        assert too_many.returncode == 2 and "only 4 lanes" in too_many.stderr
        holdfast("scale", run.dir, "--workers", 2)
        run.crew_of(2)
        go(tmp_path)
        finished(run)
        assert run.trace.tries == len(run.trace.units), "nothing is computed twice when the crew changes at will"
    assert run.summary["workers_lost"] == 0


def test_a_slow_worker_gets_fewer_lanes(tmp_path: Path) -> None:
    args = "--epochs 6 --pace 0.003 --slow 1:0:1000:0.06"
    with Launch(tmp_path, "normed", "--workers", 2, "--lanes", 8, args=args) as run:
        run.wait(lambda s: [len(w["lanes"]) for w in s["workers"]] in ([7, 1], [8, 0]), "few lanes for the slow one")
        assert run.end() == 0, run.err
    assert run.sha256 == golden("normed", 8, "--epochs", "6")
    assert run.summary["workers_lost"] == 0


def test_the_pause_after_a_kill_is_short(tmp_path: Path) -> None:
    """From a kill to the next new step, median of five."""
    pauses = []
    with Launch(tmp_path, "normed", "--workers", 2, args="--epochs 14 --pace 0.004") as run:
        for step in (20, 60, 100, 140, 180):
            run.at_step(step)
            victim = run.crew_of(2)[step // 20 % 2]
            began, at = time.monotonic(), run.trace.read().step
            run.strike(victim)
            run.at_step(at + 2)
            pauses.append(time.monotonic() - began)
        assert run.end() == 0, run.err
    assert run.summary["workers_lost"] == 5
    assert sorted(pauses)[2] < 1.0, pauses


# ---------------------------------------------------------------- it ends


def test_the_launcher_killed(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", "--workers", 3, args=RELAXED) as run:
        run.at_step(20)
        run.status()
        tree = run.processes()
        assert len(tree) == 5, tree
        run.process.kill()
        run.process.wait()
        until(lambda: not run.processes(), "the end of all processes", 2.0)
        said = holdfast("status", run.dir)
        assert f"the launcher of this run (pid {run.process.pid}) was killed; removed control.sock" in said.stderr
        assert said.returncode == 0 and "ended (killed)" in said.stdout
        assert run.summary["outcome"] == "killed"
        again = holdfast("status", run.dir)
        assert again.stderr == "", "it is said once"


def test_the_launcher_killed_while_a_worker_is_stopped(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", "--workers", 2, args=f"{RELAXED} --fetchers 1") as run:
        run.at_step(20)
        run.strike(run.crew_of(2)[0], signal.SIGSTOP)
        run.process.kill()
        run.process.wait()
        until(lambda: not run.processes(), "the end of all processes", 2.0)
        swept = holdfast("explain", run.dir)
        assert f"removed control.sock and removed {run.temp}/holdfast-" in swept.stderr


@pytest.mark.sharing
def test_ctrl_c_once_ends_at_a_step_with_the_scripts_own_end(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", "--workers", 2, args=RELAXED) as run:
        run.at_step(30)
        run.send(signal.SIGINT)
        assert run.end() == 130, run.err
    assert run.summary["outcome"] == "stopped" and 30 <= run.summary["steps"] < 96
    assert f"weights_sha256 {run.sha256}" in run.out, "the script did not come to its end"
    assert "Traceback" not in run.err + run.out


def test_ctrl_c_twice_kills_the_tree(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", "--workers", 2, args="--pace 5") as run:
        run.at_step(0)
        run.send(signal.SIGINT)
        run.told("the run is to end at its next step")
        run.send(signal.SIGINT)
        began = time.monotonic()
        assert run.end() == 130
        assert time.monotonic() - began < 2
    assert run.summary["outcome"] == "stopped"


@pytest.mark.sharing
def test_ctrl_c_before_the_first_step(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", "--workers", 2) as run:
        run.told("the run starts")
        run.send(signal.SIGINT)
        assert run.end(5) == 130, run.err
    assert run.summary["outcome"] == "stopped" and run.summary["steps"] == 0


@pytest.mark.chaos
def test_nothing_is_left_after_fifty_random_kills(tmp_path: Path) -> None:
    """Kills of launcher, forkserver or a worker at any moment. Every `Launch` looks around at its end."""
    rng = random.Random(50)
    args = "--epochs 3 --pace 0.002 --fetchers 1"
    for number in range(50):
        with Launch(tmp_path, "normed", "--workers", 2, args=args, dir=f"run-{number}") as run:
            until(lambda run=run: (run.dir / "control.sock").exists(), "a control socket")
            if rng.random() < 0.7:
                run.at_step(rng.randrange(40))
            workers = [worker["pid"] for worker in run.status()["workers"] if worker["pid"]]
            victim = rng.choice([run.process.pid, run.forkserver(), *workers])
            os.kill(victim, signal.SIGKILL)
            if victim == run.process.pid:
                run.process.wait()
                until(lambda run=run: not run.processes(), "the end of all processes", 2.0)
                holdfast("status", run.dir)
            else:
                assert run.end() == 0, run.err
                assert run.sha256 == golden("normed", 4)
