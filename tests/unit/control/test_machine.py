"""The stories of a crew, by equality on the commands."""

from __future__ import annotations

import pytest

from holdfast.control.machine import BrokenInvariant, CrewLimits, Machine
from holdfast.control.protocol.commands import EndRun, FailRun, KillWorker, MakeArena, Send, StartWorker
from holdfast.control.protocol.events import (
    DrainRequested,
    Measured,
    ScaleRequested,
    Ticked,
    WorkerFrozen,
    WorkerHung,
    WorkerLost,
    WorkerStarted,
)
from holdfast.control.protocol.messages import Finished, Leave, Leaving, Pause, Paused, Ready, Refuse, Seeded
from holdfast.errors import ConfigError
from tests.unit.control.driven import Driven, install, pause, ready, to, welcome


def test_start_of_two_workers() -> None:
    run = Driven()
    assert run.started() == [StartWorker(0, 0, 0), StartWorker(1, 1, 0)]
    assert run(WorkerStarted(0, 4711)) == []
    assert run(ready(1)) == [MakeArena(4096, 0), welcome(1, seed=True)]
    assert run(ready(0)) == []
    assert run(Seeded(1)) == [welcome(0), *to(install(1, [0, 1], [0, 0, 1, 1]), 0, 1)]
    assert run.told == (
        "the arena holds the weights of worker 1: generation 1 begins at step 0, "
        "worker 0 drives lanes 0-1, worker 1 drives lanes 2-3"
    )


def test_generation_1_does_not_wait_for_ever() -> None:
    run = Driven(workers=3, join_grace=2.0)
    run.started()
    run(ready(0), Seeded(0))
    assert run(ready(1)) == [welcome(1)]
    assert run(Ticked(), after=1.0) == []
    assert run(Ticked(), after=1.0) == to(install(1, [0, 1], [0, 0, 1, 1]), 0, 1)
    assert run(ready(2)) == [welcome(2), *pause(2, 0, 1)]


def test_kill() -> None:
    run = Driven(workers=3).begun()
    assert run(WorkerLost(1, "signal", 9, 3, (3, 1), [7])) == [StartWorker(3, 1, 0), *pause(2, 0, 2)]
    assert run.told == "worker 1 lost (signal 9): worker 3 starts in its place; generation 2 with workers 0 and 2"
    assert run.quiet(2, 0) == []
    assert run.quiet(2, 2) == to(install(2, [0, 2], [0, 0, 2, 2]), 0, 2)
    assert run(ready(3)) == [welcome(3), *pause(3, 0, 2)]
    assert run.quiet(3, 0, 2) == to(install(3, [0, 2, 3], [0, 0, 2, 3], rows=[0, 2, 1]), 0, 2, 3)


def test_two_are_lost_during_one_change() -> None:
    run = Driven(workers=3).begun()
    run(WorkerLost(1, "signal", 9))
    run.quiet(2, 0)
    assert run(WorkerLost(2, "signal", 9)) == [StartWorker(4, 2, 0), Send(0, install(2, [0], [0] * 4))]


def test_everybody_is_lost() -> None:
    run = Driven().begun()
    run(WorkerLost(0, "signal", 9))
    assert run(WorkerLost(1, "signal", 9)) == [StartWorker(3, 1, 0)]
    assert "generation 2 with whoever comes first" in run.told
    assert run(ready(3)) == [welcome(3), Send(3, install(2, [3], [3] * 4, rows=[1]))]


def test_the_seeding_worker_is_lost() -> None:
    run = Driven()
    run.started()
    run(ready(0), ready(1))
    assert run(WorkerLost(0, "signal", 9)) == [StartWorker(2, 0, 0), welcome(1, seed=True)]
    assert run(Seeded(0)) == []


def test_old_quiet_is_no_quiet() -> None:
    run = Driven().begun()
    run(ScaleRequested(3), ready(2))
    run.quiet(2, 0, 1)
    run(WorkerLost(2, "signal", 9))
    assert run.quiet(2, 0, 1) == []
    assert run.quiet(3, 0, 1) == to(install(3, [0, 1], [0, 0, 1, 1]), 0, 1)


def test_messages_that_got_lost_are_said_again() -> None:
    run = Driven(workers=2, repeat=0.5)
    run.started()
    run(ready(0))
    assert run(Ticked()) == []
    assert run(Ticked(), after=0.5) == [welcome(0, seed=True)]
    run(Seeded(0))
    run(ready(1))
    assert run(ready(1)) == [welcome(1), Send(1, install(1, [0, 1], [0, 0, 1, 1]))]
    assert run(Paused(0, 1, 0)) == [Send(0, install(1, [0, 1], [0, 0, 1, 1]))]
    run(WorkerLost(1, "signal", 9))
    assert run(Ticked()) == []
    assert run(Ticked(), after=0.5) == pause(2, 0)
    assert run(Ticked()) == []


