"""Who goes on when the home of a state is gone, in relaxed modes: nothing is taken back that was seen."""

from __future__ import annotations

from holdfast.control.protocol.commands import Command, FailRun, KillWorker, Send
from holdfast.control.protocol.events import HostJoined, HostLevel, HostLost, RunStarted, WorkerLost
from holdfast.control.protocol.messages import Install, Paused, Seeded
from tests.unit.control.driven import Driven, ready


def begun(replicas: int = 1) -> Driven:
    """Generation 1: worker 0 on host 1, the home, and worker 1 on host 2."""
    run = Driven(lanes=4, workers=0, hosts=2, listening=True, sync="async", replicas=replicas)
    run(RunStarted(), HostJoined(1, "a", 1), HostJoined(2, "b", 1))
    run(ready(0), ready(1), Seeded(0), HostLevel(1, 0))
    assert run.machine.snapshot().generation == 1
    return run


def installed(commands: list[Command]) -> tuple[list[int], dict[int, int]] | None:
    """The hosts of the generation that begins, and where each gets the state from."""
    found = [one.message for one in commands if isinstance(one, Send) and isinstance(one.message, Install)]
    return (list(found[0].hosts), dict(found[0].sources)) if found else None


def replicas(commands: list[Command]) -> list[int]:
    """Who holds a copy in it."""
    return next(one.message.replicas for one in commands if isinstance(one, Send) and isinstance(one.message, Install))


def test_a_replica_goes_on_at_once_though_it_lacks_what_nobody_has_seen() -> None:
    run = begun()
    run(HostLevel(1, 6, 1), WorkerLost(0, "signal", 9, 5), HostLevel(2, 5, 1))
    assert installed(run(Paused(1, 2, 5))) == ([2], {})
    assert "made again" not in str(run.machine.story.tail(9))


def test_a_mirror_without_a_copy_waits_for_the_home() -> None:
    run = begun(replicas=0)
    run(HostLevel(1, 6, 1), WorkerLost(0, "signal", 9, 5), HostLevel(2, -1))
    assert installed(run(Paused(1, 2, 5))) is None
    assert installed(run(ready(2))) == ([1, 2], {2: 1})


def test_a_copy_of_an_older_generation_is_not_as_good_as_the_version_before_the_newest() -> None:
    """In the generation after it, others may have seen whatever was made."""
    run = begun()
    run(HostLevel(1, 6, 1), WorkerLost(0, "signal", 9, 5), HostLevel(2, 5, 1))
    assert installed(run(Paused(1, 2, 5))) == ([2], {})  # alone: what host 2 makes now is seen at once
    run(ready(2))
    run(HostLevel(2, 6, 2))
    assert installed(run(Paused(1, 3, 6))) == ([1, 2], {1: 2}), "though host 1 is at 6, too"
    run(HostLevel(2, 7, 3), WorkerLost(1, "signal", 9, 6), HostLevel(1, 6, 1))
    assert installed(run(Paused(2, 4, 6))) is None, "host 2 is there, and its worker comes back"
    assert installed(run(ready(3))) == ([1, 2], {1: 2})


def test_a_host_that_comes_back_takes_the_place_of_no_copy() -> None:
    """Until it had one of its own, nobody would: the loss of the home in that time would take back what was seen."""
    run = Driven(lanes=4, workers=0, hosts=3, listening=True, sync="async", replicas=1)
    run(RunStarted(), *(HostJoined(number, "abc"[number - 1], 1) for number in (1, 2, 3)))
    assert replicas(run(ready(0), ready(1), ready(2), Seeded(0))) == [2]
    run(HostLevel(1, 6, 1), WorkerLost(0, "signal", 9, 5), HostLevel(2, 5, 1), HostLevel(3, -1))
    without = run(Paused(1, 2, 5), Paused(2, 2, 5))
    assert (installed(without), replicas(without)) == (([2, 3], {3: 2}), [3])
    run(ready(3), HostLevel(1, 6, 1), HostLevel(2, 9, 2), HostLevel(3, 8, 2))
    back = run(Paused(1, 3, 9), Paused(2, 3, 9))
    assert (installed(back), replicas(back)) == (([1, 2, 3], {1: 2, 3: 2}), [3])


