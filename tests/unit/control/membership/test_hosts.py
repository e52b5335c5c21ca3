"""The stories of a run on several hosts, by equality on the commands."""

from __future__ import annotations

import pytest

from holdfast.control.membership.hosts import spread
from holdfast.control.membership.roster import CrewLimits
from holdfast.control.protocol.commands import (
    Command,
    EndRun,
    FailRun,
    KillWorker,
    MakeArena,
    ReleaseHost,
    Send,
    StartWorker,
)
from holdfast.control.protocol.events import (
    DrainRequested,
    HostJoined,
    HostLeaving,
    HostLevel,
    HostLost,
    Measured,
    RunStarted,
    ScaleRequested,
    Ticked,
    WorkerFrozen,
    WorkerLost,
)
from holdfast.control.protocol.messages import Finished, Leave, Leaving, Paused, Ready, Refuse, Seeded
from holdfast.core.endings import SKIPPED, STEPPED, TURN_ENDED
from holdfast.errors import ConfigError
from tests.unit.control.driven import Driven, install, pause, ready, to, welcome


def two_hosts(lanes: int = 4, own: int = 2, other: int = 2, **limits: int) -> Driven:
    """Host 0 and host 1 in generation 1, at step 0, both with the state. Workers of host 0 have the first numbers."""
    run = Driven(lanes=lanes, workers=own, hosts=2, listening=True, follow=False, **limits)
    run.started()
    run(HostJoined(1, "b", other))
    run(*map(ready, range(own + other)))
    run(Seeded(0), HostLevel(0, 0))
    assert run.machine.snapshot().generation == 1
    run(HostLevel(1, 0))
    return run


def quiet(run: Driven, generation: int, *said: tuple[int, int, int]) -> list[Command]:
    """(worker, host, level): these say that they are quiet, their hosts how far they are."""
    commands: list[Command] = []
    for worker, host, level in said:
        commands = run(HostLevel(host, level), Paused(worker, generation, level))
    return commands


def test_start_on_two_hosts() -> None:
    run = Driven(hosts=2, listening=True, follow=False)
    assert run(RunStarted()) == []
    assert run(HostJoined(0, "a", 2)) == [StartWorker(0, 0, 0), StartWorker(1, 1, 0)]
    assert run.told == "the run starts with 2 of 4 possible workers: 1 more host is awaited; workers 0 and 1 start"
    assert run(ready(0)) == [MakeArena(4096, 0), welcome(0, seed=True)]
    run(ready(1), Seeded(0), HostLevel(0, 0))
    assert run(Ticked(), after=60.0) == []  # hosts are waited for however long they take
    assert run(HostJoined(1, "b", 2)) == [StartWorker(2, 2, 1), StartWorker(3, 3, 1)]
    assert run.told == "host 1 (b) joined with 2 slots: workers 2 and 3 start on host 1"
    assert run(ready(3)) == [MakeArena(4096, 1), welcome(3)]
    assert run(ready(2)) == [
        welcome(2), *to(install(1, [0, 1, 2, 3], [0, 1, 2, 3], hosts=[0, 0, 1, 1], sources={1: 0}), 0, 1, 2, 3),
    ]
    assert run.told == (
        "worker 2 is ready: generation 1 begins at step 0, worker 0 drives lane 0, worker 1 drives lane 1, "
        "worker 2 drives lane 2, worker 3 drives lane 3; host 1 gets the state from host 0"
    )


def test_once_the_hosts_are_there_their_other_workers_have_a_grace() -> None:
    run = Driven(workers=1, hosts=2, listening=True, join_grace=2.0)
    run.started()
    run(ready(0), Seeded(0))
    run(HostJoined(1, "b", 2), after=60.0)
    assert run(ready(1)) == [MakeArena(4096, 1), welcome(1)]
    assert run(Ticked(), after=1.9) == []
    begun = run(Ticked())
    assert begun == to(install(1, [0, 1], [0, 0, 1, 1], hosts=[0, 1], sources={1: 0}), 0, 1)


