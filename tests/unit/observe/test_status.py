"""What `holdfast status` tells, as a table and as JSON."""

from __future__ import annotations

import msgspec

from holdfast.control.membership.roster import CrewStatus, HostStatus, WorkerStatus
from holdfast.core.sync.modes import HeldBack, Reason
from holdfast.dataplane.memory.board_snapshot import BoardPlan
from holdfast.dataplane.relaxed.ages import Ages
from holdfast.observe import status
from holdfast.observe.meter import Meter, RunView
from tests.unit.observe.rows import row

PLAN = BoardPlan(steps_per_epoch=100, epochs=3, batch=32)


def snapshot() -> CrewStatus:
    return CrewStatus(
        generation=3, step=7, wanted=2, members=[0, 2], drivers=[0, 0, 2, 2],
        people=[WorkerStatus(2, 102, 1, "member", [2, 3]), WorkerStatus(0, 100, 0, "member", [0, 1])],
        lost=1, changing=False, waiting=[], stopping=False,
    )


def test_status_has_the_promised_names() -> None:
    view = RunView(step=7, total_steps=300, epoch=0, epochs=3, losses=(0.5,), speeds={0: 10.0}, steps={0: 7}, eta=2.0)
    told = status.of_going(snapshot(), view, pid=9, host="here", seconds=1.5, directory="runs/x")
    assert {"step", "epoch", "generation", "coordinator", "workers", "servers"} <= set(told)
    assert told["coordinator"] == {"pid": 9, "host": "here"}
    assert told["workers"][0] == {
        "worker": 0, "pid": 100, "host": "here", "host_number": 0, "lanes": [0, 1], "step": 7, "speed": 10.0,
        "wait": 0.0, "state": "member", "lead": True, "waits_for": None, "why": None,
        "held_up_by": None, "held_up": 0.0,
    }
    assert [worker["worker"] for worker in told["workers"]] == [0, 2]
    table = status.table(told).splitlines()
    assert table[0] == "runs/x: running, generation 3, launcher pid 9"
    assert table[3].split() == ["0", "100", "member", "0,1", "7", "10", "0%", "lead"]


def test_status_says_which_training_of_its_script_a_run_is_at() -> None:
    told = status.of_going(snapshot(), RunView(step=7, training=2), pid=9, host="here", seconds=1.5, directory="runs/x")
    assert told["training"] == 2 and told["progress"] == "training 2  step 7"
    assert status.of_ended({"outcome": "ok", "trainings": [{"steps": 7}]}, "runs/x")["trainings"] == [{"steps": 7}]


def test_status_shows_what_servers_own_and_how_fast_they_apply() -> None:
    meter = Meter()
    for second in range(1, 3):
        shown = row(2, owned=3, applied=10 * second, applied_bytes=8_000_000 * second, applying_seconds=0.1 * second)
        view = meter.update([shown], PLAN, float(second))
    people = [WorkerStatus(2, 102, 1, "member", [], 0, True, 0.25), WorkerStatus(3, 103, 2, "member", [], 0, True)]
    told = status.of_going(
        msgspec.structs.replace(snapshot(), people=people), view, pid=9, host="here", seconds=1.5, directory="runs/x"
    )
    first, second = told["servers"]
    assert (first["slices"], first["share"], first["bytes_per_second"], first["speed"]) == (3, 0.25, 80_000_000, 10.0)
    assert (second["slices"], second["share"], second["bytes_per_second"]) == (0, 0.0, 0)
    lines = status.table(told).splitlines()[-2:]
    assert [line.split()[3:-3] for line in lines] == [["3", "(25%)"], ["0"]]


def test_status_says_why_a_worker_waits_where_that_is_known() -> None:
    held = HeldBack((3,), Reason.AHEAD, lane=0, ahead=2, most=1)
    view = Meter().update([row(0, waiting_for=2, why=held.word), row(2, waiting_for=0), row(5)], PLAN, 0.0)
    assert view.waiting == {0: (2, "lane 0 is 2 pushes ahead of lane 3, and 1 is allowed"), 2: (0, "")}
    told = status.of_going(snapshot(), view, pid=9, host="here", seconds=1.5, directory="runs/x")
    assert [(worker["waits_for"], worker["why"]) for worker in told["workers"]] == [(2, view.waiting[0][1]), (0, None)]
    assert status.table(told).splitlines()[-1] == f"  worker 0 waits for worker 2: {view.waiting[0][1]}"
    serving = msgspec.structs.replace(
        snapshot(), people=[WorkerStatus(2, 102, 1, "member", [], 0, True), WorkerStatus(0, 100, 0, "member", [0, 1])]
    )
    told = status.of_going(serving, view, pid=9, host="here", seconds=1.5, directory="runs/x")
    assert status.table(told).splitlines()[-1] == f"  worker 0 waits for server 2: {view.waiting[0][1]}"