def test_what_is_lost_is_told() -> None:
    run = begun()
    run(HostLevel(1, 6, 1), WorkerLost(0, "signal", 9, 5), HostLevel(2, 5, 1))
    run(Paused(1, 2, 5), ready(2), HostLevel(2, 9, 2), Paused(1, 3, 9))
    run(HostLost(2, "its connection was closed"), HostLevel(1, 6, 1))
    assert KillWorker(2, "its script is ahead of the state that is left") in run(Paused(2, 4, 9))
    assert "worker 2 is ahead of the state that is left, and is started anew" in run.told
    assert installed(run(WorkerLost(2, "signal", 9, 9))) is None
    assert installed(run(ready(3))) == ([1], {})
    assert (
        "host 1 has the newest state that is left, at version 6 in generation 1: what was made after it is lost, and "
        "is made again" in run.told
    )


def test_a_home_that_is_lost_before_its_replica_has_a_copy_again_takes_nothing_along() -> None:
    run = begun()
    run(HostLevel(1, 6, 1), HostLevel(2, 5, 1))
    run(HostJoined(3, "c", 1), ready(2), HostLevel(1, 6, 1), Paused(0, 2, 6), HostLevel(2, 6, 1))
    assert installed(run(Paused(1, 2, 6))) == ([1, 2, 3], {2: 1, 3: 1})
    run(HostLost(1, "its connection was closed"), HostLevel(2, 6, 1), Paused(1, 3, 6), HostLevel(3, -1))
    assert installed(run(Paused(2, 3, 6))) == ([2, 3], {3: 2})
    assert "made again" not in str(run.machine.story.tail(9))


def test_one_machine_that_replaces_its_workers_loses_nothing() -> None:
    run = Driven(workers=2, sync="async").begun()
    for generation, lost, stays in ((2, 0, 1), (3, 2, 1)):
        run(WorkerLost(lost, "signal", 9, 3), HostLevel(0, 9), Paused(stays, generation, 3), ready(generation))
        run(HostLevel(0, 9), Paused(stays, generation + 1, 3))
    assert run.machine.snapshot().generation > 2
    assert "made again" not in str(run.machine.story.tail(20))


def test_where_one_host_holds_the_state_its_loss_is_told_with_what_would_have_helped() -> None:
    run = begun(replicas=0)
    run(HostLost(1, "its connection closed"))
    (end,) = run.quiet(2, 1, step=9)
    assert isinstance(end, FailRun) and end.message.endswith(
        "no host that is left had all of it. Start the run again; with sync = async one host holds the state, unless "
        "--replicas 1 has another hold a copy."
    ), end


def test_who_holds_what_the_home_begins_with_is_told_so() -> None:
    """And counts as if it had got it in that generation, however many of them there are without a version."""
    run = begun()

    def abreast(commands: list[Command]) -> list[int]:
        said = [one.message for one in commands if isinstance(one, Send)]
        return next(message.abreast for message in said if isinstance(message, Install))

    run(HostJoined(3, "c", 1), ready(2), HostLevel(1, 6, 1), Paused(0, 2, 6), HostLevel(2, 6, 1))
    assert abreast(run(Paused(1, 2, 6))) == [2]
    run(HostJoined(4, "d", 1), ready(3), HostLevel(1, 7, 2), HostLevel(2, 6, 2), *(Paused(n, 3, 7) for n in (0, 1)))
    assert abreast(run(Paused(2, 3, 7))) == [], "the home has made one more"
    run(HostLevel(2, 7, 1), HostLost(4, "gone"), HostLevel(1, 7, 3), *(Paused(n, 4, 7) for n in (0, 1)))
    assert abreast(run(Paused(2, 4, 7))) == [], "which may be another one of that number"