def test_the_script_states_its_lanes() -> None:
    run = Driven(lanes=4, workers=3)
    run.started()
    first = run(Ready(0, {}, "g", "m", 100, lanes=2))
    assert MakeArena(100, 0) in first
    assert Send(2, Leave(2, "scaled down to 2")) in first
    run(Seeded(0))
    assert run(Ready(1, {}, "g", "m", 100, lanes=2))[-1] == Send(1, install(1, [0, 1], [0, 1]))
    assert "the script has 2 lanes" in run.machine.story.tail(20)


def test_leave() -> None:
    run = Driven().begun()
    assert run(Leaving(0, "SIGTERM")) == [StartWorker(2, 2, 0), *pause(2, 0, 1)]
    assert run(Leaving(0, "SIGTERM")) == []
    run.quiet(2, 1)
    assert run.quiet(2, 0) == [Send(0, Leave(0, "SIGTERM")), Send(1, install(2, [1], [1] * 4))]
    assert run.quiet(2, 0) == [Send(0, Leave(0, "SIGTERM"))]
    assert run(WorkerLost(0, "exit", 0)) == []
    assert run.machine.snapshot().lost == 0


def test_the_last_one_leaves_only_when_somebody_else_is_there() -> None:
    run = Driven(workers=1).begun()
    assert run(Leaving(0, "SIGTERM")) == [StartWorker(1, 1, 0)]
    assert run(ready(1)) == [welcome(1), *pause(2, 0)]
    assert run.quiet(2, 0) == [Send(0, Leave(0, "SIGTERM")), Send(1, install(2, [1], [1] * 4))]


def test_scale_up() -> None:
    run = Driven().begun()
    assert run(ScaleRequested(4)) == [StartWorker(2, 2, 0), StartWorker(3, 3, 0)]
    assert run.told == "4 workers were asked for instead of 2: workers 2 and 3 start"
    assert run(ready(3)) == [welcome(3), *pause(2, 0, 1)]
    assert run(ready(2)) == [welcome(2)]
    assert run.quiet(2, 0, 1) == to(install(2, [0, 1, 2, 3], [0, 1, 2, 3]), 0, 1, 2, 3)


def test_scale_down() -> None:
    run = Driven(workers=3).begun()
    assert run(ScaleRequested(1)) == pause(2, 0, 1, 2)
    assert run.told == "1 worker was asked for instead of 3: workers 1 and 2 will leave; generation 2 with worker 0"
    assert run.quiet(2, 0, 1, 2) == [
        Send(1, Leave(1, "scaled down to 1")), Send(2, Leave(2, "scaled down to 1")), Send(0, install(2, [0], [0] * 4)),
    ]


def test_scale_down_lets_newcomers_go_first() -> None:
    run = Driven().begun()
    run(ScaleRequested(3))
    assert run(ScaleRequested(2)) == [Send(2, Leave(2, "scaled down to 2"))]
    assert run(ready(2)) == [Send(2, Leave(2, "scaled down to 2"))]


@pytest.mark.parametrize(("workers", "why"), [
    (5, "5 workers were asked for, but there are only 4 lanes: still 2"),
    (0, "0 workers were asked for, but a run needs one: still 2"),
])
def test_scale_to_what_cannot_be(workers: int, why: str) -> None:
    run = Driven().begun()
    assert run(ScaleRequested(workers)) == []
    assert run.told == why


def test_drain() -> None:
    run = Driven(workers=3).begun()
    run(WorkerLost(2, "signal", 9))
    assert run(DrainRequested("Ctrl-C", 2)) == [Send(3, Leave(3, "the run is ending"))]
    assert run.quiet(2, 0, 1) == to(install(2, [0, 1], [0, 0, 1, 1], stop=4), 0, 1)
    assert run(WorkerLost(0, "signal", 9)) == pause(3, 1)
    assert run.quiet(3, 1) == [Send(1, install(3, [1], [1] * 4, stop=4))]
    assert run(Finished(1, 3, {"steps": 4})) == [EndRun("ended early (Ctrl-C)", {"steps": 4}, 2)]
    assert run(Ticked()) == []


def test_drain_before_the_first_step() -> None:
    run = Driven()
    run.started()
    assert run(DrainRequested("Ctrl-C", 2)) == [EndRun("ended before its first step (Ctrl-C)", {}, 2)]


def test_drain_with_nobody_left_needs_one_to_end_it() -> None:
    run = Driven().begun()
    run(DrainRequested("Ctrl-C"), WorkerLost(0, "signal", 9))
    assert run(WorkerLost(1, "signal", 9)) == [StartWorker(2, 0, 0)]
    assert run(ready(2)) == [welcome(2), Send(2, install(2, [2], [2] * 4, rows=[0], stop=1))]