def test_a_machine_without_workers_of_its_own() -> None:
    run = Driven(workers=0, listening=True, follow=False)
    assert run(RunStarted()) == []
    assert run.told == "the run waits for a host to join: this machine has no workers"
    assert run(ScaleRequested(2)) == []
    assert run.told == "2 workers were asked for, but the hosts have room for 0: still 0"
    assert run(HostJoined(1, "b", 1)) == [StartWorker(0, 0, 1)]
    assert run(ready(0)) == [MakeArena(4096, 1), welcome(0, seed=True)]
    assert run(Seeded(0)) == [Send(0, install(1, [0], [0] * 4, hosts=[1]))]


def test_no_workers_without_listening() -> None:
    with pytest.raises(ConfigError, match=r"workers = 0: a run needs at least one worker"):
        CrewLimits(lanes=4, workers=0)


def test_a_host_joins_a_run_that_is_going() -> None:
    run = Driven(lanes=4, workers=2, listening=True, follow=False).begun()
    assert run(HostJoined(1, "b", 1)) == [StartWorker(2, 2, 1)]
    assert run(ready(2)) == [MakeArena(4096, 1), welcome(2), *pause(2, 0, 1)]
    assert quiet(run, 2, (0, 0, 7), (1, 0, 8)) == to(
        install(2, [0, 1, 2], [0, 0, 1, 2], hosts=[0, 0, 1], sources={1: 0}), 0, 1, 2
    )


def test_more_slots_than_lanes() -> None:
    run = Driven(lanes=2, workers=2, listening=True, follow=False).begun()
    assert run(HostJoined(1, "b", 4)) == []
    assert run.told == "host 1 (b) joined with 4 slots: a spare, since every lane has a worker"
    assert run(WorkerLost(1, "signal", 9)) == [StartWorker(2, 1, 1), *pause(2, 0)]  # on the emptier host
    assert "worker 2 starts in its place on host 1" in run.told


def test_before_the_first_generation_hosts_get_an_even_share() -> None:
    run = Driven(lanes=4, workers=4, hosts=2, listening=True, follow=False)
    run.started()
    assert run(HostJoined(1, "b", 4)) == [
        Send(2, Leave(2, "its place is on another host now")), Send(3, Leave(3, "its place is on another host now")),
        StartWorker(4, 4, 1), StartWorker(5, 5, 1),
    ]


def test_a_host_is_lost() -> None:
    run = two_hosts()
    run(Measured(5, {}))
    assert run(HostLost(1, "no sign of life for 1.5 s, limit 1.5 s")) == pause(2, 0, 1)
    assert run.told == (
        "host 1 lost (no sign of life for 1.5 s, limit 1.5 s) with workers 2 and 3: generation 2 with workers 0 and 1"
    )
    assert quiet(run, 2, (0, 0, 5), (1, 0, 6)) == to(install(2, [0, 1], [0, 0, 1, 1]), 0, 1)
    assert run.machine.snapshot().lost == 2
    for late in (Paused(2, 2, 5), WorkerLost(3, "signal", 9), HostLevel(1, 9), HostLost(1, "again"), ready(2)):
        assert run(late) == []


def test_a_lost_host_is_blamed_on_nobody() -> None:
    run = Driven(lanes=4, workers=1, listening=True, follow=False, luck_budget=0).begun()
    for number in range(1, 6):
        run(HostJoined(number, "b", 1), HostLost(number, "its connection was closed"))
    assert not run.machine.over


def test_what_a_lost_host_had_is_done_elsewhere() -> None:
    run = two_hosts(lanes=4, own=2, other=1)
    assert run(HostLost(1, "gone")) == pause(2, 0, 1)
    assert run(HostJoined(2, "c", 1)) == [StartWorker(3, 2, 2)]


