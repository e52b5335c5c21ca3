"""Hosts that come late follow the crew first, and connections that break are made anew: by equality on the commands."""

from __future__ import annotations

from typing import Any

from holdfast.control.protocol.commands import FailRun, Send, StartWorker
from holdfast.control.protocol.events import (
    CatchUpEnded,
    DrainRequested,
    HostJoined,
    HostLevel,
    HostLost,
    LinkBroken,
    Measured,
    RunStarted,
    ScaleRequested,
    Ticked,
    WorkerLost,
)
from holdfast.control.protocol.messages import Finished, Install, Leave, Leaving, Paused, Reached, Seeded
from tests.unit.control.driven import Driven, install, pause, ready, to, welcome


def going(lanes: int = 4, workers: int = 2, **limits: Any) -> Driven:
    """One host at step 50, and a second one that has just joined with one worker, which is ready."""
    run = Driven(lanes=lanes, workers=workers, listening=True, repeat=0.5, join_grace=2.0, **limits).begun()
    run(HostLevel(0, 50), Measured(50, {}), HostJoined(1, "b", 1), after=1.0)
    return run


def donor() -> Install:
    """What worker 2 is told then."""
    return Install(2, [0, 1, 2], [0, 1, 2], [0, 0, 1, 1], [0, 0, 1], {}, summed=True, donor=0)


def following() -> Driven:
    """Host 1 follows host 0 in generation 2, and has no state yet."""
    run = going()
    run(ready(2))
    run.quiet(2, 0, 1, step=50)
    assert run(Ticked()) == [Send(2, donor())]
    return run


def test_a_host_that_comes_late_follows() -> None:
    run = going()
    assert run(ready(2))[1:] == [welcome(2), *pause(2, 0, 1)]
    assert run.told == "worker 2 is ready: host 1 is to follow; generation 2 with workers 0 and 1"
    two = Install(2, [0, 1], [0, 1], [0, 0, 1, 1], [0, 0], {}, summed=True)  # a lone host has to leave sums behind
    assert run.quiet(2, 0, 1, step=50) == to(two, 0, 1)
    assert run(Ticked()) == [Send(2, donor())]
    assert run.told == "host 1 follows host 0 until it has caught up"


def test_after_local_steps_it_has_caught_up_with_the_version_and_not_with_the_step() -> None:
    """Their rounds made one version each, so there are fewer of them."""
    run = following()
    run.machine._run.modes[-1] = Reached(1, "exact", version=12, step=40)
    assert run(Measured(60, {}), HostLevel(1, 27)) == []
    assert run(HostLevel(1, 31), after=1.0) == pause(3, 0, 1)


def test_it_is_taken_in_when_it_has_caught_up() -> None:
    run = following()
    assert run(Measured(60, {}), HostLevel(1, 55)) == []
    assert run(HostLevel(1, 59), after=1.0) == pause(3, 0, 1)
    assert run.told == "host 1 has caught up; generation 3 with workers 0, 1 and 2"
    run(HostLevel(0, 61))
    assert run.quiet(3, 0, 1, step=60) == []  # it may still come as far as its donor
    assert run(HostLevel(1, 60)) == []
    assert run(HostLevel(1, 61)) == pause(3, 2)  # now it has, and its workers are to be quiet as well
    taken = Install(3, [0, 1, 2], [0, 1, 2], [0, 0, 1, 2], [0, 0, 1], {}, summed=True)
    assert run.quiet(3, 2, step=61) == to(taken, 0, 1, 2)


def test_it_is_not_waited_for_for_ever() -> None:
    run = going()
    run(ready(2))
    run.quiet(2, 0, 1, step=50)
    run(Ticked(), HostLevel(1, 49), HostLevel(0, 51), after=0.6)
    run.quiet(3, 0, 1, step=50)
    assert run(Ticked(), after=1.0) == []
    assert run(Ticked(), after=1.0) == pause(3, 2)
    (first, *_) = run.quiet(3, 2, step=49)
    assert first == Send(0, Install(3, [0, 1, 2], [0, 1, 2], [0, 0, 1, 2], [0, 0, 1], {1: 0}, summed=True))