def test_the_end_has_the_result_of_the_lead() -> None:
    run = Driven().begun()
    assert run(Finished(1, 1, {"loss": 2.0})) == []
    assert run(WorkerLost(1, "exit", 0)) == []
    assert run(Finished(0, 1, {"loss": 1.0})) == [EndRun("the script has ended", {"loss": 1.0})]


def test_the_script_goes_on_to_another_training() -> None:
    run = Driven().begun()
    assert run(Finished(1, 1, {"loss": 2.0}, {"n": "3"})) == []
    assert run.told == "worker 1 has finished a training, and begins another one"
    end = EndRun("the training has ended", {"loss": 1.0}, again=[{"n": "3"}, {"n": "4"}])
    assert run(Finished(0, 1, {"loss": 1.0}, {"n": "4"})) == [end]
    assert run.told.endswith(": the script goes on to another training")


def test_no_training_follows_one_that_was_ended_early() -> None:
    run = Driven(workers=1).begun()
    run(DrainRequested("Ctrl-C", 2))
    run.quiet(2, 0)
    assert run(Finished(0, 2, {}, {"n": "3"})) == [EndRun("ended early (Ctrl-C)", {}, 2)]


@pytest.mark.parametrize("again", [None, {"n": "3"}])
def test_a_script_that_goes_on_in_one_worker_only(again: dict[str, str] | None) -> None:
    run = Driven().begun()
    run(Finished(1, 1, {}, again))
    (failed,) = run(Finished(0, 1, {}, {"n": "3"} if again is None else None))
    goes_on, ends = (0, 1) if again is None else (1, 0)
    assert failed == FailRun(
        "OutOfSync",
        f"Worker {goes_on} calls hf.join() again, for another training, where worker {ends} has ended the script. "
        "Every worker must make the same trainings: let their number follow from the script and its arguments, or from "
        "run.evaluate and what run.keep holds.",
    )


def test_how_stale_pushes_were_is_said_by_whoever_has_seen_them() -> None:
    """On a machine that only mirrors the state nobody has, and the lead may be there."""
    run = Driven(workers=2, sync="async").begun()
    run(Finished(1, 1, {"loss": 2.0, "staleness": [6, 2], "staleness_mean": 0.25, "staleness_most": 1}))
    seen = {"loss": 1.0, "staleness": [6, 2], "staleness_mean": 0.25, "staleness_most": 1}
    assert run(Finished(0, 1, {"loss": 1.0})) == [EndRun("the script has ended", seen)]


def test_the_lead_is_lost_before_it_finished() -> None:
    run = Driven().begun()
    run(Finished(1, 1, {"loss": 2.0}))
    assert run(WorkerLost(0, "signal", 9)) == [StartWorker(2, 0, 0)]
    assert run(ready(2)) == [welcome(2), Send(2, install(2, [2], [2] * 4, rows=[0]))]
    assert run(Finished(2, 2, {"loss": 3.0})) == [EndRun("the script has ended", {"loss": 3.0})]


def test_another_is_lost_after_the_lead_finished() -> None:
    run = Driven(workers=3).begun()
    run(Finished(0, 1, {"loss": 1.0}))
    assert run(WorkerLost(1, "signal", 9)) == pause(2, 2)
    assert run(Finished(2, 1, {})) == [EndRun("the script has ended", {"loss": 1.0})]


def test_a_script_that_never_trains() -> None:
    run = Driven()
    run.started()
    run(Finished(1, 0, {"b": 1}))
    assert run(Finished(0, 0, {"a": 1})) == [EndRun("the script has ended without a training step", {"a": 1})]


def test_frozen() -> None:
    run = Driven(frozen_limit=3.0).begun()
    assert run(WorkerFrozen(1, 2.9)) == []
    how = "stopped by the system for 3.1 s"
    assert run(WorkerFrozen(1, 3.1)) == [KillWorker(1, how), StartWorker(2, 2, 0), *pause(2, 0)]
    assert run.told == (
        f"worker 1 is {how} (limit 3.0 s) and is killed: worker 2 starts in its place; generation 2 with worker 0"
    )
    assert run(WorkerFrozen(1, 3.2)) == []
    assert run.quiet(2, 0) == []
    assert run.quiet(2, 1) == []  # it went on before it was killed: no reason to trust it
    assert run(WorkerLost(1, "signal", 9)) == [Send(0, install(2, [0], [0] * 4))]


def test_hung_in_a_unit() -> None:
    run = Driven().begun()
    how = "no progress for 30.0 s at model.py:3"
    hung = WorkerHung(1, 30.0, "model.py:3", (3, 2), [9])
    assert run(hung) == [KillWorker(1, how), StartWorker(2, 2, 0), *pause(2, 0)]


