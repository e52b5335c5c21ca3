"""Another way of keeping step, in the machine: a level that each generation states until the workers reach it."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.coordinator.commands import Command, Send, StartWorker
from holdfast.coordinator.events import DrainRequested, HostJoined, HostLevel, SyncRequested, WorkerLost
from holdfast.coordinator.messages import Install, Paused, Seeded, Turned
from tests.unit.coordinator.driven import Driven, pause, ready


def told(commands: list[Command]) -> tuple[int, str, int]:
    """(generation, sync, turn) of the Install among these, the same for everybody."""
    (found,) = {
        (c.message.generation, c.message.sync, c.message.turn)
        for c in commands if isinstance(c, Send) and isinstance(c.message, Install)
    }  # fmt: skip
    return found


def asked(sync: str = "bounded:2", **limits: object) -> Driven:
    """A run of two workers at step 7 that is to keep step in another way; both are quiet."""
    run = Driven(workers=2, **limits).begun()
    assert run(SyncRequested(sync)) == pause(2, 0, 1)
    run(HostLevel(0, 7), Paused(0, 2, 7))
    return run


def test_the_next_generation_says_what_is_wanted_and_before_which_version() -> None:
    run = asked()
    assert told(run(Paused(1, 2, 6))) == (2, "bounded:2", 8)
    entries = [entry.sentence for entry in run.machine.story]
    assert entries[-2] == (
        "sync = bounded:2 was asked for instead of exact; it counts from the next step boundary on: generation 2 with "
        "workers 0 and 1"
    )
    shown = run.machine.snapshot()
    assert (shown.sync, shown.sync_wanted, shown.modes) == ("exact", "bounded:2", ((0, "exact"),))


def test_it_is_reached_when_a_worker_says_so_and_told_once() -> None:
    run = asked()
    run(Paused(1, 2, 6))
    assert run(Turned(1, 1, "bounded:2", 8)) == []
    assert run.told == "lanes keep step by bounded:2 from step 8 on"
    length = len(run.machine.story)
    run(Turned(0, 1, "bounded:2", 8))
    assert len(run.machine.story) == length
    assert run.machine.snapshot().modes == ((0, "exact"), (8, "bounded:2"))
    assert run.machine.snapshot().sync == "bounded:2"


def test_a_loss_before_it_is_reached_says_the_same_again() -> None:
    run = asked()
    run(Paused(1, 2, 6))
    assert StartWorker(2, 1, 0) in run(WorkerLost(1, "signal", 9, 7))
    run(HostLevel(0, 8))
    assert told(run(Paused(0, 3, 8))) == (3, "bounded:2", 8), "others may stand there already"
    run(ready(2))
    assert told(run(Paused(0, 4, 8))) == (4, "bounded:2", 8)


def test_a_loss_after_it_was_reached_says_the_same_again() -> None:
    run = asked()
    run(Paused(1, 2, 6))
    run(Turned(0, 1, "bounded:2", 8), WorkerLost(1, "signal", 9, 9), HostLevel(0, 9))
    assert told(run(Paused(0, 3, 9))) == (3, "bounded:2", 8), "which is of no account to those who have changed"


def test_who_changes_its_mind_gets_a_new_turn() -> None:
    run = asked()
    run(Paused(1, 2, 6))
    assert run(SyncRequested("exact")) == pause(3, 0, 1)
    assert told(run(HostLevel(0, 8), Paused(0, 3, 7), Paused(1, 3, 7))) == (3, "exact", 9)
    assert run(SyncRequested("async")) == pause(4, 0, 1)
    assert told(run(HostLevel(0, 12), Paused(0, 4, 12), Paused(1, 4, 12))) == (4, "async", 13)


def test_a_mode_that_was_reached_though_nobody_has_said_so_yet() -> None:
    """The workers are in exact again when async is asked for, and go by the turn, though we know of async only."""
    run = asked("async")
    run(Paused(1, 2, 6), Turned(0, 1, "async", 8))
    run(SyncRequested("exact"), HostLevel(0, 48), Paused(0, 3, 18), Paused(1, 3, 18))
    run(SyncRequested("async"), HostLevel(0, 50))
    assert told(run(Paused(0, 4, 20), Paused(1, 4, 20))) == (4, "async", 51)


def test_from_another_mode_the_level_counts_versions() -> None:
    """There are more of them than steps with async, and the step boundary is beyond all of them."""
    run = asked("async")
    run(Paused(1, 2, 6), Turned(0, 1, "async", 8))
    run(SyncRequested("exact"), HostLevel(0, 48))
    assert told(run(Paused(0, 3, 18), Paused(1, 3, 18))) == (3, "exact", 49)


def test_a_change_that_was_asked_for_during_another_change_is_in_it() -> None:
    run = Driven(workers=2).begun()
    run(WorkerLost(1, "signal", 9, 3))
    assert run(SyncRequested("quorum:3")) == []
    assert told(run(HostLevel(0, 3), Paused(0, 2, 3))) == (2, "quorum:3", 4)


@pytest.mark.parametrize(
    ("sync", "why"),
    [
        ("bouned:2", "unknown; there is exact, bounded:S, async, quorum:K, local:H. Did you mean bounded:2?"),
        ("quorum:5", "a quorum of 5 cannot come together: K is 1 to 4, the number of lanes"),
        (
            "local:8", "with local:H every lane has an optimizer of its own and the owners another one, so there is no "
            "state that both could go on from; start a run with the mode that is wanted",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said(sync: str, why: str) -> None:
    run = Driven(workers=2).begun()
    assert run(SyncRequested(sync)) == []
    assert run.told == f"sync = {sync} was asked for, but {why}: still exact"


def test_the_same_as_before() -> None:
    run = Driven(workers=2, sync="bounded:02").begun()
    assert run(SyncRequested("bounded:2")) == []
    assert run.told == "sync = bounded:2 was asked for, as before"
    run(SyncRequested("async"), SyncRequested("async"))
    assert run.told == "sync = async was asked for, as before, which is on its way"


def test_from_local_steps() -> None:
    run = Driven(workers=2, sync="local:8").begun()
    assert run(SyncRequested("exact")) == []
    assert "with local:H every lane has an optimizer of its own" in run.told and run.told.endswith(": still local:8")


def test_where_servers_only_sum() -> None:
    run = Driven(workers=2, servers=1, sums_only=True).begun()
    assert run(SyncRequested("bounded:2")) == []
    assert run.told == (
        "sync = bounded:2 was asked for, but with optimizer = workers servers only sum, and in other modes they have "
        "to run the optimizer themselves: still exact"
    )


def test_before_the_first_step_and_when_the_run_is_ending() -> None:
    run = Driven(workers=2)
    run.started()
    run(SyncRequested("async"))
    assert run.told == (
        "sync = async was asked for, but the run has not begun its first step; ask again then: still exact"
    )
    run = Driven(workers=2).begun()
    run(DrainRequested("SIGTERM"), SyncRequested("async"))
    assert run.told == "sync = async was asked for, but the run is ending: still exact"


@pytest.mark.parametrize("joined", [True, False])
def test_on_several_machines(joined: bool) -> None:
    run = Driven(workers=2, listening=not joined).begun()
    if joined:
        run(HostJoined(1, "there", 1))
    run(SyncRequested("bounded:2"))
    assert run.told == (
        "sync = bounded:2 was asked for, but the run is, or may be, on several machines, and there the mode cannot "
        "change while it is going: still exact"
    )


def test_too_little_memory_for_the_pushes_of_all_lanes() -> None:
    run = Driven(workers=2)
    run.started()
    run(*(msgspec.structs.replace(ready(worker), push_bytes=1 << 20) for worker in (0, 1)), Seeded(0))
    run(SyncRequested("bounded:9", free=30 << 20, where="free on this machine"))
    assert run.told == (
        "sync = bounded:9 was asked for, but its pushes need 40.0 MiB, and only 30.0 MiB are free on this machine: "
        "still exact"
    )
    assert run(SyncRequested("bounded:6", free=30 << 20, where="free on this machine")) == pause(2, 0, 1)


def test_a_run_that_is_to_end_before_it_has_changed_says_both() -> None:
    run = asked()
    run(Paused(1, 2, 6), DrainRequested("SIGTERM"), HostLevel(0, 7), Paused(0, 3, 7))
    commands = run(Paused(1, 3, 7))
    assert told(commands) == (3, "bounded:2", 8)
    assert all(c.message.stop == 8 for c in commands if isinstance(c, Send) and isinstance(c.message, Install))
