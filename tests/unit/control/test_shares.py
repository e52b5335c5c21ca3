"""Which shares of the step at hand count in a new generation of a plain loop, and who may go on from which state."""

from __future__ import annotations

from holdfast.control.protocol.commands import Command, Send
from holdfast.control.protocol.events import HostJoined, HostLevel, HostLost, RunStarted, WorkerLost
from holdfast.control.protocol.messages import Install, Paused, Seeded
from tests.unit.control.driven import Driven, ready


def begun(hosts: int = 2) -> Driven:
    """Generation 1: a worker each on hosts 1, 2, ..., numbered from 0."""
    run = Driven(lanes=4, workers=0, hosts=hosts, listening=True, follow=False)
    run(RunStarted(), *(HostJoined(number, "abc"[number - 1], 1) for number in range(1, hosts + 1)))
    run(*(ready(worker) for worker in range(hosts)), Seeded(0), HostLevel(1, 0))
    assert run.machine.snapshot().generation == 1
    return run


def installed(commands: list[Command]) -> Install | None:
    found = [one.message for one in commands if isinstance(one, Send) and isinstance(one.message, Install)]
    return found[0] if found else None


def test_shares_that_have_come_are_what_the_step_consists_of() -> None:
    run = begun(hosts=3)
    run(HostLost(3, "its connection was closed"), HostLevel(1, 5, 1, [0], True), Paused(0, 2, 5))
    new = installed(run(HostLevel(2, 5, 1, [1], True), Paused(1, 2, 5)))
    assert new is not None and (new.hosts, new.at_hand, new.given) == ([1, 2], 5, {0: 1, 1: 2})
    assert (new.given_on(1), new.given_on(2), new.given_on(3)) == ({0}, {1}, set())


def test_shares_of_a_host_without_which_the_step_was_shared_out_anew_do_not_count() -> None:
    run = begun()
    run(HostLevel(1, 5, 1, [0], True), WorkerLost(0, "signal", 9, 5), HostLevel(2, 5, 1, [], True))
    alone = installed(run(Paused(1, 2, 5)))
    assert alone is not None and (alone.hosts, alone.given) == ([2], {}), "host 1 has nobody now"
    run(HostLevel(1, 5, 1, [0], True), ready(2), HostLevel(2, 5, 2, [0], True))
    both = installed(run(Paused(1, 3, 5)))
    assert both is not None and (both.hosts, both.at_hand, both.given) == ([1, 2], 5, {0: 2})


def test_a_step_that_a_host_has_made_of_shares_is_not_made_again_without_it() -> None:
    run = begun()
    run(HostLevel(1, 6, 1, [], True), WorkerLost(0, "signal", 9, 5), HostLevel(2, 5, 1, [2], True))
    assert installed(run(Paused(1, 2, 5))) is None, "host 1 gets a new worker"
    new = installed(run(ready(2)))
    assert new is not None and (new.hosts, new.sources) == ([1, 2], {2: 1})


def test_where_units_are_lanes_it_comes_out_the_same_and_nobody_waits() -> None:
    run = begun()
    run(HostLevel(1, 6, 1), WorkerLost(0, "signal", 9, 5), HostLevel(2, 5, 1))
    new = installed(run(Paused(1, 2, 5)))
    assert new is not None and new.hosts == [2]
