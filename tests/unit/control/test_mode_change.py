"""Another way of keeping step, in the machine: wanted in one generation, reached in the next, on all hosts."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.control.protocol.commands import Command, Send, StartWorker
from holdfast.control.protocol.events import (
    DrainRequested,
    HostJoined,
    HostLeaving,
    HostLevel,
    HostLost,
    Measured,
    RunStarted,
    SyncRequested,
    WorkerLost,
)
from holdfast.control.protocol.messages import AtBoundary, Finished, Install, Paused, Reached, Seeded, StaysExact
from tests.unit.control.driven import Driven, pause, ready

EXACT = Reached()


def installed(commands: list[Command]) -> Install:
    """The Install among these, the same for everybody."""
    found = [c.message for c in commands if isinstance(c, Send) and isinstance(c.message, Install)]
    assert found and all(one == found[0] for one in found)
    return found[0]


def told(commands: list[Command]) -> tuple[int, str, int]:
    """(generation, mode that is wanted, turn) of the Install among these."""
    install = installed(commands)
    return install.generation, install.sync, install.turn


def asked(sync: str = "bounded:2", **limits: object) -> Driven:
    """A run of two workers at step 7 that is to keep step in another way; both are quiet."""
    run = Driven(workers=2, **limits).begun()
    assert run(SyncRequested(sync)) == pause(2, 0, 1)
    run(HostLevel(0, 7), Paused(0, 2, 7))
    return run


def turned(run: Driven, generation: int, version: int, step: int) -> Install:
    """Both workers of a run stand there; the generation after that."""
    assert run(AtBoundary(0, generation, version, step)) == []
    assert run(AtBoundary(1, generation, version, step)) == pause(generation + 1, 0, 1)
    run(HostLevel(0, version), Paused(0, generation + 1, step))
    return installed(run(Paused(1, generation + 1, step)))


def test_the_next_generation_says_what_is_wanted_and_before_which_version() -> None:
    run = asked()
    install = installed(run(Paused(1, 2, 6)))
    assert (install.generation, install.sync, install.turn, install.reached) == (2, "bounded:2", 8, EXACT)
    entries = [entry.sentence for entry in run.machine.story]
    assert entries[-2] == (
        "sync = bounded:2 was asked for instead of exact; it counts from the next step boundary on: generation 2 with "
        "workers 0 and 1"
    )
    shown = run.machine.snapshot()
    assert (shown.sync, shown.sync_wanted, shown.modes) == ("exact", "bounded:2", ((0, "exact"),))


def test_when_all_stand_the_next_generation_is_of_the_mode() -> None:
    run = asked()
    run(Paused(1, 2, 6))
    install = turned(run, 2, 8, 8)
    assert (install.generation, install.sync, install.turn) == (3, "bounded:2", 0)
    assert install.reached == Reached(1, "bounded:2", 8, 8)
    assert run.told.startswith("lanes keep step by bounded:2 from step 8 on; generation 3 begins at step 8, ")
    shown = run.machine.snapshot()
    assert (shown.sync, shown.modes) == ("bounded:2", ((0, "exact"), (8, "bounded:2")))
    assert run(AtBoundary(0, 2, 8, 8)) == [], "which is old"


def test_who_stands_in_an_older_generation_or_somewhere_else_does_not_count() -> None:
    run = asked()
    run(Paused(1, 2, 6))
    assert run(AtBoundary(0, 2, 8, 8), AtBoundary(1, 1, 8, 8), AtBoundary(1, 2, 7, 7)) == []
    assert run(AtBoundary(1, 2, 8, 8)) == pause(3, 0, 1)


def test_a_loss_before_all_stand_says_the_same_again() -> None:
    run = asked()
    run(Paused(1, 2, 6), AtBoundary(0, 2, 8, 8))
    assert StartWorker(2, 1, 0) in run(WorkerLost(1, "signal", 9, 7))
    run(HostLevel(0, 8))
    assert told(run(Paused(0, 3, 8))) == (3, "bounded:2", 8), "others may stand there already"
    run(ready(2))
    install = installed(run(Paused(0, 4, 8)))
    assert (install.generation, install.turn, install.reached) == (4, 8, EXACT)


def test_a_loss_after_all_stood_takes_nothing_back() -> None:
    run = asked()
    run(Paused(1, 2, 6), AtBoundary(0, 2, 8, 8), AtBoundary(1, 2, 8, 8))
    run(WorkerLost(1, "signal", 9, 8), HostLevel(0, 8))
    install = installed(run(Paused(0, 3, 8)))
    assert (install.members, install.reached) == ([0], Reached(1, "bounded:2", 8, 8))


def test_who_changes_its_mind_gets_a_new_turn() -> None:
    run = asked()
    run(Paused(1, 2, 6))
    assert run(SyncRequested("exact")) == pause(3, 0, 1)
    assert told(run(HostLevel(0, 8), Paused(0, 3, 7), Paused(1, 3, 7))) == (3, "exact", 0)
    assert run(SyncRequested("async")) == pause(4, 0, 1)
    assert told(run(HostLevel(0, 12), Paused(0, 4, 12), Paused(1, 4, 12))) == (4, "async", 13)


def test_who_changes_its_mind_when_all_stand_gets_what_was_asked_for_last() -> None:
    for sync, reached in {"async": Reached(1, "async", 8, 8), "exact": EXACT}.items():
        run = asked()
        run(Paused(1, 2, 6), AtBoundary(0, 2, 8, 8), AtBoundary(1, 2, 8, 8), SyncRequested(sync))
        install = installed(run(HostLevel(0, 8), Paused(0, 3, 8), Paused(1, 3, 8)))
        assert (install.sync, install.turn, install.reached) == (sync, 0, reached)


def test_from_another_mode_the_level_counts_versions() -> None:
    """There are more of them than steps with async, and the step boundary is beyond all of them."""
    run = asked("async")
    run(Paused(1, 2, 6))
    turned(run, 2, 8, 8)
    run(SyncRequested("exact"), HostLevel(0, 48))
    assert told(run(Paused(0, 4, 18), Paused(1, 4, 18))) == (4, "exact", 49)
    assert turned(run, 4, 52, 19).reached == Reached(2, "exact", 52, 19)


def test_a_change_that_was_asked_for_during_another_change_is_in_it() -> None:
    run = Driven(workers=2).begun()
    run(WorkerLost(1, "signal", 9, 3))
    assert run(SyncRequested("quorum:3")) == []
    assert told(run(HostLevel(0, 3), Paused(0, 2, 3))) == (2, "quorum:3", 4)


# ---------------------------------------------------------------- several machines


def two(**limits: object) -> Driven:
    """Workers 0 and 1 on host 0, worker 2 on host 1, in generation 1."""
    run = Driven(workers=2, listening=True, hosts=2, **limits)
    run.started()
    run(HostJoined(1, "there", 1), ready(0), ready(1), ready(2), Seeded(0), HostLevel(0, 0))
    assert run.machine.snapshot().generation == 1 and set(run.machine._run.crew.where) == {0, 1}
    run(HostLevel(1, 0))
    return run


def stand(run: Driven, generation: int, version: int, levels: dict[int, int]) -> Install:
    """All three stand there; what hosts say of their levels; the next generation."""
    run(*(AtBoundary(worker, generation, version, version) for worker in (0, 1, 2)))
    return quiet(run, generation + 1, version, levels)


def quiet(run: Driven, generation: int, step: int, levels: dict[int, int]) -> Install:
    run(*(HostLevel(host, level) for host, level in levels.items()))
    return installed(run(*(Paused(worker, generation, step) for worker in run.machine.snapshot().members)))


def test_one_host_holds_the_state_where_all_did() -> None:
    run = two()
    run(SyncRequested("bounded:2"))
    wanted = quiet(run, 2, 7, {0: 7, 1: 7})
    assert (wanted.turn, wanted.reached, wanted.sources) == (8, EXACT, {})
    assert run(AtBoundary(0, 2, 8, 8), AtBoundary(1, 2, 8, 8)) == [], "on host 1 somebody is still at it"
    install = stand(run, 2, 8, {0: 8, 1: 8})
    assert (install.reached, install.sources) == (Reached(1, "bounded:2", 8, 8), {1: 0})


def test_the_mode_stays_while_the_script_loops_by_steps() -> None:
    run = two()
    why = "the script loops by steps (run.steps), and in other modes lanes are at different ones"
    run(StaysExact(0, why), SyncRequested("bounded:2"))
    assert (
        "sync = bounded:2 was asked for, but the script loops by steps (run.steps), and in other modes lanes are at "
        "different ones: still exact"
    ) in run.told
    run(SyncRequested("exact"))
    assert "sync = exact was asked for, as before" in run.told


def test_its_home_is_a_machine_that_stays() -> None:
    run = two()
    run(SyncRequested("bounded:2"))
    quiet(run, 2, 7, {0: 7, 1: 7})
    run(HostLeaving(0, "SIGTERM"), *(AtBoundary(worker, 2, 8, 8) for worker in (0, 1, 2)))
    run(HostLevel(0, 8), HostLevel(1, 8))
    install = installed(run(*(Paused(worker, 3, 8) for worker in (0, 1, 2))))
    assert 0 not in install.sources.values()


def test_all_hosts_get_the_state_where_one_held_it() -> None:
    run = two()
    run(SyncRequested("async"))
    quiet(run, 2, 7, {0: 7, 1: 7})
    stand(run, 2, 8, {0: 8, 1: 8})
    run(SyncRequested("exact"))
    quiet(run, 4, 8, {0: 20, 1: -1})
    install = stand(run, 4, 21, {0: 21, 1: -1})
    assert (install.reached, install.sources) == (Reached(2, "exact", 21, 21), {1: 0})


def test_the_home_is_lost_before_the_other_has_given_up_what_it_holds() -> None:
    run = two()
    run(SyncRequested("bounded:2"))
    quiet(run, 2, 7, {0: 7, 1: 7})
    stand(run, 2, 8, {0: 8, 1: 8})
    run(HostLost(0, "gone"), HostLevel(1, 8))
    install = installed(run(Paused(2, 4, 8)))
    assert (install.members, install.reached) == ([2], Reached(1, "bounded:2", 8, 8))


def test_a_state_from_before_the_change_is_gone_on_with_in_its_mode() -> None:
    """Of a host whose workers were lost long ago; all others are gone since. Then the change is made anew."""
    run = two()
    run(SyncRequested("bounded:2"))
    quiet(run, 2, 7, {0: 7, 1: 7})
    run(HostLevel(1, 7), WorkerLost(2, "signal", 9, 7))
    run(*(Paused(worker, 3, 8) for worker in (0, 1)), *(AtBoundary(worker, 3, 8, 8) for worker in (0, 1)))
    install = installed(run(HostLevel(0, 8), *(Paused(worker, 4, 8) for worker in (0, 1))))
    assert install.reached == Reached(1, "bounded:2", 8, 8) and install.members == [0, 1]
    run(Measured(10, {}), HostLost(0, "gone"))
    install = installed(run(ready(3)))
    assert install.reached == Reached(2, "exact", 0, 0) and install.sync == "bounded:2" and install.turn > 8
    assert "the state is from before sync = bounded:2: lanes keep step by exact again" in run.told
    assert run.machine.snapshot().modes == ((0, "exact"),)


@pytest.mark.parametrize("back", [False, True])
def test_a_state_from_before_the_change_is_not_gone_on_with_while_there_is_a_newer_one(back: bool) -> None:
    """The workers of the home are lost, and come back later than one of a host that was not there at the change."""
    run = two()
    run(SyncRequested("bounded:2"))
    quiet(run, 2, 7, {0: 7, 1: 7})
    run(HostLevel(1, 8), WorkerLost(2, "signal", 9, 8))
    run(*(Paused(worker, 3, 8) for worker in (0, 1)), *(AtBoundary(worker, 3, 8, 8) for worker in (0, 1)))
    run(HostLevel(0, 8), *(Paused(worker, 4, 8) for worker in (0, 1)))
    if back:
        run(SyncRequested("exact"), *(Paused(worker, 5, 8) for worker in (0, 1)))
        run(*(AtBoundary(worker, 5, 9, 9) for worker in (0, 1)), HostLevel(0, 9))
        assert installed(run(*(Paused(worker, 6, 9) for worker in (0, 1)))).reached == Reached(2, "exact", 9, 9)
    before = run.machine.snapshot().generation
    run(HostLevel(0, 9), WorkerLost(0, "signal", 9, 9), WorkerLost(1, "signal", 9, 9))
    run(ready(3))  # on host 1, which is at 8
    assert run.machine.snapshot().generation == before, "host 0 is waited for, which is at 9"
    install = installed(run(ready(4)))
    assert install.sources == {1: 0} and install.reached.version in (8, 9)


# ---------------------------------------------------------------- replicas


def three(sync: str) -> Driven:
    """Worker n - 1 on host n, for hosts 1 to 3, in generation 1; where one host holds the state it is host 1."""
    run = Driven(lanes=4, workers=0, hosts=3, listening=True, follow=False, sync=sync, replicas=1)
    run(RunStarted(), *(HostJoined(host, "there", 1) for host in (1, 2, 3)), ready(0), ready(1), ready(2), Seeded(0))
    run(HostLevel(1, 0))
    assert run.machine.snapshot().generation == 1
    return run


def asked_of(run: Driven, sync: str, generation: int, version: int, levels: dict[int, tuple[int, int]]) -> Install:
    """Another mode is wanted, and all stand at this version. Hosts say how far they are, and of which generation."""
    run(SyncRequested(sync))
    said = [HostLevel(host, *level) for host, level in levels.items()]
    run(*said, *(Paused(worker, generation, version) for worker in (0, 1, 2)))
    later = [HostLevel(host, level, of + 1 if level >= 0 else of) for host, (level, of) in levels.items()]
    run(*(AtBoundary(worker, generation, version, version) for worker in (0, 1, 2)))
    return installed(run(*later, *(Paused(worker, generation + 1, version) for worker in (0, 1, 2))))


def test_in_exact_a_replica_has_what_it_needs_and_only_a_mirror_gets_the_state() -> None:
    run = three("async")
    install = asked_of(run, "exact", 2, 8, {1: (8, 1), 2: (8, 1), 3: (-1, 0)})
    assert (install.reached, install.sources, install.replicas) == (Reached(1, "exact", 8, 8), {3: 1}, [])
    assert [host.role for host in run.machine.snapshot().hosts] == ["", "", ""]
    install = asked_of(run, "bounded:2", 4, 9, {1: (9, 3), 2: (9, 3), 3: (9, 3)})
    assert (install.reached.sync, install.sources, install.replicas) == ("bounded:2", {2: 1, 3: 1}, [2])
    assert [host.role for host in run.machine.snapshot().hosts] == ["home", "replica", "mirror"]


def test_to_local_steps_and_back_a_replica_still_holds_what_the_home_begins_with() -> None:
    """It makes of its copy what the home makes of the state, so nobody sends it anything."""
    run = three("async")
    install = asked_of(run, "local:8", 2, 8, {1: (8, 1), 2: (8, 1), 3: (-1, 0)})
    assert (install.reached, install.sources, install.abreast) == (Reached(1, "local:8", 8, 8), {2: 1, 3: 1}, [2])
    install = asked_of(run, "exact", 4, 9, {1: (9, 3), 2: (9, 3), 3: (-1, 0)})
    assert (install.reached, install.sources) == (Reached(2, "exact", 9, 9), {3: 1})


def test_the_home_is_lost_when_all_stand_and_its_replica_goes_on_in_the_new_mode() -> None:
    run = three("async")
    run(SyncRequested("bounded:2"), HostLevel(1, 8, 1), HostLevel(2, 8, 1))
    run(*(Paused(worker, 2, 8) for worker in (0, 1, 2)), *(AtBoundary(worker, 2, 8, 8) for worker in (0, 1, 2)))
    run(HostLost(1, "gone"), HostLevel(2, 8, 2), Paused(1, 3, 8))
    install = installed(run(Paused(2, 3, 8)))
    assert (install.reached, install.sources) == (Reached(1, "bounded:2", 8, 8), {3: 2})


def test_what_a_home_had_made_alone_does_not_count_in_exact_however_far_it_is() -> None:
    """Its worker was lost; a replica went on without a version that nobody had seen, and the mode became exact."""
    run = three("async")
    run(HostLevel(1, 9, 1), WorkerLost(0, "signal", 9, 8), HostLevel(2, 8, 1), HostLevel(3, -1))
    run(Paused(1, 2, 8))
    assert installed(run(Paused(2, 2, 8))).sources == {3: 2}
    run(SyncRequested("exact"), HostLevel(2, 8, 2), *(Paused(worker, 3, 8) for worker in (1, 2)))
    run(*(AtBoundary(worker, 3, 8, 8) for worker in (1, 2)), ready(3), HostLevel(2, 8, 3))
    install = installed(run(*(Paused(worker, 4, 8) for worker in (1, 2))))
    assert install.reached == Reached(1, "exact", 8, 8) and install.sources == {1: 2, 3: 2}
    # Before it has got the state, somebody is lost: what it holds is still what it was.
    run(HostLevel(2, 8, 4), HostLevel(3, 8, 4), HostLevel(1, 9, 1), WorkerLost(2, "signal", 9, 8))
    run(Paused(1, 5, 8))
    assert installed(run(Paused(3, 5, 8))).sources == {1: 2}


def test_a_state_of_another_history_is_from_before_the_change_though_it_is_further() -> None:
    """All that went on from a replica are lost, with what they made in the new mode. The old home is left."""
    run = three("async")
    run(HostLevel(1, 9, 1), WorkerLost(0, "signal", 9, 8), HostLevel(2, 8, 1), HostLevel(3, -1))
    run(*(Paused(worker, 2, 8) for worker in (1, 2)))
    run(SyncRequested("bounded:2"), HostLevel(2, 8, 2), *(Paused(worker, 3, 8) for worker in (1, 2)))
    run(*(AtBoundary(worker, 3, 8, 8) for worker in (1, 2)), HostLevel(2, 8, 3), HostLevel(3, -1))
    assert installed(run(*(Paused(worker, 4, 8) for worker in (1, 2)))).reached == Reached(1, "bounded:2", 8, 8)
    run(HostLost(2, "gone"), HostLost(3, "gone"))
    install = installed(run(ready(3)))
    assert (install.reached, install.sync) == (Reached(2, "async"), "bounded:2")
    assert "what was made after it is lost, and is made again" in run.told
    assert "the state is from before sync = bounded:2: lanes keep step by async again" in run.told


def test_where_all_stood_does_not_count_when_that_is_lost() -> None:
    """The state that is left happens to be at the same version, of another history: its lanes stand elsewhere."""
    run = three("async")
    run(HostLevel(1, 9, 1), WorkerLost(0, "signal", 9, 8), HostLevel(2, 8, 1), HostLevel(3, -1))
    run(*(Paused(worker, 2, 8) for worker in (1, 2)))
    run(SyncRequested("bounded:2"), HostLevel(2, 9, 2), *(Paused(worker, 3, 9) for worker in (1, 2)))
    run(*(AtBoundary(worker, 3, 9, 9) for worker in (1, 2)))
    run(HostLost(2, "gone"), HostLost(3, "gone"))
    install = installed(run(ready(3)))
    assert install.reached == Reached(0, "async") and install.sync == "bounded:2", "it is made anew"


# ---------------------------------------------------------------- what cannot be


@pytest.mark.parametrize(
    ("sync", "why"),
    [
        ("bouned:2", "unknown; there is exact, bounded:S, async, quorum:K, local:H. Did you mean bounded:2?"),
        ("quorum:5", "a quorum of 5 cannot come together: K is 1 to 4, the number of lanes"),
        ("local:0", "0 steps cannot lie between two exchanges: H is 1 to 100000"),
    ],
)
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


def test_too_little_memory_for_the_pushes_of_all_lanes() -> None:
    run = Driven(workers=2)
    run.started()
    run(*(msgspec.structs.replace(ready(worker), push_bytes=1 << 20) for worker in (0, 1)), Seeded(0))
    run(SyncRequested("bounded:9", free=3 << 20, where="free on this machine"))
    assert run.told == (
        "sync = bounded:9 was asked for, but its pushes need 4.0 MiB, and only 3.0 MiB are free on this machine: "
        "still exact"
    )
    assert run(SyncRequested("bounded:9", free=4 << 20, where="free on this machine")) == pause(2, 0, 1)


@pytest.mark.parametrize(
    ("before", "sync", "need"),
    [
        ("exact", "local:8", "its pushes and the lanes' optimizers need 21.0 MiB"),
        ("local:8", "exact", "the owners' optimizer needs 2.0 MiB"),
        ("local:8", "bounded:0", "its pushes and the owners' optimizer need 6.0 MiB"),
    ],
)
def test_too_little_memory_for_what_optimizers_keep(before: str, sync: str, need: str) -> None:
    """With local steps each of four lanes keeps its state twice, and the owners their momentum."""
    run = Driven(workers=2, sync=before)
    run.started()
    like = {"push_bytes": 1 << 20, "state_bytes": 2 << 20}
    run(*(msgspec.structs.replace(ready(worker), **like) for worker in (0, 1)), Seeded(0))
    run(SyncRequested(sync, free=1 << 20, where="free on this machine"))
    assert run.told == (
        f"sync = {sync} was asked for, but {need}, and only 1.0 MiB are free on this machine: still {before}"
    )
    assert run(SyncRequested(sync, free=21 << 20, where="free on this machine")) == pause(2, 0, 1)


@pytest.mark.parametrize(
    ("sync", "why"),
    [
        ("async", "any lane makes a version"),
        ("quorum:3", "any 3 of 4 lanes make a version"),
        ("bounded:2", "any lane makes a version"),
        ("bounded:0", ""),
        ("local:4", ""),
    ],
)
def test_an_optimizer_that_takes_whole_steps_only(sync: str, why: str) -> None:
    """The run goes on as it is: told to take parts of steps, it would take wrong ones, or end."""
    run, wholly = Driven(workers=2), "Rprop does not move half as far with half its lr"
    run.started()
    run(*(msgspec.structs.replace(ready(worker), wholly=wholly) for worker in (0, 1)), Seeded(0))
    commands = run(SyncRequested(sync, free=1 << 30))
    if why:
        assert commands == [] and run.machine.snapshot().sync_wanted == "exact"
        assert run.told == (
            f"sync = {sync} was asked for, but {why}, with a part of a step, which is a step with a smaller lr, and "
            f"{wholly}: still exact"
        )
    else:
        assert commands == pause(2, 0, 1)


def test_rounds_of_another_length_need_no_memory() -> None:
    run = Driven(workers=2, sync="local:8")
    run.started()
    run(*(msgspec.structs.replace(ready(worker), state_bytes=1 << 20) for worker in (0, 1)), Seeded(0))
    assert run(SyncRequested("local:9", free=1, where="free on this machine")) == pause(2, 0, 1)


# ---------------------------------------------------------------- local steps


def test_local_steps_begin_with_the_owners_state_and_end_with_the_mean() -> None:
    run = asked("local:8")
    run(Paused(1, 2, 6))
    assert turned(run, 2, 8, 8).reached == Reached(1, "local:8", 8, 8)
    assert run.told.startswith(
        "lanes keep step by local:8 from step 8 on, each with an optimizer of its own, whose state is the owners'; "
    )
    for generation, sync in ((4, "local:4"), (6, "exact")):
        run(SyncRequested(sync), HostLevel(0, generation + 5), *(Paused(worker, generation, 50) for worker in (0, 1)))
        turned(run, generation, generation + 6, 50)
        how = ", with the mean of the lanes' optimizer states; the outer momentum is given up" * (sync == "exact")
        assert run.told.startswith(f"lanes keep step by {sync} from step 50 on{how}; generation ")


def rounds() -> Driven:
    """A run that has made 50 steps in 12 versions with local:8, and is in exact since: in generation 3."""
    run = Driven(workers=2, sync="local:8").begun()
    run(Measured(50, {}), SyncRequested("exact"))
    assert run.told.startswith("sync = exact was asked for instead of local:8; it counts from the end of the round at ")
    run(HostLevel(0, 11), Paused(0, 2, 50))
    install = installed(run(Paused(1, 2, 50)))
    assert (install.sync, install.turn) == ("exact", 12), "the round at hand is made to its end: it makes a version"
    assert turned(run, 2, 12, 56).reached == Reached(1, "exact", 12, 56)
    return run


def test_a_round_that_is_begun_is_made_to_its_end_by_all() -> None:
    """Whoever is lost meanwhile: the version is the same for those who come later."""
    run = Driven(workers=2, sync="local:8").begun()
    run(Measured(50, {}), SyncRequested("exact"), HostLevel(0, 11), Paused(0, 2, 50), Paused(1, 2, 50))
    run(AtBoundary(0, 2, 12, 56), WorkerLost(1, "signal", 9, 55), HostLevel(0, 12))
    assert told(run(Paused(0, 3, 56))) == (3, "exact", 12)


def test_after_local_steps_there_are_fewer_versions_than_steps() -> None:
    """A change, and the end, are a version away, and not as many as there were steps."""
    run = rounds()
    run(Measured(60, {}), SyncRequested("bounded:2"), HostLevel(0, 16))
    assert told(run(Paused(0, 4, 60), Paused(1, 4, 60))) == (4, "bounded:2", 17)
    run = rounds()
    run(Measured(60, {}), DrainRequested("SIGTERM"), HostLevel(0, 16))
    assert installed(run(Paused(0, 4, 60), Paused(1, 4, 60))).stop == 17


# ---------------------------------------------------------------- the end

def test_a_run_that_is_to_end_stays_in_its_mode() -> None:
    run = asked()
    run(Paused(1, 2, 6), DrainRequested("SIGTERM"), HostLevel(0, 7), Paused(0, 3, 7))
    install = installed(run(Paused(1, 3, 7)))
    assert (install.sync, install.turn, install.stop, install.reached) == ("exact", 0, 8, EXACT)


def test_a_run_that_has_ended_for_some_stays_in_its_mode() -> None:
    """Who stood for another mode would wait for ever for those who have ended."""
    run = Driven(workers=2).begun()
    assert run(SyncRequested("bounded:2")) == pause(2, 0, 1)
    run(Finished(1, 1, {}), HostLevel(0, 7))
    install = installed(run(Paused(0, 2, 7)))
    assert (install.members, install.sync, install.turn, install.reached) == ([0], "exact", 0, EXACT)
