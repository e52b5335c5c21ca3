"""Servers in the machine: they own, drive nothing, come and go beside the workers, and never keep a run from ending."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.control.protocol.commands import Command, EndRun, FailRun, KillWorker, Send, StartWorker
from holdfast.control.protocol.events import (
    HostJoined,
    HostLevel,
    HostLost,
    Measured,
    ScaleRequested,
    ServersRequested,
    WorkerHung,
    WorkerLost,
)
from holdfast.control.protocol.messages import Failed, Finished, Install, Leave, Ready, Seeded
from tests.unit.control.driven import Driven, failed, ready


def installed(commands: list[Command]) -> Install:
    found = [c.message for c in commands if isinstance(c, Send) and isinstance(c.message, Install)]
    assert found, commands
    return found[-1]


def test_servers_are_started_beside_the_workers_and_own() -> None:
    run = Driven(workers=2, servers=1)
    assert [c.worker for c in run.started() if isinstance(c, StartWorker)] == [0, 1, 2]
    assert run.told == "the run starts with 2 of 4 possible workers: workers 0 and 1 start; server 2 starts"
    run(*map(ready, range(3)))
    got = installed(run(Seeded(0)))
    assert got == Install(1, [0, 1, 2], [0, 1, 2], [0, 0, 1, 1], [0, 0, 0], {}, servers=[2])
    assert run.told.endswith("worker 0 drives lanes 0-1, worker 1 drives lanes 2-3, server 2 owns the parameters")
    shown = run.machine.snapshot()
    assert (shown.servers, shown.servers_wanted, shown.lead) == ([2], 1, 0)


def test_a_lost_server_is_replaced_and_the_workers_own_meanwhile() -> None:
    run = Driven(workers=2, servers=1).begun()
    assert StartWorker(3, 2, 0) in run(WorkerLost(2, "signal", 9, 5))
    assert run.told.startswith("server 2 lost (signal 9): server 3 starts")
    assert installed(run.quiet(2, 0, 1, step=5)).servers == []
    run(ready(3))
    got = installed(run.quiet(3, 0, 1, step=5))
    assert got.servers == [3] and set(got.drivers) == {0, 1}


def started(commands: list[Command]) -> list[tuple[int, int]]:
    return [(c.worker, c.host) for c in commands if isinstance(c, StartWorker)]


def test_where_the_launcher_has_no_workers_servers_are_on_the_first_host_that_has() -> None:
    run = Driven(workers=0, servers=1, listening=True)
    assert started(run.started()) == []
    assert started(run(HostJoined(1, "there", 1))) == [(0, 1), (1, 1)]
    assert run.told.endswith("worker 0 starts on host 1; server 1 starts on host 1")
    assert started(run(HostJoined(2, "elsewhere", 1))) == [(2, 2)]
    assert started(run(HostLost(1, "its connection closed"))) == [(3, 2)], "it is on the host that is left"


def test_where_one_host_holds_the_state_servers_are_there() -> None:
    run = Driven(workers=0, servers=1, listening=True, hosts=2, sync="async", replicas=1)
    run.started()
    assert started(run(HostJoined(1, "there", 1))) == [(0, 1), (1, 1)]
    run(HostJoined(2, "elsewhere", 1), ready(2), ready(0), Seeded(0), HostLevel(1, 0))
    got = installed(run(ready(1)))
    assert (got.members, got.hosts, got.servers, got.sources) == ([0, 1, 2], [1, 1, 2], [1], {2: 1})
    assert [(host.host, host.role) for host in run.machine.snapshot().hosts] == [(0, ""), (1, "home"), (2, "replica")]
    # With a replica the other host becomes the one that holds it, and its servers are there.
    run(HostLost(1, "its connection closed"), HostLevel(2, 7))
    assert installed(run.quiet(2, 2)).sources == {}
    assert started(run(Measured(8, {}))) == [(3, 2)] and run.told == "server 3 starts on host 2"


def test_servers_are_scaled_while_the_run_goes_on() -> None:
    run = Driven(workers=2).begun()
    assert run(ServersRequested(2)) == [StartWorker(2, 2, 0), StartWorker(3, 3, 0)]
    run(ready(2), ready(3))
    assert installed(run.quiet(2, 0, 1)).servers == [2, 3]
    run(ServersRequested(0))
    assert run.told.startswith("0 servers were asked for instead of 2: servers 2 and 3 will leave")
    out = run.quiet(3, 0, 1, 2, 3)
    assert {c.worker for c in out if isinstance(c, Send) and isinstance(c.message, Leave)} == {2, 3}
    assert installed(out).servers == []


@pytest.mark.parametrize("wanted", [17, -1])
def test_what_cannot_be_is_said(wanted: int) -> None:
    run = Driven(workers=2, servers=1).begun()
    assert run(ServersRequested(wanted)) == []
    assert run.told == f"{wanted} servers were asked for, but there can be 0 to 16: still 1"


def test_servers_are_never_given_lanes_for_balance() -> None:
    run = Driven(workers=2, servers=1).begun()
    seen: set[int] = set()
    for step in range(1, 60):
        run(Measured(step, {0: 0.1, 1: 0.4}), after=1.0)
        for generation in range(2, 6):
            run.quiet(generation, 0, 1, 2, step=step)
        seen.update(run.machine.snapshot().drivers)
    assert seen == {0, 1} and run.machine.snapshot().generation > 1, "it was balanced, among workers"


def test_a_server_that_has_not_finished_does_not_keep_the_run_from_ending() -> None:
    run = Driven(workers=1, servers=1).begun()
    assert run(Finished(0, 1, {"loss": 0.5})) == [EndRun("the script has ended", {"loss": 0.5})]


def test_a_server_that_does_not_fit_is_not_tried_again() -> None:
    run = Driven(workers=1).begun()
    run(ServersRequested(1))
    run(ready(1, threads="2"))
    assert run.told.startswith("server 1 is refused (")
    assert not run(WorkerLost(1, "exit", 0))
    assert run.machine.snapshot().servers_wanted == 0


def test_a_worker_that_does_not_fit_what_the_server_has_is_the_end() -> None:
    run = Driven(workers=1, servers=1)
    run.started()
    run(ready(1), Seeded(1))
    (end,) = run(ready(0, threads="2"))
    assert isinstance(end, FailRun) and end.kind == "NotExact"


# ------------------------------------------------------------ which of them owns how much


def sized(worker: int) -> Ready:
    return msgspec.structs.replace(ready(worker), sizes=[1_000_000] * 8)


def owning(servers: int = 2) -> Driven:
    """Two workers and some servers, whose bytes are known."""
    run = Driven(workers=2, servers=servers)
    run.started()
    run(*map(sized, range(2 + servers)), Seeded(0))
    return run


def slowed(run: Driven, *, server: int = 3, reports: int = 6) -> None:
    """Reports of a run in which one server of two is five times slower, and both are busy for half of the time."""
    for at in range(1, reports + 1):
        applied = {other: (at * 10_000_000, at * (0.5 if other == server else 0.1)) for other in (2, 3)}
        run(Measured(at, {0: 0.1, 1: 0.1}, applied), after=0.5)


def test_the_install_says_who_owns_how_much() -> None:
    run = owning()
    assert run.machine.snapshot().generation == 1
    assert run.told.endswith("worker 1 drives lanes 2-3, servers 2 and 3 own the parameters (50%, 50%)")
    assert installed(run(sized(0))).owners == [(2, 4), (3, 4)], "who asks again is told again"
    assert {person.worker: person.share for person in run.machine.snapshot().people} == {0: 0, 1: 0, 2: 0.5, 3: 0.5}


def test_slices_move_away_from_a_slow_server() -> None:
    run = owning()
    slowed(run)
    assert run.told == (
        "slices move: a version should take 0.07 s and not 0.2 s (65% less): server 3 has 4 MB and applies 20 MB in a "
        "second (median 60 MB): generation 2 with workers 0 and 1 and servers 2 and 3"
    )
    got = installed(run.quiet(2, 0, 1, 2, 3))
    assert got.owners == [(2, 7), (3, 1)] and got.drivers == [0, 0, 1, 1]
    assert run.told.endswith("servers 2 and 3 own the parameters (88%, 12%)")


def test_what_a_server_owns_outlives_changes_among_the_workers() -> None:
    run = owning()
    slowed(run)
    run.quiet(2, 0, 1, 2, 3)
    run(WorkerLost(1, "signal", 9, 9))
    assert installed(run.quiet(3, 0, 2, 3)).owners == [(2, 7), (3, 1)]


def test_a_server_is_lost_while_slices_are_to_move() -> None:
    run = owning()
    slowed(run)
    run(WorkerLost(2, "signal", 9, 9))
    got = installed(run.quiet(2, 0, 1, 3))
    assert (got.servers, got.owners) == ([3], [(3, 8)])
    run(sized(4))
    got = installed(run.quiet(3, 0, 1, 3))
    assert (got.servers, got.owners) == ([3, 4], [(3, 4), (4, 4)]), "nothing is known of the new one"


def test_more_servers_than_slices() -> None:
    run = Driven(workers=1, servers=3)
    run.started()
    run(*(msgspec.structs.replace(ready(worker), sizes=[4096]) for worker in range(4)))
    got = installed(run(Seeded(0)))
    assert (got.servers, got.owners) == ([1, 2, 3], [(2, 1)])
    assert run.told.endswith(
        "servers 1, 2 and 3 own the parameters; there is 1 slice of them, so servers 1 and 3 have none, and --servers "
        "1 would do"
    )


def test_the_shares_of_many_servers_are_folded() -> None:
    run = owning(servers=5)
    assert run.told.endswith("servers 2-6 own the parameters (12% to 25%)")


def idle(worker: int, step: int = 24) -> Failed:
    return msgspec.structs.replace(failed(worker, kind="NameError", message="no 'loss'", step=step), idle=True)


def test_a_server_that_fails_for_want_of_a_batch_is_let_go_for_good() -> None:
    run = Driven(workers=2, servers=1).begun()
    assert [c for c in run(idle(2)) if isinstance(c, KillWorker)] == [
        KillWorker(2, "its script failed with NameError: no 'loss' at train.py:12")
    ]
    assert run.told.startswith(
        "server 2 had no batch in its last loop over the loader, and failed after it, at step 24, with NameError: no "
        "'loss' at train.py:12; the run goes on without it; servers run the code after a loop too: use run.loss, or "
        "`if run.lead:` around what needs a batch: generation 2 with workers 0 and 1"
    ), run.told
    assert run(idle(2)) == [], "it may be said twice"
    assert not run.quiet(2, 0, 1, step=24), "it may still write"
    got = run(WorkerLost(2, "exit", 1, 24))
    assert installed(got).members == [0, 1] and installed(got).servers == []
    assert not started(got) and not started(run(Measured(30, {})))
    assert run.machine.snapshot().servers_wanted == 0
    assert started(run(ServersRequested(1))) == [(3, 0)], "who asks for one gets one"


def test_without_another_worker_a_failure_for_want_of_a_batch_ends_the_run_and_is_told_as_what_it_is() -> None:
    run = Driven(workers=1, servers=1).begun()
    run(WorkerLost(0, "signal", 9, 24))  # worker 2 starts in its place, and comes late
    run.quiet(2, 1, step=24)
    run(ready(2))
    run.quiet(2, 1, step=24)
    run(idle(2))
    (end,) = run(Measured(24, {}), after=1.0)
    assert end == FailRun(
        "ScriptFailed",
        "worker 2 had no batch in its last loop over the loader, and failed after it, at step 24, with NameError: no "
        "'loss' at train.py:12. Fix the script at train.py:12: loops that are over give a worker that comes late no "
        "batch: use run.epochs in place of range, and run.loss, or `if run.lead:` around what needs a batch; the whole "
        "output is in logs/worker-2.log.",
        "trace of worker 2",
    )


def test_errors_of_ours_in_a_server_end_the_run() -> None:
    run = Driven(workers=2, servers=1).begun()
    (end,) = run(msgspec.structs.replace(idle(2), kind="OutOfSync", message="Worker 1 is further on."))
    assert end == FailRun("OutOfSync", "Worker 1 is further on.", "trace of worker 2")


def test_a_server_that_fails_is_called_one() -> None:
    run = Driven(workers=2, servers=1).begun()
    run(failed(2, step=24))
    assert run.told == "server 2 failed with ValueError: boom at train.py:12"
    (end,) = run(Measured(24, {}), after=1.0)
    assert isinstance(end, FailRun) and end.message.startswith("server 2 failed with ValueError: boom at train.py:12. ")


def test_a_late_worker_that_fails_for_want_of_a_batch_is_not_replaced() -> None:
    run = Driven(workers=2).begun()
    assert started(run(WorkerLost(1, "signal", 9, 24))) == [(2, 0)]
    run.quiet(2, 0, step=24)
    run(ready(2))
    run.quiet(3, 0, step=24)
    run(idle(2, step=30))
    assert run.told.startswith(
        "worker 2 had no batch in its last loop over the loader, and failed after it, at step 30, with NameError: no "
        "'loss' at train.py:12; the run goes on without it; loops that are over give a worker that comes late no "
        "batch: use run.epochs in place of range, and run.loss, or `if run.lead:` around what needs a batch"
    ), run.told
    run.quiet(4, 0, step=30)
    got = run(WorkerLost(2, "exit", 1, 30))
    assert installed(got).members == [0] and not started(got) and not started(run(Measured(36, {})))
    assert started(run(ScaleRequested(2))) == [(3, 0)], "who asks for two gets two"
    # Now the only one that can go on is lost, and nobody else gets that far.
    run(ready(3))
    run.quiet(5, 0, step=36)
    run(WorkerLost(0, "signal", 9, 36), idle(3, step=36))
    assert not run.machine.over, "another one may do better"


# ---------------------------------------------------------------- how they are called


def test_servers_that_are_lost_again_and_again_are_called_servers() -> None:
    run = Driven(workers=1, servers=1, luck_budget=1).begun()
    run(WorkerLost(1, "signal", 9))
    (end,) = run(WorkerLost(2, "signal", 11))
    assert end == FailRun(
        "CrewLost",
        "Processes of the run were lost 2 times in a row without a step of progress (step 0); 1 is forgiven. The last "
        "ones: server 1 (signal 9); server 2 (signal 11). Look at the end of logs/worker-2.log, and at the memory they "
        "need.",
    )


def test_a_server_that_hangs_is_called_one() -> None:
    (end,) = Driven(workers=1, servers=1).begun()(WorkerHung(1, 31.0, "train.py:5"))
    assert end == FailRun(
        "Hang",
        "server 1 made no progress for 31.0 s outside any unit; it stands at train.py:5. Look at that line first: it "
        "waits for something that does not come.",
    )


def test_on_several_hosts_it_is_said_where_who_was_lost_is() -> None:
    run = Driven(workers=1, servers=1, listening=True, follow=False).begun()
    run(HostJoined(1, "there", 1), WorkerLost(1, "signal", 9))
    assert run.told.startswith("server 1 on host 0 lost (signal 9): server 3 starts on host 0")
    run(WorkerLost(2, "signal", 9))
    assert run.told.startswith("worker 2 on host 1 lost (signal 9): worker 4 starts in its place on host 1")


def test_a_host_is_lost_with_its_servers() -> None:
    run = Driven(workers=0, servers=1, listening=True)
    run.started()
    run(HostJoined(1, "there", 1), HostLost(1, "its connection closed"))
    assert run.told.startswith("host 1 lost (its connection closed) with worker 0 and server 1")


def test_workers_and_servers_that_fail_alike_are_told_together() -> None:
    run = Driven(workers=2, servers=1)
    run.started()
    (end,) = run(failed(0), failed(2), failed(1))
    assert isinstance(end, FailRun)
    assert end.message.startswith(
        "worker 0 failed with ValueError: boom at train.py:12; worker 1 and server 2 the same. Fix the script"
    )


def test_a_server_without_memory_is_bad_luck_and_replaced() -> None:
    run = Driven(workers=2, servers=1, luck_budget=1).begun()
    starved = msgspec.structs.replace(failed(2, kind="MemoryError", message="", where="train.py:9", step=5), idle=True)
    assert KillWorker(2, "out of memory at train.py:9") in run(starved)
    assert run.told.startswith("server 2 is out of memory at train.py:9: server 3 starts")
    assert run(starved) == [], "it is said until it is gone"
    run(WorkerLost(2, "signal", 9))
    again = msgspec.structs.replace(failed(3, kind="MemoryError", message="", where="train.py:9", step=5), idle=True)
    (end,) = run(again)
    assert end == FailRun(
        "CrewLost",
        "Processes of the run were lost 2 times in a row without a step of progress (step 5); 1 is forgiven. The last "
        "ones: server 2 (out of memory at train.py:9); server 3 (out of memory at train.py:9). Look at the end of "
        "logs/worker-3.log, and at the memory they need.",
    )


def test_a_script_that_needs_more_memory_than_there_is_fails_at_once() -> None:
    run = Driven(workers=1)
    run.started()
    (end,) = run(failed(0, kind="MemoryError", message="", step=0))
    assert end == FailRun(
        "ResourceError",
        "worker 0 failed with MemoryError at train.py:12. There was not enough memory: start fewer workers or servers, "
        "make the model or the batch smaller, or use a machine that has more; the whole output is in "
        "logs/worker-0.log.",
        end.trace,
    )


def test_who_takes_the_place_of_another_and_has_no_memory_from_the_start_is_bad_luck() -> None:
    """It has made no step itself, and the run has."""
    run = Driven(workers=2, servers=1).begun()
    run(WorkerLost(2, "signal", 9, 5))
    run.quiet(2, 0, 1, step=5)
    assert KillWorker(3, "out of memory at train.py:9") in run(
        failed(3, kind="MemoryError", message="", where="train.py:9", step=-1)
    )
    assert run.told.startswith("server 3 is out of memory at train.py:9: server 4 starts")