def test_hosts_that_lag_behind_get_the_state_from_the_best() -> None:
    run = two_hosts(lanes=4, own=1, other=1)
    run(HostJoined(2, "c", 1), ready(2), HostLevel(2, -1))
    assert quiet(run, 2, (0, 0, 5), (1, 1, 6)) == to(
        install(2, [0, 1, 2], [0, 0, 1, 2], hosts=[0, 1, 2], sources={0: 1, 2: 1}), 0, 1, 2
    )


def test_levels_decide_when_all_are_quiet() -> None:
    """What a host said of itself earlier is old news."""
    run = two_hosts(lanes=4, own=2, other=1)
    run(ScaleRequested(2))
    assert quiet(run, 2, (0, 0, 5), (2, 1, 5), (1, 0, 6))[-1] == Send(
        2, install(2, [0, 2], [0, 0, 2, 2], rows=[0, 2], hosts=[0, 1], sources={1: 0})
    )


def test_the_last_host_with_the_state_is_lost() -> None:
    run = Driven(lanes=4, workers=0, listening=True, follow=False)
    run(RunStarted(), HostJoined(1, "b", 1), ready(0), Seeded(0), HostLevel(1, 0), HostJoined(2, "c", 1), ready(1))
    quiet(run, 2, (0, 1, 12))
    assert run(HostLost(1, "its connection was closed")) == pause(3, 1)
    assert quiet(run, 3, (1, 2, -1)) == [FailRun(
        "ResourceError",
        "The state of the run is lost at step 12: host 1 (b) was lost (its connection was closed), and no host that is "
        "left had all of it. Start the run again; as soon as two hosts hold the state, the loss of one costs no step.",
    )]


def test_a_host_that_has_fetched_the_state_goes_on_alone() -> None:
    run = Driven(lanes=4, workers=0, listening=True, follow=False)
    run(RunStarted(), HostJoined(1, "b", 1), ready(0), Seeded(0), HostLevel(1, 0), HostJoined(2, "c", 1), ready(1))
    quiet(run, 2, (0, 1, 12))
    run(HostLost(1, "its connection was closed"))
    assert quiet(run, 3, (1, 2, 12)) == [Send(1, install(3, [1], [1] * 4, hosts=[2]))]


def test_a_host_that_holds_nothing_waits_for_one_that_does() -> None:
    """All workers of the only host with the state are lost: the others wait for their successor."""
    run = Driven(lanes=2, workers=1, listening=True, follow=False).begun()
    run(HostJoined(1, "b", 1), ready(1))
    assert quiet(run, 2, (0, 0, 3))[0] == Send(0, install(2, [0, 1], [0, 1], hosts=[0, 1], sources={1: 0}))
    assert run(HostLevel(0, 3), WorkerLost(0, "signal", 9)) == [StartWorker(2, 0, 0), *pause(3, 1)]
    assert quiet(run, 3, (1, 1, -1)) == []
    assert run(ready(2)) == [
        welcome(2), *to(install(3, [2, 1], [2, 1], rows=[0, 1], hosts=[0, 1], sources={1: 0}), 2, 1),
    ]


def test_the_seeding_host_is_lost() -> None:
    run = Driven(workers=0, listening=True, follow=False)
    run(RunStarted(), HostJoined(1, "b", 1), HostJoined(2, "c", 1))
    assert run(ready(0)) == [MakeArena(4096, 1), welcome(0, seed=True)]
    run(ready(1))
    assert run(HostLost(1, "gone")) == [MakeArena(4096, 2), welcome(1, seed=True)]


def test_the_seeded_host_is_lost_before_the_first_step() -> None:
    run = Driven(workers=0, listening=True, hosts=3)
    run(RunStarted(), HostJoined(1, "b", 1), HostJoined(2, "c", 1), ready(0), Seeded(0), ready(1))
    assert run(HostLost(1, "gone")) == [
        Send(1, Leave(1, "the weights of the run were lost with host 1")), StartWorker(2, 0, 2),
    ]
    assert run(ready(2)) == [welcome(2, seed=True)]


