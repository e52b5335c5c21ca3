"""Hosts that cannot reach each other: who is let go, when, and what is said of it."""

from __future__ import annotations

from holdfast.control.protocol.commands import ReleaseHost
from holdfast.control.protocol.events import HostJoined, HostLevel, HostLost, HostUnreached, Ticked, WorkerLost
from holdfast.control.protocol.messages import Seeded
from tests.unit.control.driven import Driven, install, pause, ready, to
from tests.unit.control.membership.test_hosts import quiet, two_hosts

ADVICE = "let the port through the firewalls between them, or choose one that is open with --listen ADDRESS:PORT"
TOLD = ADVICE[0].upper() + ADVICE[1:] + "."


def blocked(host: int, other: int) -> HostUnreached:
    return HostUnreached(host, other, f"host {host} cannot reach host {other}: no answer from 10.0.0.{other}:7100")


def three_hosts(**limits: float) -> Driven:
    """Hosts 0, 1 and 2 with a worker each, in generation 1."""
    run = Driven(lanes=4, workers=1, hosts=3, listening=True, follow=False, **limits)
    run.started()
    run(HostJoined(1, "b", 1), HostJoined(2, "c", 1))
    run(*map(ready, range(3)))
    run(Seeded(0), HostLevel(0, 0))
    assert run.machine.snapshot().generation == 1
    run(HostLevel(1, 0), HostLevel(2, 0))
    return run


def test_of_two_hosts_the_newer_is_let_go_at_once_and_told_what_to_do() -> None:
    run = two_hosts()
    assert run(blocked(0, 1)) == [
        ReleaseHost(1, f"host 0 cannot reach host 1: no answer from 10.0.0.1:7100. {TOLD}", "lost"), *pause(2, 0, 1),
    ]
    assert run.told == (
        "host 0 cannot reach host 1: no answer from 10.0.0.1:7100; host 1 is let go (host 0 cannot reach it) with "
        f"workers 2 and 3: {ADVICE}; generation 2 with workers 0 and 1"
    )
    assert quiet(run, 2, (0, 0, 5), (1, 0, 6)) == to(install(2, [0, 1], [0, 0, 1, 1]), 0, 1)
    assert [host.host for host in run.machine.snapshot().hosts] == [0]


def test_also_when_it_is_the_newer_one_that_cannot_reach_the_other() -> None:
    run = two_hosts()
    run(blocked(1, 0))
    assert "; host 1 is let go (it cannot reach host 0) with workers 2 and 3: " in run.told


def test_among_several_the_one_goes_that_most_reports_are_about() -> None:
    run = three_hosts(unreached=6.0)
    assert run(blocked(1, 2)) == []
    assert run.told == "host 1 cannot reach host 2: no answer from 10.0.0.2:7100", "said at once"
    assert run(blocked(1, 0), after=2.0) == []
    assert run(Ticked(), after=3.9) == []
    commands = run(Ticked())
    assert commands[0] == ReleaseHost(
        1, f"host 1 cannot reach host 0: no answer from 10.0.0.0:7100. {TOLD}", "lost"
    )
    assert run.told == (
        f"host 1 is let go (it cannot reach host 0) with worker 1: {ADVICE}; host 1 is not there any more; generation "
        "2 with workers 0 and 2"
    )
    assert run(Ticked(), after=60.0)[:1] != [commands[0]], "nothing is left of the reports"
    assert {host.host for host in run.machine.snapshot().hosts} == {0, 2}


def test_two_reports_may_cost_two_hosts() -> None:
    run = three_hosts()
    run(blocked(0, 1), blocked(0, 2))
    gone = [command for command in run(Ticked(), after=6.0) if isinstance(command, ReleaseHost)]
    assert gone == [], "host 0 is in both of them, so it is the one"
    assert run.told.startswith(f"host 0 is to have no workers (it cannot reach host 1): {ADVICE}; worker 0 will leave")
    assert {host.host for host in run.machine.snapshot().hosts} == {0, 1, 2}


def test_reports_about_hosts_that_are_gone_or_were_told_are_old_news() -> None:
    run = three_hosts()
    run(blocked(1, 2))
    before = len(run.machine.story)
    run(blocked(1, 2), blocked(1, 9), blocked(9, 1), blocked(1, 1))
    assert len(run.machine.story) == before
    run(HostLost(2, "its connection was closed"))
    run(Ticked(), after=10.0)
    assert {host.host for host in run.machine.snapshot().hosts} == {0, 1}


def test_a_host_that_alone_has_the_newest_state_stays() -> None:
    run = two_hosts(own=1, other=1)
    run(WorkerLost(0, "signal", 9))
    quiet(run, 2, (1, 1, 7))
    assert run.machine.snapshot().members == [1]
    run(ready(2))
    quiet(run, 3, (1, 1, 40))
    assert run.machine.snapshot().members == [2, 1], "the new worker on host 0, which is to fetch the state"
    commands = run(blocked(0, 1))
    assert not [command for command in commands if isinstance(command, ReleaseHost)]
    assert run.told.startswith(
        "host 0 cannot reach host 1: no answer from 10.0.0.1:7100; host 0 is to have no workers (it cannot reach "
        f"host 1): {ADVICE}; worker 2 will leave; generation 4 with worker 1"
    )
    quiet(run, 4, (1, 1, 40), (2, 0, 3))
    assert run.machine.snapshot().members == [1] and not run.machine.over