def test_status_says_for_whom_a_worker_waits_a_lot_and_nothing_of_a_moment() -> None:
    meter = Meter()

    def told(second: float, *waiting: int) -> list[str]:
        rows = [row(worker, waiting_for=2 if worker in waiting else -1) for worker in (0, 2)]
        view = meter.update(rows, PLAN, second)
        shown = status.of_going(snapshot(), view, pid=9, host="here", seconds=1.5, directory="runs/x")
        return [line.strip() for line in status.table(shown).splitlines() if " waits for " in line]

    assert told(0.0, 0) == told(0.2, 0) == told(0.4) == []  # a moment
    for look in range(3, 13):
        told(0.2 * look, 0)
    assert told(2.6, 0) == ["worker 0 waits for worker 2: 70% of the last seconds"]
    assert told(2.8) == ["worker 0 waits for worker 2: 63% of the last seconds"]  # it does not come and go
    for look in range(15, 25):
        told(0.2 * look)
    assert told(5.0) == []


def test_status_of_several_hosts() -> None:
    crew = msgspec.structs.replace(
        snapshot(), people=[WorkerStatus(0, 100, 0, "member", [0, 1], 0), WorkerStatus(2, 102, 1, "starting", [], 1)],
        hosts=[HostStatus(1, "there", 2, -1, "SIGTERM"), HostStatus(0, "here", 1, 7)],
    )  # fmt: skip
    told = status.of_going(
        crew, RunView(step=7), pid=9, host="here", seconds=1.5, directory="runs/x", peers={1: "10.0.0.2:5000"}
    )
    assert told["hosts"] == [
        {
            "host": 0, "name": "here", "address": None, "slots": 1, "workers": 1, "level": 7, "role": None,
            "leaving": None,
        },
        {
            "host": 1, "name": "there", "address": "10.0.0.2:5000", "slots": 2, "workers": 1, "level": -1,
            "role": None, "leaving": "SIGTERM",
        },
    ]  # fmt: skip
    assert [worker["host"] for worker in told["workers"]] == ["here", "there"]
    table = status.table(told).splitlines()
    assert table[2].split()[-1] == "host" and table[4].split()[-1] == "1"
    assert table[-2:] == [
        "  host 0 (here): this machine, 1 of 1 slots",
        "  host 1 (there): 10.0.0.2:5000, 1 of 2 slots, no state yet, leaving (SIGTERM)",
    ]


def test_status_of_several_hosts_of_which_one_holds_the_state() -> None:
    hosts = [HostStatus(n, "there", 1, level, "", role) for n, level, role in
             ((0, 3, "home"), (1, -1, "replica"), (2, -1, "mirror"), (3, -1, ""))]  # fmt: skip
    crew = msgspec.structs.replace(snapshot(), hosts=hosts)
    told = status.of_going(crew, RunView(step=7), pid=9, host="here", seconds=1.5, directory="runs/x")
    assert [there["role"] for there in told["hosts"]] == ["home", "replica", "mirror", None]
    assert [line.partition("slots, ")[2] for line in status.table(told).splitlines()[-4:]] == [
        "the home: holds the state", "holds a replica", "mirrors the state", "no state yet",
    ]


def test_status_shows_how_stale_pushes_were() -> None:
    view = RunView(ages=Ages((195, 4, *[0] * 29, 1), 68, 64))
    told = status.of_going(snapshot(), view, pid=9, host="here", seconds=1.5, directory="runs/x")
    assert (told["staleness"], told["staleness_mean"], told["staleness_most"]) == ([195, 4, *[0] * 29, 1], 0.34, 64)
    shown = "  staleness of pushes: 0: 98%, 1: 2%, 31+: 0.5% (mean 0.34, most 64)"
    assert shown in status.table(told).splitlines()
    told = status.of_going(snapshot(), RunView(), pid=9, host="here", seconds=1.5, directory="runs/x")
    assert (told["staleness"], told["staleness_mean"], told["staleness_most"]) == ([], None, None)
    ended = status.of_ended({"outcome": "ok", "staleness": [3], "staleness_mean": 0.0, "staleness_most": 0}, "runs/x")
    assert (ended["staleness"], ended["staleness_mean"], ended["staleness_most"]) == ([3], 0.0, 0)


def test_status_of_a_run_that_has_ended() -> None:
    told = status.of_ended({"outcome": "failed", "error": "ScriptFailed: x\ny", "steps": 5}, "runs/x")
    assert told["state"] == "ended" and told["step"] == 5 and told["workers"] == []
    assert status.table(told).splitlines()[:2] == ["runs/x: ended (failed)", "  ScriptFailed: x"]