def test_numerics_refused() -> None:
    run = Driven()
    run.started()
    run(ready(0))
    why = (
        "worker 1 does not compute the bits of this run: threads is 2, but 1 on worker 0; "
        "golden computation is bb22, but aa11 on worker 0. "
        "Start it on a machine, and with settings, where these are the same."
    )
    assert run(ready(1, threads="2", golden="bb22")) == [Send(1, Refuse(1, why))]
    assert run(ready(1, threads="2", golden="bb22")) == [Send(1, Refuse(1, why))]
    assert run(Seeded(0)) == [Send(0, install(1, [0], [0] * 4))]
    assert run(WorkerLost(1, "exit", 2)) == []
    assert run(ScaleRequested(2)) == [StartWorker(2, 1, 0)]  # somebody wants it tried again


def test_balance() -> None:
    run = Driven(lanes=6, settle=1.0).begun()
    slow = {0: 0.1, 1: 0.4}
    assert run(Measured(1, slow)) == []
    assert run(Measured(2, slow), after=0.5) == []
    assert run(Measured(3, slow), after=0.5) == pause(2, 0, 1)
    assert run.quiet(2, 0, 1) == to(install(2, [0, 1], [0, 0, 0, 0, 0, 1]), 0, 1)
    assert run(Measured(4, slow)) == []


def test_a_loss_overtakes_balance() -> None:
    run = Driven(lanes=6, settle=0.0).begun()
    run(*[Measured(1, {0: 0.1, 1: 0.4})] * 2)
    run(WorkerLost(1, "signal", 9))
    assert run.quiet(2, 0) == [Send(0, install(2, [0], [0] * 6))]


def test_snapshot() -> None:
    run = Driven().begun()
    run(WorkerStarted(0, 4711), Measured(5, {}), WorkerLost(1, "signal", 9))
    state = run.machine.snapshot()
    assert (state.generation, state.step, state.members, state.drivers) == (1, 5, [0, 1], [0, 0, 1, 1])
    assert [(p.worker, p.pid, p.row, p.stage, p.lanes) for p in state.people] == [
        (0, 4711, 0, "member", [0, 1]), (2, 0, 1, "starting", []),
    ]
    assert (state.wanted, state.lost, state.changing, state.waiting, state.stopping) == (2, 1, True, [0], False)


def test_events_about_nobody_lead_to_nothing() -> None:
    run = Driven().begun()
    for event in (
        ready(9), Seeded(9), Seeded(0), Paused(9, 1, 0), Paused(0, 7, 0), Leaving(9, "x"), Finished(9, 1, {}),
        WorkerLost(9, "exit", 1), WorkerFrozen(9, 99.0), WorkerHung(9, 99.0, "x"), WorkerStarted(9, 1),
    ):
        assert run(event) == []


def test_more_workers_than_lanes() -> None:
    with pytest.raises(ConfigError) as caught:
        CrewLimits(lanes=2, workers=3)
    assert str(caught.value) == (
        "workers = 3: there are only 2 lanes to drive, so some workers would idle (set by default). "
        "Use --workers 2, or --lanes 3 (this changes the result)."
    )


def test_a_broken_invariant_tells_the_story() -> None:
    run = Driven().begun()
    run.machine._run.crew.drivers = (0, 0, 1)
    with pytest.raises(BrokenInvariant) as caught:
        run(Ticked())
    assert str(caught.value).startswith("3 of 4 lanes have a driver; after Ticked(). The story so far:\n")
    assert "generation 1 begins at step 0" in str(caught.value)


def test_pause_is_not_sent_twice_to_the_quiet() -> None:
    run = Driven(workers=3, repeat=0.2).begun()
    run(WorkerLost(2, "signal", 9))
    run.quiet(2, 0)
    assert run(Ticked(), after=0.3) == [Send(1, Pause(2))]


def test_nothing_happens_before_the_start() -> None:
    assert Machine(CrewLimits(lanes=4, workers=2)).handle(Ticked(), 0.0) == []


def test_more_lanes_than_a_crew_can_have() -> None:
    run = Driven()
    run.started()
    (end,) = run(Ready(0, {}, "golden", "model", 4096, lanes=251))
    assert end == FailRun("ConfigError", "lanes = 251: must be 1 to 234 (set by hf.join). Use hf.join(lanes=4).")
    run = Driven()
    run.started()
    assert MakeArena(4096, 0) in run(Ready(0, {}, "golden", "model", 4096, lanes=234))


def test_a_generation_said_again_is_the_same_though_a_member_has_left() -> None:
    run = Driven().begun()
    run(Finished(1, 1, {}), WorkerLost(1, "exit", 0))
    assert run(Paused(0, 1, 3)) == to(install(1, [0, 1], [0, 0, 1, 1]), 0)