def test_a_host_leaves() -> None:
    run = two_hosts()
    assert run(HostLeaving(1, "SIGTERM")) == pause(2, 0, 1, 2, 3)
    assert run(HostLeaving(1, "SIGTERM")) == []
    assert run.told == "host 1 (b) is to leave (SIGTERM): generation 2 with workers 0 and 1"
    left = quiet(run, 2, (0, 0, 5), (1, 0, 5), (2, 1, 5), (3, 1, 5))
    assert left[:2] == [Send(2, Leave(2, "SIGTERM")), Send(3, Leave(3, "SIGTERM"))]
    assert run(WorkerLost(2, "exit", 0)) == []
    assert run(WorkerLost(3, "exit", 0)) == [ReleaseHost(1, "SIGTERM")]
    assert run.told == "host 1 is let go"
    assert run(HostLost(1, "its connection was closed")) == []
    assert run.machine.snapshot().lost == 0
    assert [host.host for host in run.machine.snapshot().hosts] == [0]


def test_the_only_host_with_the_state_stays_until_another_has_it() -> None:
    run = Driven(lanes=2, workers=0, listening=True, follow=False)
    run(RunStarted(), HostJoined(1, "b", 1), ready(0), Seeded(0), HostLevel(1, 0))
    assert run(HostLeaving(1, "SIGTERM")) == []
    assert run.told == "host 1 (b) is to leave (SIGTERM); it goes on until another host has the state of the run"
    assert run(HostJoined(2, "c", 1)) == [StartWorker(1, 1, 2)]
    run(ready(1))
    assert quiet(run, 2, (0, 1, 4))[0] == Send(0, install(2, [0, 1], [0, 1], hosts=[1, 2], sources={2: 1}))
    assert run(HostLevel(2, 4)) == pause(3, 0, 1)  # it has come: the other one may go
    assert quiet(run, 3, (0, 1, 4), (1, 2, 4)) == [
        Send(0, Leave(0, "SIGTERM")), Send(1, install(3, [1], [1, 1], hosts=[2])),
    ]
    assert run(WorkerLost(0, "exit", 0)) == [ReleaseHost(1, "SIGTERM")]


def test_a_spare_host_leaves_at_once() -> None:
    run = Driven(lanes=2, workers=2, listening=True, follow=False).begun()
    run(HostJoined(1, "b", 4))
    assert run(HostLeaving(1, "SIGTERM")) == [ReleaseHost(1, "SIGTERM")]


def test_a_worker_that_leaves_stays_on_while_only_its_host_has_the_state() -> None:
    run = Driven(lanes=2, workers=1, listening=True, follow=False).begun()
    run(HostJoined(1, "b", 1), Leaving(0, "SIGTERM"))
    run(ready(1))
    assert quiet(run, 2, (0, 0, 3))[0] == Send(0, install(2, [0, 1], [0, 1], hosts=[0, 1], sources={1: 0}))


def test_a_host_whose_workers_do_not_fit_is_let_go() -> None:
    run = Driven(lanes=4, workers=2, listening=True, follow=False).begun()
    run(HostJoined(1, "b", 1))
    (refuse,) = run(ready(2, threads="2"))
    assert isinstance(refuse, Send)
    assert isinstance(refuse.message, Refuse)
    assert run(WorkerLost(2, "exit", 2)) == [ReleaseHost(1, refuse.message.reason)]
    assert run(WorkerLost(1, "signal", 9))[0] == StartWorker(3, 1, 0)


@pytest.mark.parametrize(("workers", "shares"), [(1, [1, 0]), (2, [1, 1]), (3, [2, 1]), (4, [2, 2]), (6, [4, 2])])
def test_scaling_is_shared_out(workers: int, shares: list[int]) -> None:
    run = two_hosts(lanes=8)
    run(ScaleRequested(workers))
    state = run.machine.snapshot()
    staying = [person.host for person in state.people if person.stage != "leaving"]
    assert [staying.count(0), staying.count(1)] == shares
    assert state.wanted == workers


