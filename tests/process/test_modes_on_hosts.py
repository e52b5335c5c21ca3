"""Ways of keeping step between machines, over loopback: one host holds the state, the others push and pull."""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.counted import BATCH, EPOCHS, SAMPLES, TALLY, applied_once, arguments, settings
from tests.process.harness import Launch, golden, until
from tests.process.joined import LOOPBACK, Joined, joining
from tests.process.six_epochs import go, slow

pytestmark = [pytest.mark.process, pytest.mark.sharing]


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("model", "servers"), [("normed", 1), ("lenet", 0), ("lenet", 1)]
)
def test_bounded_0_gives_the_bits_of_exact_where_each_worker_has_a_lane(
    tmp_path: Path, model: str, servers: int
) -> None:
    options = (*LOOPBACK, "--hosts", 2, "--workers", 1, "--servers", servers, "--sync", "bounded:0")
    with Launch(tmp_path, model, *options, args="--lanes 3") as run, Joined(tmp_path, run, workers=2) as other:
        assert run.end() == 0, run.err
        assert other.end() == 0, other.err
    assert run.sha256 == golden(model, 3)
    run.trace.audit(samples=484, steps_of_epoch=16, epochs=3)


@pytest.mark.chaos
@pytest.mark.parametrize("lost", ["another host", "the primary"])
@pytest.mark.parametrize("model", ["normed", "transformer"])
def test_local_steps_give_the_same_bits_though_a_host_is_lost(tmp_path: Path, model: str, lost: str) -> None:
    """What a lane's next round begins with is kept where the state is, so whoever takes the lane over has it."""
    with Launch(tmp_path, model, "--workers", 2, "--sync", "local:3", dir="calm", args="--epochs 6") as calm:
        assert calm.end() == 0, calm.err
    alone = lost == "the primary"  # the launcher's machine has no part, and the first that joins holds the state
    crew = ("--workers", 0, "--replicas", 1) if alone else ("--workers", 1, "--servers", 1)
    options = (*LOOPBACK, "--hosts", 2, *crew, "--sync", "local:3")  # the audit trail of a lost host has gaps
    with Launch(tmp_path, model, *options, dir="struck", args=slow(tmp_path)) as run, \
            joining(tmp_path, run, 1) as gone, contextlib.ExitStack() as others:  # fmt: skip
        if alone:
            others.enter_context(Joined(tmp_path, run, name="b"))
        run.at_step(8)
        gone.kill_all()
        run.told("host 1 lost")
        go(tmp_path)
        assert run.end() == 0, run.err
    assert (run.sha256, run.summary["samples"]) == (calm.sha256, 6 * 484)
    run.trace.audit(samples=484, steps_of_epoch=16, epochs=6)


@contextlib.contextmanager
def counting(tmp_path: Path, mode: str, *options: object, hosts: int = 1) -> Iterator[Launch]:
    """A run of the audit model that is slow until the file `go` is there."""
    args = f"{arguments(tmp_path)} --pace 0.4"
    with Launch(tmp_path, TALLY, *LOOPBACK, "--hosts", hosts, *settings(mode), *options, args=args) as run:
        yield run


def going(run: Launch, tmp_path: Path) -> None:
    until((tmp_path / "began").exists, lambda: f"the first unit\n{run.err}", 60.0)


def members(status: dict[str, Any], kind: str) -> list[int]:
    """The pids of those who take part. Whoever only starts, or waits to be taken in, would be no loss."""
    return [one["pid"] for one in status[kind] if one["state"] == "member" and one["pid"]]


