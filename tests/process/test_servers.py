"""Servers own the parameters: the same weights as without them, whoever is killed, added or let go."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from holdfast.control.protocol.requests import Scale
from holdfast.control.shell.control_client import ask
from tests.process.harness import Launch, golden, holdfast
from tests.process.joined import LOOPBACK, Joined
from tests.process.six_epochs import finished, go, slow

pytestmark = [pytest.mark.process, pytest.mark.sharing]


def owning(run: Launch, servers: int) -> list[int]:
    """Wait until this many servers own all slices between them. Their pids."""
    status = run.wait(
        lambda s: len(s["servers"]) == servers and all(one["state"] == "member" for one in s["servers"])
        and not s["waiting_for"] and (not servers or any(one["slices"] for one in s["servers"])),
        f"{servers} servers that own",
    )  # fmt: skip
    return [one["pid"] for one in status["servers"]]


@pytest.mark.parametrize(
    "model", ["transformer", *(pytest.param(other, marks=pytest.mark.chaos) for other in ("normed", "lenet"))]
)
def test_the_same_weights_as_without_servers(tmp_path: Path, model: str) -> None:
    with Launch(tmp_path, model, "--workers", 2, "--servers", 1) as run:
        assert run.end() == 0, run.err
    assert run.sha256 == golden(model, 4)
    run.trace.audit(samples=484, steps_of_epoch=16, epochs=3)
    assert any("server 2 owns the parameters" in line for line in run.story), run.story
    assert run.summary["workers_lost"] == 0


def test_servers_that_only_sum(tmp_path: Path) -> None:
    """The workers run the optimizer. A server is killed, and for a while there is none."""
    only = ("--servers", 1, "--set", "optimizer=workers")
    with Launch(tmp_path, "normed", "--workers", 2, *only, args=slow(tmp_path)) as run:
        run.at_step(5)
        run.strike(owning(run, 1)[0])
        owning(run, 1)
        ask(run.dir, Scale(servers=0))
        owning(run, 0)
        ask(run.dir, Scale(servers=2))
        owning(run, 2)
        go(tmp_path)
        finished(run)
    assert run.summary["workers_lost"] == 1
    assert any("sums the gradients" in line for line in run.story), run.story


@pytest.mark.parametrize(
    ("loop", "mode"),
    [("", "exact"), ("--plain", "bounded:0"), ("--plain --fetchers 1", "exact")],
)
def test_a_server_has_a_batch_of_each_loop(tmp_path: Path, loop: str, mode: str) -> None:
    """The script prints a mean of the last loss after it."""
    options = ("--workers", 2, "--servers", 1, "--sync", mode)
    with Launch(tmp_path, "normed", *options, args=f"--mean {loop}") as run:
        assert run.end() == 0, run.err
    run.trace.audit(samples=484, steps_of_epoch=16, epochs=3)
    assert loop or run.sha256 == golden("normed", 4)
    assert not any("had no batch" in line for line in run.story) and run.summary["workers_lost"] == 0, run.story
    assert run.summary["samples"] == 3 * 484


@pytest.mark.chaos
@pytest.mark.parametrize(("loop", "mode"), [("", "exact"), ("--plain", "exact"), ("--plain", "bounded:1")])
def test_a_late_worker_has_a_batch_of_loops_that_are_over(tmp_path: Path, loop: str, mode: str) -> None:
    args = f"--mean --range {loop} " + slow(tmp_path)
    with Launch(tmp_path, "normed", "--workers", 2, "--sync", mode, args=args) as run:
        run.at_step(18)
        run.strike(run.crew_of(2)[1])
        run.crew_of(2)
        go(tmp_path)
        assert run.end() == 0, run.err
    assert run.summary["steps"] == 96 and not any("had no batch" in line for line in run.story), run.story


def test_more_servers_than_slices(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", "--workers", 1, "--servers", 3) as run:
        assert run.end() == 0, run.err
    assert run.sha256 == golden("normed", 4)


@pytest.mark.chaos
def test_a_server_is_killed(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", "--workers", 2, "--servers", 1, args=slow(tmp_path)) as run:
        run.at_step(5)
        run.strike(owning(run, 1)[0])
        run.told("server 2 lost (signal 9): server 3 starts")
        owning(run, 1)
        go(tmp_path)
        finished(run)
    assert run.summary["workers_lost"] == 1


def test_servers_come_and_go_while_the_run_goes_on(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", "--workers", 2, args=slow(tmp_path)) as run:
        run.at_step(3)
        ask(run.dir, Scale(servers=2))
        owning(run, 2)
        ask(run.dir, Scale(servers=1))
        owning(run, 1)
        shown = run.status()
        (server,) = shown["servers"]
        assert (server["host_number"], server["state"], shown["servers_wanted"]) == (0, "member", 1)
        assert server["slices"] >= 1
        assert sorted(lane for worker in shown["workers"] for lane in worker["lanes"]) == [0, 1, 2, 3]
        assert "server      pid state      slices" in holdfast("status", run.dir).stdout
        told = holdfast("scale", run.dir, "--servers", 0).stdout
        assert told.startswith("0 servers were asked for instead of 1: server ")
        owning(run, 0)
        go(tmp_path)
        finished(run)
    assert run.summary["workers_lost"] == 0


@pytest.mark.chaos
@pytest.mark.parametrize("who", ["servers", "workers"])
@pytest.mark.parametrize("seed", range(10))
def test_workers_and_servers_are_killed_by_a_seed(tmp_path: Path, seed: int, who: str) -> None:
    """A worker, a server, or both at once, three times."""
    chance = random.Random(seed)
    with Launch(
        tmp_path, "normed", "--workers", 2, "--servers", 2, "--set", f"optimizer={who}", args=slow(tmp_path)
    ) as run:
        for turn in range(3):
            run.at_step(5 + 8 * turn + chance.randrange(6))
            struck = chance.choice(("worker", "server", "both"))
            servers, workers = owning(run, 2), run.crew_of(2)
            for pid in (servers if struck != "worker" else [])[: chance.randrange(1, 3)]:
                run.strike(pid)
            if struck != "server":
                run.strike(chance.choice(workers))
        go(tmp_path)
        finished(run)


@pytest.mark.chaos
@pytest.mark.parametrize("who", ["servers", "workers"])
def test_servers_on_one_of_two_hosts_sum_for_both(tmp_path: Path, who: str) -> None:
    with Launch(
        tmp_path, "normed", *LOOPBACK, "--hosts", 2, "--workers", 1, "--servers", 1,
        "--set", f"optimizer={who}",
    ) as run, Joined(tmp_path, run) as other:  # fmt: skip
        assert run.end() == 0, run.err
        assert other.end() == 0, other.err
    assert run.sha256 == golden("normed", 4)
