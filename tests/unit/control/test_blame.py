"""Whose fault it was, and what the user is told. The texts are part of the contract: a change is meant."""

from __future__ import annotations

from functools import partial

import pytest

from holdfast.control.blame import Blame, told
from holdfast.control.membership.hosts import Hosts
from holdfast.control.membership.process_names import ProcessNames
from holdfast.control.membership.roster import CrewLimits
from holdfast.control.protocol.commands import FailRun, KillWorker, StartWorker
from holdfast.control.protocol.events import HostJoined, Measured, RunStarted, Ticked, WorkerHung, WorkerLost
from holdfast.control.protocol.messages import Seeded
from tests.unit.control.driven import Driven, failed, pause, ready


def test_script_failed_in_all_alike() -> None:
    run = Driven(workers=4)
    run.started()
    assert run(failed(1), failed(3), failed(0)) == []
    assert run(failed(2)) == [FailRun(
        "ScriptFailed",
        "worker 1 failed with ValueError: boom at train.py:12; workers 0, 2 and 3 the same. "
        "Fix the script at train.py:12; the whole output is in logs/worker-1.log.",
        "trace of worker 1",
    )]


def test_script_failed_waits_a_moment_for_the_others() -> None:
    run = Driven(workers=4, gather=0.3)
    run.started()
    run(failed(1))
    assert run(failed(3)) == []
    assert run(failed(2, kind="OSError", where="data.py:4", message="no such file\nin detail")) == []
    assert run(WorkerLost(1, "exit", 1), after=0.05) == []
    assert run(Ticked()) == [FailRun(
        "ScriptFailed",
        "worker 1 failed with ValueError: boom at train.py:12; worker 3 the same. "
        "Fix the script at train.py:12; the whole output is in logs/worker-1.log.\n"
        "worker 2 failed with OSError: no such file at data.py:4",
        "trace of worker 1",
    )]


def test_failed_outside_a_unit_is_the_script() -> None:
    run = Driven(workers=1).begun()
    run(Measured(50, {}))
    assert run(failed(0)) == [FailRun(
        "ScriptFailed",
        "worker 0 failed with ValueError: boom at train.py:12. "
        "Fix the script at train.py:12; the whole output is in logs/worker-0.log.",
        "trace of worker 0",
    )]


def test_failed_in_a_unit_is_tried_again() -> None:
    run = Driven().begun()
    assert run(failed(1, (5, 3), samples=[8])) == [
        KillWorker(1, "its script failed with ValueError: boom at train.py:12"), StartWorker(2, 2, 0), *pause(2, 0),
    ]
    assert run(failed(1, (5, 3), samples=[8])) == []
    assert run(WorkerLost(1, "signal", 9, 5, (5, 3), [8])) == []


def test_the_same_line_in_another_unit_is_the_script() -> None:
    run = Driven(workers=3, gather=0.3).begun()
    run(failed(1, (5, 1)))
    assert run(failed(2, (5, 3))) == []
    assert run(Ticked(), after=0.3) == [FailRun(
        "ScriptFailed",
        "worker 1 failed in unit (step 5, lane 1) with ValueError: boom at train.py:12; worker 2 the same. "
        "Fix the script at train.py:12; the whole output is in logs/worker-1.log.",
        "trace of worker 1",
    )]


def test_progress_forgives_an_exception() -> None:
    run = Driven().begun()
    run(failed(1, (5, 1)), Measured(6, {}))
    assert run(failed(0, (7, 1)))[0] == KillWorker(0, "its script failed with ValueError: boom at train.py:12")


def test_our_own_errors_end_the_run_at_once() -> None:
    for kind, unit in (("OutOfSync", None), ("NotExact", (5, 1)), ("NonFinite", None)):
        verdict = Driven().begun()(failed(1, unit, kind=kind, message="That cannot be."))
        assert verdict == [FailRun(kind, "That cannot be.", "trace of worker 1")]