def schedule(tmp_path: Path, mode: str, seed: int, rounds: int) -> None:
    """Strike workers, servers and whole hosts of three, again and again; machines come back meanwhile."""
    chance = random.Random(seed)
    with contextlib.ExitStack() as stack:
        options = ("--workers", 1, "--servers", seed % 3, "--replicas", seed // 2 % 3)
        run = stack.enter_context(counting(tmp_path, mode, *options, hosts=3))
        joined = [stack.enter_context(Joined(tmp_path, run, name=f"j{n}")) for n in range(2)]
        going(run, tmp_path)
        for turn in range(rounds):
            what = chance.choice(("worker", "server", "host"))
            host = joined.pop(chance.randrange(len(joined))) if what == "host" else None
            kind = "servers" if what == "server" and seed % 3 else "workers"
            status = run.wait(
                lambda s, host=host, kind=kind: len(members(s, "workers")) >= 2 and members(s, kind)
                and (host is None or set(members(s, "workers")).intersection(host.processes())),
                f"somebody to strike: {what}",
            )  # fmt: skip
            if host is not None:
                host.kill_all()
                joined.append(stack.enter_context(Joined(tmp_path, run, name=f"again{turn}")))
            else:
                run.strike(chance.choice(members(status, kind)))
            before = status["workers_lost"]
            run.wait(lambda s, before=before: s["workers_lost"] > before, "the loss")
        go(tmp_path)
        assert run.end(120) == 0, run.err
    applied_once(run)


@pytest.mark.parametrize(
    "mode", ["async", *(pytest.param(m, marks=pytest.mark.chaos) for m in ("bounded:2", "quorum:2"))]
)
def test_every_push_is_applied_exactly_once(tmp_path: Path, mode: str) -> None:
    """A worker of another host is killed, then the whole host; and another one joins in the middle."""
    with counting(tmp_path, mode, "--workers", 1, "--servers", 1, hosts=2) as run, \
            Joined(tmp_path, run, workers=2, name="a") as other:  # fmt: skip
        going(run, tmp_path)
        away = run.wait(lambda s: sum(w["host_number"] == 1 for w in s["workers"]) == 2, "both workers over there")
        run.strike(next(w["pid"] for w in away["workers"] if w["host_number"] == 1))
        run.wait(lambda s: s["workers_lost"] == 1, "the loss")
        with Joined(tmp_path, run, name="b") as third:
            run.wait(lambda s: any(w["host_number"] == 2 and w["lanes"] for w in s["workers"]), "a third host's work")
            other.kill_all()
            run.told("host 1 lost")
            go(tmp_path)
            assert run.end() == 0, run.err
            assert third.end() == 0, third.err
    applied_once(run)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("mode", ["bounded:2", "bounded:4", "async", "quorum:2", "local:3"])
def test_every_push_is_applied_exactly_once_under_many_schedules(tmp_path: Path, mode: str, seed: int) -> None:
    schedule(tmp_path, mode, seed, rounds=3)


@pytest.mark.chaos
def test_the_host_that_holds_the_state_is_lost(tmp_path: Path) -> None:
    with counting(tmp_path, "async", "--workers", 0, hosts=2) as run, \
            joining(tmp_path, run, 1) as primary, Joined(tmp_path, run, name="b"):  # fmt: skip
        going(run, tmp_path)
        primary.kill_all()
        assert run.end() != 0
    assert "The state of the run is lost at step" in run.err


@pytest.mark.parametrize(
    ("mode", "replicas"),
    [("async", 1), *(pytest.param(m, r, marks=pytest.mark.chaos)
                     for m, r in (("async", 2), ("bounded:0", 2), ("bounded:4", 2), ("quorum:2", 1)))],
)  # fmt: skip
def test_the_host_that_holds_the_state_is_lost_and_others_have_a_replica(
    tmp_path: Path, mode: str, replicas: int
) -> None:
    with counting(tmp_path, mode, "--workers", 0, "--servers", 1, "--replicas", replicas, hosts=3) as run, \
            joining(tmp_path, run, 1) as primary, Joined(tmp_path, run, name="b") as b, \
            Joined(tmp_path, run, name="c") as c:  # fmt: skip
        going(run, tmp_path)
        run.wait(lambda s: s["step"] and s["step"] >= 2, "some steps")
        primary.kill_all()
        run.told("host 1 lost")
        run.wait(lambda s: any(one["host_number"] > 1 for one in s["servers"]), "a server on the new primary")
        go(tmp_path)
        assert run.end() == 0, run.err
        assert (b.end(), c.end()) == (0, 0)
    applied_once(run)


@pytest.mark.chaos
@pytest.mark.parametrize("mode", ["async", "bounded:2", "quorum:2"])
def test_a_machine_that_joins_becomes_the_replica_and_then_the_primary(tmp_path: Path, mode: str) -> None:
    """The only replica is lost, and a new one catches up while the primary goes on. Then the primary is lost."""
    with counting(tmp_path, mode, "--workers", 0, "--replicas", 1, hosts=2) as run, \
            joining(tmp_path, run, 1) as primary, joining(tmp_path, run, 2) as replica:  # fmt: skip
        going(run, tmp_path)
        run.wait(lambda s: s["step"] and s["step"] >= 2, "some steps")
        replica.kill_all()
        run.told("host 2 lost")
        with joining(tmp_path, run, 3) as new:
            status = run.wait(lambda s: any(h["role"] == "replica" and h["host"] == 3 for h in s["hosts"]), "a replica")
            run.wait(lambda s: s["step"] > status["step"] + 1, "steps that it holds")
            primary.kill_all()
            run.told("host 1 lost")
            go(tmp_path)
            assert run.end() == 0, run.err
            assert new.end() == 0, new.err
    assert "made again" not in run.err
    applied_once(run)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("mode", ["async", "bounded:2", "quorum:2"])
def test_the_primary_is_lost_and_then_the_replica_that_took_its_place(tmp_path: Path, mode: str, seed: int) -> None:
    """At once, or when the next one is the primary, or when steps were made there. The last of the chain has it all."""
    chance = random.Random(seed)
    with counting(tmp_path, mode, "--workers", 0, "--replicas", 2, hosts=3) as run, \
            joining(tmp_path, run, 1) as primary, joining(tmp_path, run, 2) as second, \
            joining(tmp_path, run, 3) as third:  # fmt: skip
        going(run, tmp_path)
        status = run.wait(lambda s: s["step"] and s["step"] >= 2, "some steps")
        primary.kill_all()
        when = chance.choice(("at once", "home", "steps"))
        if when != "at once":
            run.told("host 1 lost")
            run.wait(lambda s: s["generation"] > status["generation"], "the next primary")
        if when == "steps":
            run.wait(lambda s: s["step"] and s["step"] > status["step"] + 1, "steps of the next primary")
        second.kill_all()
        run.told("host 2 lost")
        go(tmp_path)
        assert run.end() == 0, run.err
        assert third.end() == 0, third.err
    applied_once(run)


@pytest.mark.chaos
def test_a_host_leaves_and_the_run_is_asked_to_end(tmp_path: Path) -> None:
    with counting(tmp_path, "bounded:2", "--workers", 1, "--servers", 1, hosts=2) as run, \
            Joined(tmp_path, run, workers=2, name="a") as other:  # fmt: skip
        going(run, tmp_path)
        other.process.send_signal(signal.SIGTERM)
        assert other.end() == 0, other.err
        run.wait(lambda s: [w["host_number"] for w in s["workers"]] == [0], "one worker")
        assert run.status()["workers_lost"] == 0
        run.send(signal.SIGTERM)
        run.end()
    assert run.summary["samples"] == run.summary["steps"] * BATCH < EPOCHS * SAMPLES, "all lanes have come as far"
    assert run.summary["staleness_most"] <= 2