def test_who_joins_after_a_scaling_brings_its_own() -> None:
    run = two_hosts(lanes=8)
    run(ScaleRequested(3), HostJoined(2, "c", 2))
    assert run.machine.snapshot().wanted == 5


def test_the_share_of_a_lost_host_passes_to_others_with_room() -> None:
    run = two_hosts(lanes=8, own=1, other=2)
    run(ScaleRequested(1))
    quiet(run, 2, (0, 0, 3), (1, 1, 3), (2, 1, 3))
    run(WorkerLost(1, "exit", 0), WorkerLost(2, "exit", 0))
    assert run(HostLost(0, "gone")) == [StartWorker(3, 0, 1)]
    assert run.machine.snapshot().wanted == 1


def test_scaling_beyond_what_other_hosts_have() -> None:
    run = Driven(lanes=8, workers=0, listening=True, follow=False)
    run(RunStarted(), HostJoined(1, "b", 2))
    assert run(ScaleRequested(3)) == []
    assert run.told == "3 workers were asked for, but the hosts have room for 2: still 2"


def test_a_doomed_worker_of_a_lost_host_is_not_waited_for() -> None:
    run = two_hosts(lanes=4, own=1, other=1, frozen_limit=1)
    assert run(WorkerFrozen(1, 1.5))[0] == KillWorker(1, "stopped by the system for 1.5 s")
    assert quiet(run, 2, (0, 0, 3)) == []
    assert run(HostLost(1, "gone")) == [Send(0, install(2, [0], [0] * 4))]


def test_drain_ends_all_hosts_at_the_same_step() -> None:
    run = two_hosts(lanes=4, own=1, other=1)
    run(DrainRequested("Ctrl-C"))
    stop = install(2, [0, 1], [0, 0, 1, 1], hosts=[0, 1], sources={0: 1}, stop=8)
    assert quiet(run, 2, (0, 0, 6), (1, 1, 7)) == to(stop, 0, 1)
    run(Finished(0, 2, {"steps": 8}))
    assert run(Finished(1, 2, {"steps": 8})) == [EndRun("ended early (Ctrl-C)", {"steps": 8})]


def test_a_last_turn_that_hosts_have_ended_otherwise() -> None:
    run = two_hosts(lanes=4, own=1, other=1)
    run(Finished(0, 1, {"steps": 8, TURN_ENDED: [7, 6, STEPPED, 31]}))
    (failed,) = run(Finished(1, 1, {"steps": 8, TURN_ENDED: [7, 6, SKIPPED, 29]}))
    assert isinstance(failed, FailRun) and failed.kind == "OutOfSync" and failed.message.startswith(
        "Step 6 was ended by optimizer.step() in worker 0 (line 31 of the script) and by step.skip() in worker 1 (line "
        "29 of the script). Decide it by what is the same in every worker"
    )  # fmt: skip


def test_a_last_turn_that_hosts_have_ended_alike() -> None:
    run = two_hosts(lanes=4, own=1, other=1)
    run(Finished(0, 1, {"steps": 8, TURN_ENDED: [7, 7, STEPPED, 31]}))
    assert run(Finished(1, 1, {"steps": 8, TURN_ENDED: [7, 7, STEPPED, 31]})) == [
        EndRun("the script has ended", {"steps": 8})
    ]


def test_the_end_when_a_host_with_finished_workers_is_lost() -> None:
    run = two_hosts(lanes=4, own=2, other=2)
    run(Finished(2, 1, {}), Finished(3, 1, {}))
    assert run(HostLost(1, "gone")) == pause(2, 0, 1)  # sums of its last step may not have come
    run(Finished(0, 1, {"loss": 1.0}))
    assert run(Finished(1, 1, {})) == [EndRun("the script has ended", {"loss": 1.0})]