@pytest.mark.parametrize("step", [0, 5])
def test_a_unit_that_is_not_finite_is_computed_once_more_by_somebody_else(step: int) -> None:
    """Before the first step, too, where other exceptions are held for bad code."""
    run = Driven().begun()
    nan = partial(failed, kind="NonFinite", message="The loss is nan.", samples=[8])
    why = "its script failed with NonFinite at train.py:12: The loss is nan"
    assert run(nan(1, (step, 3))) == [KillWorker(1, why), StartWorker(2, 2, 0), *pause(2, 0)]
    run(WorkerLost(1, "signal", 9, step, (step, 3), [8]))
    assert run.quiet(2, 0, step=step)[-1].message.drivers == [0, 0, 0, 0], "the lane has moved"
    assert run(nan(0, (step, 2)))[0] == KillWorker(0, why)
    assert run(nan(2, (step, 3))) == [
        FailRun("NonFinite", "The loss is nan. It was so on workers 1 and 2.", "trace of worker 2")
    ]


def test_progress_forgives_a_unit_that_was_not_finite_but_not_those_of_lanes_behind_it() -> None:
    run = Driven().begun()
    run(failed(1, (9, 3), kind="NonFinite", step=2), WorkerLost(1, "signal", 9, 2, (9, 3)), ready(2))
    run(Measured(8, {}))
    run(failed(0, (8, 1), kind="NonFinite", step=8), WorkerLost(0, "signal", 9, 8, (8, 1)), ready(3))
    assert not run.machine.over, "each was tried once"
    run(Measured(9, {}), failed(2, (9, 3), kind="NonFinite", step=9))
    assert run.machine.over, "nobody has been past it since"
    run = Driven().begun()
    run(failed(1, (9, 3), kind="NonFinite", step=2), WorkerLost(1, "signal", 9, 2, (9, 3)), ready(2), Measured(10, {}))
    run(failed(2, (10, 3), kind="NonFinite", step=10))
    assert not run.machine.over


def test_a_unit_that_is_not_finite_where_nobody_can_compute_it_again() -> None:
    run = Driven(workers=1)
    run(RunStarted(), HostJoined(0, "here", 1, refills=False))
    run(ready(0), Seeded(0))
    run(failed(0, (5, 1), kind="NonFinite", message="The loss is nan."))
    assert run(WorkerLost(0, "signal", 9)) == [
        FailRun("NonFinite", "The loss is nan. Nobody is left to compute it again.", "trace of worker 0")
    ]


def test_a_victim_is_no_culprit() -> None:
    run = Driven().begun()
    assert run(failed(1, kind="Stopped")) == []


def test_bad_unit() -> None:
    run = Driven(lanes=2, workers=1).begun()
    samples = list(range(20))
    run(WorkerLost(0, "signal", 11, 5, (5, 1), samples), ready(1), WorkerLost(1, "signal", 11, 5, (5, 1), samples))
    run(ready(2))
    assert run(failed(2, (5, 1), samples=samples)) == [FailRun(
        "BadUnit",
        "Unit (step 5, lane 1) failed on workers 0, 1 and 2: signal 11; ValueError: boom at train.py:12. "
        "Its samples are 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, ... (20 in all). "
        "Look at them first; the rest of the data got through.",
        "trace of worker 2",
    )]


def test_hang_twice_in_a_unit() -> None:
    run = Driven().begun()
    run(WorkerHung(1, 30.0, "model.py:3", (3, 2), [9]), WorkerLost(1, "signal", 9))
    assert run(WorkerHung(0, 31.0, "model.py:3", (3, 2), [9])) == [FailRun(
        "Hang",
        "worker 0 made no progress for 31.0 s in unit (step 3, lane 2), as worker 1 did before; "
        "it stands at model.py:3. Look at that line first: it waits for something that does not come.",
    )]