def test_with_several_hosts_in_the_crew_nothing_has_to_change_first() -> None:
    run = Driven(lanes=4, workers=1, hosts=2, listening=True)
    run.started()
    run(HostJoined(1, "b", 1), ready(0), ready(1))
    run(Seeded(0), HostLevel(0, 0), HostLevel(1, 0), Measured(9, {}), HostJoined(2, "c", 1))
    assert run(ready(2))[1:] == [
        welcome(2), Send(2, Install(1, [0, 1, 2], [0, 1, 2], [0, 0, 1, 1], [0, 1, 2], {}, donor=0)),
    ]


def test_workers_of_a_host_begin_to_follow_together() -> None:
    run = Driven(lanes=4, workers=2, listening=True, join_grace=2.0).begun()
    run(HostLevel(0, 50), Measured(50, {}), HostJoined(1, "b", 2), after=1.0)
    assert run(ready(2))[1:] == [welcome(2)]
    assert run(Ticked(), after=1.0) == []
    assert run(ready(3)) == [welcome(3), *pause(2, 0, 1)]
    run.quiet(2, 0, 1, step=50)
    told = Install(2, [0, 1, 2, 3], [0, 1, 2, 3], [0, 0, 1, 1], [0, 0, 1, 1], {}, summed=True, donor=0)
    assert run(Ticked()) == to(told, 2, 3)


def test_a_host_does_not_wait_for_its_last_worker_for_ever() -> None:
    run = Driven(lanes=4, workers=2, listening=True, join_grace=2.0).begun()
    run(HostLevel(0, 50), Measured(50, {}), HostJoined(1, "b", 2), ready(2), after=1.0)
    assert run(Ticked(), after=2.0) == pause(2, 0, 1)


def test_others_wait_for_their_turn() -> None:
    run = going(lanes=8)
    run(HostJoined(2, "c", 1), ready(2))
    run.quiet(2, 0, 1, step=50)
    run(Ticked())
    assert run(ready(3))[1:] == [welcome(3)]
    assert run(Ticked(), after=1.0) == []
    assert [person.stage for person in run.machine.snapshot().people] == ["member", "member", "waiting", "waiting"]


def test_what_it_was_told_is_said_again() -> None:
    run = following()
    assert run(ready(2)) == [welcome(2), Send(2, donor())]


def test_following_comes_to_nothing() -> None:
    run = following()
    assert run(CatchUpEnded(1, "host 0 gives no more (it hung up)"), after=0.6) == pause(3, 0, 1)
    assert run.told == (
        "host 1 follows nobody any more (host 0 gives no more (it hung up)): generation 3 with workers 0, 1 and 2"
    )
    assert run(CatchUpEnded(1, "again")) == []
    assert run.quiet(3, 0, 1, step=50) == pause(3, 2)
    assert run.quiet(3, 2, step=0)[0] == Send(
        0, Install(3, [0, 1, 2], [0, 1, 2], [0, 0, 1, 2], [0, 0, 1], {1: 0})
    )


def test_the_donor_is_lost_and_who_followed_goes_on_from_where_it_is() -> None:
    run = going()
    run(ready(2))
    run.quiet(2, 0, 1, step=50)
    run(Ticked(), HostLevel(1, 45))
    lost = run(HostLost(0, "its connection was closed"))
    assert lost == [*pause(3, 2)]
    assert run.quiet(3, 2, step=45) == [Send(2, Install(3, [2], [2], [2] * 4, [1], {}))]


def test_the_worker_that_followed_is_lost_and_its_successor_follows_anew() -> None:
    run = following()
    assert run(WorkerLost(2, "signal", 9)) == [StartWorker(3, 2, 1)]
    run(ready(3), after=1.0)
    assert run.told == "worker 3 is ready: host 1 is to follow anew; generation 3 with workers 0 and 1"
    run.quiet(3, 0, 1, step=51)
    (again,) = run(Ticked())
    assert isinstance(again, Send)
    assert isinstance(again.message, Install)
    assert (again.worker, again.message.generation, again.message.donor) == (3, 3, 0)