def test_the_lead_is_lost_with_its_host_after_the_others_finished() -> None:
    run = two_hosts(lanes=4, own=1, other=1)
    run(HostLevel(1, 9), Finished(1, 1, {"loss": 1.0}))
    assert run(HostLost(0, "gone")) == [StartWorker(2, 0, 1)]
    assert run(ready(2)) == [welcome(2), Send(2, install(2, [2], [2] * 4, rows=[0], hosts=[1]))]
    assert run(Finished(2, 2, {"loss": 1.0})) == [EndRun("the script has ended", {"loss": 1.0})]


def test_one_worker_a_host_where_there_may_be_only_one() -> None:
    run = Driven(lanes=4, workers=1, listening=True, alone="why").begun()
    assert run(HostJoined(1, "b", 4)) == [StartWorker(1, 1, 1)]
    assert run(ScaleRequested(3)) == []
    assert run.told == "3 workers were asked for, but why: still 2"


def test_the_script_has_fewer_lanes_than_hosts() -> None:
    run = Driven(lanes=4, workers=1, hosts=2, listening=True, follow=False)
    run.started()
    run(HostJoined(1, "b", 1))
    assert run(Ready(1, {}, "g", "m", 100, lanes=1)) == [Send(1, Leave(1, "scaled down to 1"))]
    assert run(Ready(0, {}, "g", "m", 100, lanes=1)) == [MakeArena(100, 0), welcome(0, seed=True)]
    assert run(Seeded(0)) == [Send(0, install(1, [0], [0]))]


def test_snapshot_shows_hosts() -> None:
    run = two_hosts()
    run(HostLevel(1, 4), HostLeaving(1, "SIGTERM"))
    state = run.machine.snapshot()
    assert [(host.host, host.name, host.slots, host.level, host.leaving) for host in state.hosts] == [
        (0, "here", 2, 0, ""), (1, "b", 2, 4, "SIGTERM"),
    ]
    assert [person.host for person in state.people] == [0, 0, 1, 1]


def test_a_number_that_is_taken_joins_once() -> None:
    run = two_hosts()
    assert run(HostJoined(1, "b", 2)) == []


def test_spread() -> None:
    assert spread(0, {0: 2, 1: 2}) == {0: 0, 1: 0}
    assert spread(9, {0: 2, 3: 1}) == {0: 2, 3: 1}
    assert spread(1, {0: 2, 3: 1}, first=[3]) == {0: 0, 3: 1}
    assert spread(4, {}) == {}


def test_the_run_does_not_go_back_while_a_host_has_something_newer() -> None:
    """Host 1 held step 3 when it lost its worker; host 0 is at step 50 when it loses its own."""
    run = two_hosts(lanes=2, own=1, other=1)
    run(HostLevel(1, 3), WorkerLost(1, "signal", 9))
    quiet(run, 2, (0, 0, 3))
    run(Measured(50, {}), ready(2))
    assert run(HostLevel(0, 50), WorkerLost(0, "signal", 9)) == [StartWorker(3, 0, 0)]
    assert run(Ticked(), after=60.0) == []
    assert run(ready(3))[-2:] == to(
        install(3, [3, 2], [3, 2], rows=[0, 1], hosts=[0, 1], sources={1: 0}), 3, 2
    )


def test_one_step_back_is_sooner_made_than_a_worker() -> None:
    run = two_hosts(lanes=2, own=1, other=1)
    run(Measured(50, {}), HostLevel(0, 50), WorkerLost(0, "signal", 9))
    assert quiet(run, 2, (1, 1, 49)) == [Send(1, install(2, [1], [1, 1], hosts=[1]))]


def test_the_run_goes_back_where_nothing_newer_can_be_had() -> None:
    run = two_hosts(lanes=2, own=1, other=1)
    run(HostLevel(1, 3), WorkerLost(1, "signal", 9))
    quiet(run, 2, (0, 0, 3))
    run(Measured(50, {}), ready(2), HostLevel(0, 50), WorkerLost(0, "signal", 9))
    assert run(HostLost(0, "gone")) == [Send(2, install(3, [2], [2, 2], rows=[1], hosts=[1]))]
