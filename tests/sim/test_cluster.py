"""Single faults, named one by one, and what becomes of the run."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from holdfast.testing import faults
from holdfast.testing.cluster import Config, SimReport, draw, simulate
from holdfast.testing.faults import POINTS, Fault, LinkFaults, Schedule
from holdfast.testing.model import Model, golden_chain

MODEL = Model(lanes=6, slices=4, steps=8)


def run(
    *found: Fault, workers: int = 3, model: Model = MODEL, link: LinkFaults | None = None, seed: int = 1
) -> SimReport:
    return simulate(seed, Config(model=model, workers=workers, schedule=Schedule(found, link or LinkFaults())))


def test_undisturbed() -> None:
    report = run()
    assert (report.outcome, report.generations, report.lost) == ("end", 1, 0)
    assert "generation 1 begins at step 0, worker 0 drives lanes 0-1" in report.story


def test_the_golden_chain_depends_on_every_lane_and_step() -> None:
    states, sums = golden_chain(MODEL)
    assert len(set(states)) == MODEL.steps + 1
    assert len(set(sums)) == MODEL.steps
    assert golden_chain(Model(lanes=5, slices=4, steps=8))[0][-1] != states[-1]


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("part", [0.3, 0.85, 0.95])
@pytest.mark.parametrize("during", POINTS)
def test_kill_anywhere(during: str, part: float, clip: bool) -> None:
    model = Model(lanes=6, slices=4, steps=30, clip=clip)
    kill = faults.at(worker=1, step=0 if during in ("quiet", "install") else 3, during=during, part=part).kill()
    report = run(kill, faults.after(0.5).scale(4), model=model)  # the join makes everybody quiet once
    assert report.outcome == "end"
    assert report.lost == 1
    assert "worker 1 lost (signal 9)" in report.story


@pytest.mark.parametrize("worker", [0, 1, 2])
@pytest.mark.parametrize("during", ["stand", "install", "quiet", "compute"])
def test_kill_while_the_way_of_keeping_step_changes(during: str, worker: int) -> None:
    model = Model(lanes=6, slices=4, steps=40)
    kill = faults.at(worker=worker, step=1, during=during).kill()
    back = faults.after(1.4).sync("exact")
    for seed in range(20):
        report = run(kill, faults.after(0.6).sync("async"), back, model=model, seed=seed)
        assert (report.outcome, report.lost) == ("end", 1)
        assert "lanes keep step by async from step " in report.story
        assert "lanes keep step by exact from step " in report.story


def test_everybody_dies_at_once() -> None:
    report = run(faults.after(0.6).kill_all())
    assert (report.outcome, report.lost) == ("end", 3)
    assert "with whoever comes first" in report.story


def test_a_short_freeze_is_waited_for() -> None:
    report = run(faults.at(worker=1, step=3).freeze(0.2))
    assert (report.outcome, report.lost, report.generations) == ("end", 0, 1)


def test_a_long_freeze_is_ended_by_a_kill() -> None:
    report = run(faults.at(worker=1, step=3).freeze())
    assert (report.outcome, report.lost) == ("end", 1)
    assert "worker 1 is stopped by the system for 0." in report.story


def test_a_worker_that_goes_on_just_before_its_kill_does_no_harm() -> None:
    for seed in range(40):
        report = run(faults.at(worker=1, step=3).freeze(0.55), seed=seed, link=LinkFaults(late=0.3))
        assert report.outcome == "end"


def test_leave() -> None:
    report = run(faults.at(worker=1, step=3).leave())
    assert (report.outcome, report.lost) == ("end", 0)
    assert "worker 1 is to leave (SIGTERM): worker 3 starts in its place" in report.story


def test_the_only_worker_leaves_when_its_successor_is_there() -> None:
    report = run(faults.at(worker=0, step=2).leave(), workers=1, model=Model(lanes=6, slices=4, steps=30))
    assert (report.outcome, report.lost) == ("end", 0)
    assert "worker 1 drives lanes 0-5" in report.story


def test_a_slow_worker_gets_fewer_lanes() -> None:
    report = run(faults.at(worker=1, step=1).slow(4.0), model=Model(lanes=6, slices=4, steps=30))
    assert report.outcome == "end"
    assert "worker 1 takes 0.08 s a lane (median 0.02 s) and goes from 2 to 0 lanes" in report.story
    assert "worker 1 drives no lane; it is tried with lane 2" in report.story


def test_drain_ends_at_a_step() -> None:
    report = run(faults.after(0.5).drain())
    assert report.outcome == "end"
    assert report.message == "ended early (asked for)"


def test_a_unit_that_kills() -> None:
    report = run(faults.unit(step=4, lane=2).crashes())
    assert report.outcome == "BadUnit"
    assert "Unit (step 4, lane 2) failed on workers" in report.message
    assert "Its samples are 402." in report.message


def test_a_unit_that_raises() -> None:
    report = run(faults.unit(step=4, lane=2).raises())
    assert report.outcome == "BadUnit"
    assert "ValueError: bad sample at data.py:7" in report.message


def test_a_script_that_raises_at_once() -> None:
    report = run(faults.unit(step=0, lane=2).raises())
    assert report.outcome == "ScriptFailed"


def test_a_unit_that_hangs() -> None:
    report = run(faults.unit(step=4, lane=2).hangs())
    assert report.outcome == "Hang"
    assert "it stands at model.py:3" in report.message


def test_a_link_that_loses_every_third_message() -> None:
    for seed in range(20):
        link = LinkFaults(loss=0.33, double=0.2, late=0.3)
        assert run(faults.at(worker=2, step=4).kill(), link=link, seed=seed).outcome == "end"


def test_hundreds_of_workers() -> None:
    model = Model(lanes=300, slices=5, steps=2)
    report = run(faults.at(worker=7, step=1).kill(), workers=250, model=model)
    assert (report.outcome, report.lost) == ("end", 1)


def slow_server(*more: Fault, seed: int, clip: bool = False) -> SimReport:
    """A run with two servers, of which the first becomes ten times slower."""
    slow = faults.at(worker=2, step=4, during="finish").slow(10.0)
    model = Model(lanes=4, slices=12, steps=60, clip=clip)
    return simulate(seed, Config(model=model, workers=2, servers=2, schedule=Schedule((slow, *more))))


@pytest.mark.parametrize("clip", [False, True])
def test_a_slow_server_gets_fewer_bytes(clip: bool) -> None:
    for seed in range(5):
        report = slow_server(seed=seed, clip=clip)
        assert "slices move: a version should take " in report.story and "server 2 has 6.29 MB" in report.story
        first, *_, last = re.findall(r"own the parameters \((\d+)%, (\d+)%\)", report.story)
        assert first == ("50", "50") and int(last[0]) <= 17, report.story
        assert report.generations <= 4, f"it was slowed once:\n{report.story}"


@pytest.mark.parametrize("worker", [2, 3])
@pytest.mark.parametrize("during", ["install", "finish", "quiet"])
def test_a_server_is_killed_when_slices_have_moved_or_are_about_to(during: str, worker: int) -> None:
    for seed in range(10):
        report = slow_server(faults.at(worker=worker, step=8, during=during).kill(), seed=seed)
        assert (report.outcome, report.lost) == ("end", 1)
        assert "slices move" in report.story


def test_swarms_hold_slices_that_move() -> None:
    stories = [simulate(seed).story for seed in range(200)]
    assert sum("slices move" in story for story in stories) > 5
    assert any("it is tried with a little" in story for story in stories)


def test_seeds_differ() -> None:
    assert len({simulate(seed).trace_hash for seed in range(20)}) == 20


def test_the_trace_is_the_same_in_another_process() -> None:
    code = "from holdfast.testing.cluster import simulate; print(*(simulate(s).trace_hash for s in range(12)))"
    out = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": "77"}, capture_output=True, text=True,
        check=True,
    )
    assert out.stdout.split() == [simulate(seed).trace_hash for seed in range(12)]


def test_swarms_hold_every_kind_of_fault() -> None:
    kinds = {fault.what for seed in range(300) for fault in draw(seed).schedule.faults}
    told = {
        "kill", "freeze", "leave", "slow", "kill all", "scale", "servers", "sync", "drain", "crash", "raise", "hang",
    }  # fmt: skip
    assert kinds == told


def test_faults_are_data() -> None:
    assert faults.at(worker=1, step=7).kill() == faults.At(1, 7, "compute", 0.5, "kill")
    with pytest.raises(ValueError, match="must be one of compute, finish"):
        faults.at(worker=1, step=7, during="lunch")
