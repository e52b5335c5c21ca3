"""`holdfast set DIR sync=MODE` on several machines: every host is in one mode, and the state in the right place."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.control.protocol.requests import Set
from holdfast.control.shell.control_client import ask
from tests.process.harness import Launch
from tests.process.joined import LOOPBACK, Joined, joining
from tests.process.mode_changes import (
    LOCALS,
    Computed,
    Counted,
    Judged,
    Machines,
    drawn,
    modes,
    strike_somebody,
    turn,
)
from tests.process.six_epochs import PLAIN, go, slow, used_once
from tests.process.trail import AUDITED

pytestmark = [pytest.mark.process, pytest.mark.sharing]

#: Seconds of a unit until a run may go: steps of `scripts/adam.py` are many more.
PACE: dict[type[Judged], float] = {Counted: 0.08, Computed: 0.12}
#: Modes whose result does not depend on timing.
TIMELESS = ("exact", "bounded:0", *LOCALS)


def start(
    script: type[Judged], tmp_path: Path, syncs: Sequence[str], *options: object, hosts: int, epochs: int
) -> Judged:
    return script(tmp_path, syncs, *options, hosts=hosts, epochs=epochs, pace=PACE[script])


def chaos(*case: object) -> Any:
    return pytest.param(*case, marks=pytest.mark.chaos)


@pytest.mark.parametrize(
    ("model", "servers"), [("normed", 1), *(chaos(m, s) for m in ("normed", "transformer") for s in (0, 1))]
)
def test_there_and_back_uses_every_sample_once(tmp_path: Path, model: str, servers: int) -> None:
    """In between a worker of another host is lost, and a machine joins in the mode that counts then."""
    options = (*LOOPBACK, "--hosts", 2, "--workers", 1, "--servers", servers, *AUDITED)
    with Launch(tmp_path, model, *options, args=slow(tmp_path) + PLAIN) as run, \
            Joined(tmp_path, run, workers=1, name="a") as other:  # fmt: skip
        run.at_step(3)
        start = turn(run, "bounded:0")
        away = run.wait(lambda s: [w for w in s["workers"] if w["host_number"] == 1 and w["pid"]], "one over there")
        run.strike(next(w["pid"] for w in away["workers"] if w["host_number"] == 1))
        run.wait(lambda s: s["workers_lost"] == 1, "the loss")
        with Joined(tmp_path, run, name="b") as third:
            run.wait(lambda s: any(w["host_number"] == 2 and w["lanes"] for w in s["workers"]), "a third host's work")
            end = turn(run, "exact")
            run.wait(lambda s: len({w["host_number"] for w in s["workers"] if w["lanes"]}) == 3, "three hosts")
            go(tmp_path)
            assert run.end() == 0, run.err
            assert (other.end(), third.end()) == (0, 0), (other.err, third.err)
    assert run.summary["modes"] == [
        {"step": 0, "sync": "exact"}, {"step": start, "sync": "bounded:0"}, {"step": end, "sync": "exact"},
    ]  # fmt: skip
    used_once(run)


# ---------------------------------------------------------------- nothing is lost, nothing counts twice


@pytest.mark.chaos
def test_every_push_is_applied_once_though_workers_and_hosts_are_lost_meanwhile(tmp_path: Path) -> None:
    syncs = ["exact", "async", "bounded:2", "exact"]
    with start(Counted, tmp_path, syncs, "--workers", 1, "--servers", 1, hosts=3, epochs=16) as run, \
            Joined(tmp_path, run, name="a") as a, Joined(tmp_path, run, name="b") as b:  # fmt: skip
        pids = run.crew_of(3)
        turn(run, "async", lambda: run.strike(pids[2]))
        run.crew_of(3)
        turn(run, "bounded:2", a.kill_all)
        turn(run, "exact")
        run.go()
        assert run.end() == 0, run.err
        assert b.end() == 0, b.err
    assert modes(run) == syncs
    run.judge()


def test_the_worker_of_another_machine_is_killed_while_the_mode_changes(tmp_path: Path) -> None:
    """What optimizers keep goes to the lanes, and back."""
    syncs = ["exact", "local:3", "exact"]
    with start(Computed, tmp_path, syncs, "--workers", 1, hosts=2, epochs=16) as run, \
            Joined(tmp_path, run, workers=1) as other:  # fmt: skip
        run.at_step(2)
        turn(run, "local:3", lambda: run.strike(run.crew_of(2)[1]))
        run.wait(lambda s: any(w["host_number"] == 1 and w["lanes"] for w in s["workers"]), "its work")
        run.through(["exact"], steps=5)
        assert run.end() == 0, run.err
        assert other.end() == 0, other.err
    assert modes(run) == syncs
    run.judge()


#: By which script, how long, and the modes that a seed draws.
Schedule = tuple[type[Judged], int, Callable[[random.Random], list[str]]]
SCHEDULES: dict[str, Schedule] = {
    "pushes": (Counted, 24, lambda chance: drawn(chance, 5, ("exact", "bounded:0", "bounded:3", "async"), "exact")),
    "states": (Computed, 50, lambda chance: drawn(chance, 5, TIMELESS)),
}


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("what", "seed"), [(what, seed) for what, seeds in (("pushes", 20), ("states", 12)) for seed in range(seeds)]
)
def test_many_schedules(tmp_path: Path, what: str, seed: int) -> None:
    """Somebody, or a whole machine that does not hold the state alone, is lost after each is asked for. Others join."""
    chance = random.Random(seed)
    script, epochs, draw = SCHEDULES[what]
    syncs = draw(chance)
    options = ("--workers", 1, "--servers", seed % 3)
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(start(script, tmp_path, syncs, *options, hosts=3, epochs=epochs))
        joined = [stack.enter_context(Joined(tmp_path, run, name=f"j{n}")) for n in range(2)]
        names = iter(f"again{n}" for n in range(9))

        def struck() -> None:
            if chance.random() < 0.4:
                run.go_on_for(chance.random() * 0.3)
                joined.pop(chance.randrange(len(joined))).kill_all()
                joined.append(stack.enter_context(Joined(tmp_path, run, name=next(names))))
            else:
                strike_somebody(run, chance)

        run.through(syncs[1:], struck, steps=5 if script is Computed else 0)
        assert run.end(120) == 0, run.err
    assert modes(run) == syncs
    run.judge()


@pytest.mark.chaos
@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.1, 0.2, 0.4])
@pytest.mark.parametrize(
    ("script", "before", "after"),
    [(Counted, "exact", "bounded:0"), (Counted, "exact", "bounded:2"),
     (Computed, "exact", "local:3"), (Computed, "local:3", "exact")],
)  # fmt: skip
def test_the_primary_is_lost_while_the_mode_changes(
    tmp_path: Path, script: type[Judged], before: str, after: str, seconds: float
) -> None:
    """While others hold the state, too, the run goes on from there; else it is lost."""
    with start(script, tmp_path, [before], "--workers", 0, hosts=2, epochs=8 if script is Counted else 12) as run, \
            joining(tmp_path, run, 1) as primary, Joined(tmp_path, run, name="b"):  # fmt: skip
        run.at_step(2 if script is Counted else 7)
        ask(run.dir, Set(after))
        run.go_on_for(seconds)
        primary.kill_all()
        run.go()
        code = run.end(60)
    if code == 0:
        assert modes(run) in ([before], [before, after])
        run.judge()
    else:
        assert "The state of the run is lost at step" in run.err
        assert (f"lanes keep step by {after}" if script is Counted else "local:3") in run.err


@pytest.mark.chaos
def test_a_host_that_follows_when_the_mode_changes_is_taken_in(tmp_path: Path) -> None:
    """And one that joins a run which was started in another mode follows it in `exact`."""
    with start(Counted, tmp_path, ["bounded:1"], "--workers", 2, hosts=1, epochs=48) as run:
        run.at_step(0)
        turn(run, "exact")
        with Joined(tmp_path, run, name="a") as a:
            run.told("host 1 has caught up")
            run.wait(lambda s: any(w["host_number"] == 1 and w["lanes"] for w in s["workers"]), "its work")
            with Joined(tmp_path, run, name="b") as b:
                run.told("host 2 (")
                turn(run, "async")
                run.wait(lambda s: any(w["host_number"] == 2 and w["lanes"] for w in s["workers"]), "its work")
                turn(run, "exact")
                run.go()
                assert run.end() == 0, run.err
                assert (a.end(), b.end()) == (0, 0)
    run.judge()


# ---------------------------------------------------------------- with replicas


@pytest.mark.parametrize(
    ("script", "syncs"),
    [
        (Counted, ("async", "exact", "bounded:2")),
        (Computed, ("bounded:0", "local:4", "exact")),
        *(chaos(Counted, syncs) for syncs in (("exact", "async"), ("bounded:2", "quorum:2", "async"))),
        *(chaos(Computed, syncs) for syncs in (
            ("exact", "local:4", "bounded:0"), ("local:4", "exact", "local:3"), ("local:4", "local:3", "exact"),
            ("local:4", "bounded:0", "local:3"),
        )),
    ],
    ids=lambda it: it.__name__ if isinstance(it, type) else "-".join(it),
)  # fmt: skip
def test_with_a_replica_the_primary_may_be_lost_right_after_a_change(
    tmp_path: Path, script: type[Judged], syncs: tuple[str, ...]
) -> None:
    """Of three machines one is left in the end. Each has made of its copy what the primary made of the state."""
    options = ("--workers", 0, "--replicas", 2)
    with start(script, tmp_path, syncs, *options, hosts=3, epochs=16 if script is Counted else 10) as run, \
            contextlib.ExitStack() as stack:  # fmt: skip
        machines = Machines(tmp_path, run, stack)
        run.at_step(0)
        for sync in syncs[1:]:
            run.at_step(run.trace.read().step + (5 if script is Computed else 0))
            turn(run, sync)
            machines.lose_the_primary()
        run.go()
        assert run.end() == 0, run.err
    assert modes(run) == list(syncs)
    assert "made again" not in run.err
    run.judge()


def went_through(machines: Machines, run: Judged, syncs: Sequence[str], chance: random.Random) -> None:
    """Each of these modes is asked for, with a strike each time, and nothing that was shown is made again."""
    run.at_step(2)
    for sync in syncs[1:]:
        machines.calm()
        turn(run, sync, lambda: machines.strike(chance))
    run.go()
    assert run.end(120) == 0, run.err
    assert modes(run) == list(syncs)
    assert "made again" not in run.err


def replayed(place: Path, changes: Sequence[dict[str, Any]], epochs: int) -> Launch:
    """The same changes at the same steps, on one machine, and nobody is lost. Each is asked for in the step before."""
    place.mkdir()
    holds = [(change["step"] - 1, place / f"hold{change['step']}") for change in changes[1:]]
    args = " ".join(f"--hold {step}:{file}" for step, file in holds)
    with Computed(place, [changes[0]["sync"]], "--workers", 2, epochs=epochs, pace=0.0, args=args) as run:
        for (step, file), change in zip(holds, changes[1:], strict=True):
            run.at_step(step)
            ask(run.dir, Set(change["sync"]))
            file.touch()
        assert run.end() == 0, run.err
    return run


@pytest.mark.chaos
@pytest.mark.parametrize("seed", [*range(1000, 1024), *range(2000, 2024)])
def test_with_replicas_nothing_is_lost_under_many_schedules(tmp_path: Path, seed: int) -> None:
    """The primary, another machine, or a worker is lost a random moment after each is asked for. Others join."""
    chance = random.Random(seed)
    script: type[Judged] = Counted if seed < 2000 else Computed
    if script is Counted:
        others = ("exact", "exact", "bounded:0", "bounded:3", "async", "quorum:2", "local:1", "local:3")
        syncs = drawn(chance, 4, others, chance.choice(("exact", "bounded:2", "async", "quorum:2", "local:3")))
    else:
        syncs = drawn(chance, 4, TIMELESS)
    options = ("--workers", 0, "--replicas", 1 + seed % 2, "--servers", int(seed % 1000 % 3 == 0))
    epochs = 40 if script is Counted else 60
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(start(script, tmp_path, syncs, *options, hosts=3, epochs=epochs))
        went_through(Machines(tmp_path, run, stack), run, syncs, chance)
    run.judge()
    if script is Computed:
        assert replayed(tmp_path / "calm", run.summary["modes"], epochs).sha256 == run.sha256