def test_hang_outside_a_unit() -> None:
    run = Driven().begun()
    assert run(WorkerHung(1, 30.0, "train.py:40")) == [FailRun(
        "Hang",
        "worker 1 made no progress for 30.0 s outside any unit; it stands at train.py:40. "
        "Look at that line first: it waits for something that does not come.",
    )]


def test_crew_lost() -> None:
    run = Driven(workers=1, luck_budget=2).begun()
    run(WorkerLost(0, "signal", 9), ready(1), WorkerLost(1, "exit", 3), ready(2))
    assert run(WorkerLost(2, "signal", 9)) == [FailRun(
        "CrewLost",
        "Processes of the run were lost 3 times in a row without a step of progress (step 0); 2 are forgiven. "
        "The last ones: worker 0 (signal 9); worker 1 (exit status 3); worker 2 (signal 9). "
        "Look at the end of logs/worker-2.log, and at the memory they need.",
    )]


def test_progress_renews_the_budget() -> None:
    run = Driven(workers=1, luck_budget=1).begun()
    for number in range(8):
        run(WorkerLost(number, "signal", 9, number + 1), ready(number + 1), Measured(number + 1, {}))
    assert not run.machine.over


def test_one_stroke_counts_once() -> None:
    run = Driven(workers=4, luck_budget=1).begun()
    run(*(WorkerLost(number, "signal", 9) for number in range(4)))
    assert not run.machine.over
    run(WorkerLost(4, "signal", 9))
    assert run.machine.over


def test_nobody_fits() -> None:
    run = Driven(workers=1)
    run.started()
    run(ready(0), Seeded(0), WorkerLost(0, "signal", 9))
    why = "worker 1 has built something else than worker 0, which was ready first. They differ in hash of all parts " \
          "(worker 0: net; worker 1: other). Build model, optimizer and loader alike in every process: no sizes that " \
          "are random, or that follow from a rank, a machine or the files it has; and give every machine the same " \
          "script, arguments and data."
    assert run(ready(1, model="other")) == [FailRun("OutOfSync", f"No worker is left that fits the run: {why}")]


def test_who_was_killed_by_us_is_not_said_to_be_lost() -> None:
    run = Driven(workers=2).begun()
    run(Measured(3, {}), failed(1, (3, 0), message="no such column"))
    assert run.told.startswith("worker 1 failed with ValueError: no such column at train.py:12: ")
    run(WorkerLost(1, "signal", 9))
    assert run.told.startswith("worker 1 has ended"), run.told


def test_sentences_of_a_failure_end_before_what_follows_from_it() -> None:
    assert told(failed(1, (3, 0), message="boom")) == "ValueError: boom at train.py:12"
    ours = failed(1, (3, 0), kind="NonFinite", message="The loss is nan. Look at its samples.")
    assert told(ours) == "NonFinite at train.py:12: The loss is nan. Look at its samples"


def test_samples_that_crash_one_worker_after_the_other_are_bad_data_though_steps_are_made_without_them() -> None:
    blame = Blame(CrewLimits(lanes=4, workers=4), ProcessNames(Hosts()))
    told = [blame.lost_unit(worker, (worker, 0), "signal 11", [7, 8, 20 + worker]) for worker in (1, 2)]
    assert told == [None, None] and blame.progressed(5)
    verdict = blame.lost_unit(3, (6, 2), "signal 11", [7, 30])
    assert verdict is not None and verdict.kind == "BadUnit"
    told = "Unit (step 6, lane 2) failed on workers 1, 2 and 3: signal 11. Its samples are 7. Look at"
    assert told in verdict.message


def test_samples_of_workers_that_were_killed_are_held_innocent() -> None:
    blame = Blame(CrewLimits(lanes=4, workers=4), ProcessNames(Hosts()))
    for worker in range(9):
        assert blame.lost_unit(worker, (worker, 0), "signal 9", [7]) is None
        blame.progressed(worker + 1)