def test_who_follows_leaves_at_the_end() -> None:
    run = following()
    assert Send(2, Leave(2, "the run is ending")) in run(DrainRequested("Ctrl-C"))


def test_who_followed_and_was_let_go_is_to_be_quiet_before_others_take_its_place() -> None:
    run = following()
    assert run(Leaving(2, "SIGTERM")) == [Send(2, Leave(2, "SIGTERM")), StartWorker(3, 3, 1)]
    run(HostLevel(1, 60), ready(3), after=1.0)
    run(HostLevel(0, 60), Ticked())
    assert run.quiet(3, 0, 1, step=60) == pause(3, 2)
    assert run.quiet(3, 2, step=60)[0] == Send(2, Leave(2, "SIGTERM"))
    assert run.machine.snapshot().members == [0, 1, 3]


def test_who_follows_may_come_to_the_end_of_the_script() -> None:
    run = following()
    run(HostLevel(1, 60), HostLevel(0, 60), after=1.0)
    run.quiet(3, 0, 1, step=60)
    assert run(Finished(2, 2, {})) == to(install(3, [0, 1], [0, 0, 1, 1]), 0, 1)
    assert run(WorkerLost(2, "exit", 0)) == []
    assert run.machine.snapshot().lost == 0


# ---------------------------------------------------------------- connections


def test_a_broken_connection_makes_a_new_generation() -> None:
    run = Driven(workers=2).begun()
    run(Ticked(), after=1.0)
    assert run(LinkBroken(0, "reset by peer")) == pause(2, 0, 1)
    assert run.told == "host 0 has lost a connection (reset by peer); generation 2 with workers 0 and 1"
    assert run(LinkBroken(0, "reset by peer")) == []  # the other end has noticed, too
    assert run.quiet(2, 0, 1) == to(install(2, [0, 1], [0, 0, 1, 1]), 0, 1)
    assert run(Ticked(), after=1.0) == []


def test_broken_connections_do_not_make_generations_without_end() -> None:
    run = Driven(workers=2, repeat=0.5).begun()
    assert run(LinkBroken(0, "reset by peer")) == []
    assert run(Ticked()) == []
    assert run(Ticked(), after=0.5) == pause(2, 0, 1)


def test_a_connection_of_a_host_without_members() -> None:
    run = Driven(workers=2).begun()
    assert run(LinkBroken(7, "reset by peer"), after=1.0) == []


# ---------------------------------------------------------------- hosts that cannot start anybody anew


def test_nobody_takes_the_place_of_a_lost_worker() -> None:
    run = Driven(workers=2)
    run(RunStarted())
    assert run(HostJoined(0, "here", 2, refills=False)) == [StartWorker(0, 0, 0), StartWorker(1, 1, 0)]
    run(ready(0), ready(1), Seeded(0))
    assert run(WorkerLost(1, "signal", 9)) == pause(2, 0)
    assert run.told == (
        "worker 1 lost (signal 9): nobody can take the place of who is lost; generation 2 with worker 0"
    )
    assert run(Paused(0, 2, 3)) == [Send(0, install(2, [0], [0] * 4))]
    assert run(ScaleRequested(3)) == []
    assert run(WorkerLost(0, "signal", 9)) == [FailRun(
        "CrewLost",
        "No worker is left at step 3, and nobody can take their place: all that were started are gone. "
        "Look at the ends of logs/worker-*.log, and start the run again.",
    )]


def test_another_host_takes_the_place() -> None:
    run = Driven(lanes=2, workers=1, listening=True).begun()
    run(HostJoined(1, "b", 1, refills=False))
    assert run(WorkerLost(1, "signal", 9)) == []
    assert run.told == "worker 1 on host 1 lost (signal 9): nobody can take the place of who is lost on host 1"
    assert run(ScaleRequested(2)) == [StartWorker(2, 1, 0)]
