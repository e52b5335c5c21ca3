"""`holdfast set DIR sync=local:H` and back on real runs: what optimizers keep goes along, and nothing is lost."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.control.protocol.requests import Set
from holdfast.control.shell.control_client import ask
from tests.process.byhand import STEPS, by_hand
from tests.process.counted import TALLY, applied_once, arguments, settings
from tests.process.harness import SCRIPTS, Launch, until
from tests.process.joined import Joined
from tests.process.scripts.adam import LOADED
from tests.process.test_mode_change import modes, turn
from tests.process.test_mode_change_on_hosts import Machines, lose_the_primary
from tests.process.test_modes_on_hosts import LOOPBACK, first, joining

pytestmark = [pytest.mark.process, pytest.mark.sharing]

ADAM = SCRIPTS / "adam.py"


def adam(tmp_path: Path, *options: object, epochs: int, pace: float = 0.03) -> Launch:
    """A run that is slow until the file `go` is there."""
    args = f"--epochs {epochs} --pace {pace} --go {tmp_path}/go --trace {tmp_path}/trace-run"
    return Launch(tmp_path, ADAM, *options, args=args)


def through(run: Launch, tmp_path: Path, syncs: Sequence[str], struck: Callable[[], object] = lambda: None) -> None:
    """Have one mode after the other, some steps each; then the run may end."""
    run.at_step(2)
    for sync in syncs:
        turn(run, sync, struck)
        run.at_step(run.trace.read().step + 5)
    (tmp_path / "go").touch()


def computed_again(run: Launch, epochs: int, loaded: tuple[int, float, float] = (0, 0.0, 0.0)) -> None:
    """The weights are those that plain torch comes to, with these samples, through these modes."""
    run.trace.audit(samples=64, steps_of_epoch=STEPS, epochs=epochs)
    assert run.summary["steps"] == epochs * STEPS and run.summary["samples"] == epochs * 64
    line = next(line for line in run.out.splitlines() if line.startswith("weights "))
    found = torch.tensor([float.fromhex(word) for word in line.split()[1:]], dtype=torch.float64)
    wanted = by_hand(run.trace.units, run.summary["modes"], epochs * STEPS, loaded)
    assert torch.allclose(found, wanted, rtol=1e-9, atol=1e-12), (found, wanted, run.summary["modes"])


def test_each_lane_goes_on_with_the_owners_state_and_the_owners_with_the_mean(tmp_path: Path) -> None:
    """And a worker is killed right after each change was asked for."""
    syncs = ["local:3", "local:2", "exact", "local:4", "bounded:0"]
    with adam(tmp_path, "--workers", 2, "--servers", 1, epochs=14) as run:
        through(run, tmp_path, syncs, lambda: run.strike(run.crew_of(2)[0]))
        assert run.end() == 0, run.err
    assert modes(run) == ["exact", *syncs]
    computed_again(run, 14)


@pytest.mark.chaos
def test_a_run_that_begins_with_local_steps_has_the_state_that_was_loaded(tmp_path: Path) -> None:
    args = f"--epochs 2 --go {tmp_path}/go --trace {tmp_path}/trace-run --loaded"
    with Launch(tmp_path, ADAM, "--workers", 1, "--sync", "local:3", args=args) as run:
        assert run.end() == 0, run.err
    computed_again(run, 2, LOADED)


def test_the_same_bits_whoever_is_killed(tmp_path: Path) -> None:
    """Changes are asked for in the middle of two steps, in which everybody is held meanwhile."""
    ends = []
    for name in ("calm", "struck"):
        place = tmp_path / name
        place.mkdir()
        holds = f"--hold 5:{place}/first --hold 13:{place}/second"
        args = f"--epochs 4 --go {place}/go --trace {place}/trace-run {holds}"
        with Launch(place, ADAM, "--workers", 2, "--servers", 1, args=args) as run:
            for lost, (step, sync, file) in enumerate(((5, "local:4", "first"), (13, "exact", "second"))):
                run.at_step(step)
                ask(run.dir, Set(sync))
                if name == "struck":
                    status = run.status()
                    run.strike((status["servers"][0] if lost else status["workers"][-1])["pid"])
                    run.wait(lambda s, lost=lost: s["workers_lost"] > lost, "the loss")
                (place / file).touch()
            assert run.end() == 0, run.err
        computed_again(run, 4)
        ends.append((run.summary["modes"], run.sha256))
    assert [mode["step"] for mode in ends[0][0]] == [0, 6, 16], "a round that was begun is made to its end"
    assert ends[0] == ends[1]


# ---------------------------------------------------------------- many schedules

LOCALS = ("local:1", "local:3", "local:7")


def drawn(chance: random.Random, number: int) -> list[str]:
    """Modes, one after the other, whose result does not depend on timing."""
    syncs = [chance.choice(("exact", "bounded:0", *LOCALS))]
    while len(syncs) < number:
        syncs.append(chance.choice([sync for sync in ("exact", "bounded:0", *LOCALS) if sync != syncs[-1]]))
    return syncs


def strike(run: Launch, chance: random.Random) -> None:
    """Kill somebody, a random moment from now."""
    run.go_on_for(chance.random() * 0.3)
    everybody: list[dict[str, Any]] = [*run.status()["workers"], *run.status()["servers"]]
    pids = [one["pid"] for one in everybody if one["state"] == "member"]
    if pids:
        run.strike(chance.choice(pids))


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(20))
def test_many_schedules(tmp_path: Path, seed: int) -> None:
    """Random modes, and somebody is killed a random moment after each is asked for. Some begin with local steps."""
    chance = random.Random(seed)
    syncs = drawn(chance, 6)
    options = ("--workers", 2, "--servers", seed % 3, "--sync", syncs[0])
    with adam(tmp_path, *options, epochs=40) as run:
        through(run, tmp_path, syncs[1:], lambda: strike(run, chance))
        assert run.end() == 0, run.err
    assert modes(run) == syncs
    computed_again(run, 40)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(10))
def test_every_push_is_applied_once_also_with_modes_that_depend_on_timing(tmp_path: Path, seed: int) -> None:
    """By the audit model."""
    chance, others = random.Random(seed), ("exact", "async", "bounded:2")
    syncs = [chance.choice(others)]
    for _ in range(5):
        syncs.append(chance.choice(others if syncs[-1] in LOCALS else LOCALS))
    options = ("--workers", 2, "--servers", seed % 3, "--set", "staleness=plain", *settings(*syncs))
    with Launch(tmp_path, TALLY, *options, args=f"{arguments(tmp_path, 24)} --pace 0.02") as run:
        until((tmp_path / "began").exists, lambda: f"the first unit\n{run.err}")
        for sync in syncs[1:]:
            turn(run, sync, lambda: strike(run, chance))
        (tmp_path / "go").touch()
        assert run.end() == 0, run.err
    assert modes(run) == syncs
    applied_once(run, 24, plain=True)


# ---------------------------------------------------------------- several machines


def on_hosts(tmp_path: Path, *options: object, epochs: int) -> Launch:
    return adam(tmp_path, *LOOPBACK, *options, epochs=epochs, pace=0.06)


def test_on_two_machines(tmp_path: Path) -> None:
    """The worker of the other machine is killed while the mode changes."""
    with on_hosts(tmp_path, "--hosts", 2, "--workers", 1, epochs=16) as run, \
            Joined(tmp_path, run, workers=1) as other:  # fmt: skip
        run.at_step(2)
        turn(run, "local:3", lambda: run.strike(run.crew_of(2)[1]))
        run.wait(lambda s: any(w["host_number"] == 1 and w["lanes"] for w in s["workers"]), "its work")
        through(run, tmp_path, ["exact"])
        assert run.end() == 0, run.err
        assert other.end() == 0, other.err
    assert modes(run) == ["exact", "local:3", "exact"]
    computed_again(run, 16)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(12))
def test_many_schedules_on_hosts(tmp_path: Path, seed: int) -> None:
    """Somebody, or a whole machine that does not hold the state alone, is lost after each is asked for. Others join."""
    chance = random.Random(seed)
    syncs = drawn(chance, 5)
    with contextlib.ExitStack() as stack:
        options = ("--workers", 1, "--servers", seed % 3, "--hosts", 3, "--sync", syncs[0])
        run = stack.enter_context(on_hosts(tmp_path, *options, epochs=50))
        joined = [stack.enter_context(Joined(tmp_path, run, name=f"j{n}")) for n in range(2)]
        names = iter(f"again{n}" for n in range(9))

        def struck() -> None:
            if chance.random() < 0.4:
                joined.pop(chance.randrange(len(joined))).kill_all()
                joined.append(stack.enter_context(Joined(tmp_path, run, name=next(names))))
            else:
                strike(run, chance)

        through(run, tmp_path, syncs[1:], struck)
        assert run.end(120) == 0, run.err
    assert modes(run) == syncs
    computed_again(run, 50)


@pytest.mark.chaos
@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.1, 0.2, 0.4])
@pytest.mark.parametrize("syncs", [("exact", "local:3"), ("local:3", "exact")])
def test_the_primary_is_lost_while_the_mode_changes(tmp_path: Path, syncs: tuple[str, str], seconds: float) -> None:
    """While others hold the state, too, the run goes on from there."""
    with on_hosts(tmp_path, "--workers", 0, "--hosts", 2, "--sync", syncs[0], epochs=12) as run, \
            first(tmp_path, run) as primary, Joined(tmp_path, run, name="b"):  # fmt: skip
        run.at_step(7)
        ask(run.dir, Set(syncs[1]))
        run.go_on_for(seconds)
        primary.kill_all()
        (tmp_path / "go").touch()
        code = run.end(60)
    if code == 0:
        assert modes(run) in ([syncs[0]], list(syncs))
        computed_again(run, 12)
    else:
        assert "The state of the run is lost at step" in run.err
        assert "local:3" in run.err


# ---------------------------------------------------------------- with replicas


@pytest.mark.parametrize(
    "syncs",
    [
        ("bounded:0", "local:4", "exact"),
        *(
            pytest.param(syncs, marks=pytest.mark.chaos)
            for syncs in (
                ("exact", "local:4", "bounded:0"), ("local:4", "exact", "local:3"), ("local:4", "local:3", "exact"),
                ("local:4", "bounded:0", "local:3"),
            )
        ),
    ],
    ids=lambda syncs: "-".join(syncs),
)  # fmt: skip
def test_with_a_replica_the_primary_may_be_lost_right_after_a_change(tmp_path: Path, syncs: tuple[str, ...]) -> None:
    """Of three machines one is left in the end. Each has made of its copy what the primary made of the state."""
    options = ("--workers", 0, "--hosts", 3, "--replicas", 2, "--sync", syncs[0])
    with on_hosts(tmp_path, *options, epochs=10) as run, contextlib.ExitStack() as stack:
        joined = [stack.enter_context(joining(tmp_path, run, number)) for number in (1, 2, 3)]
        for sync in syncs[1:]:
            run.at_step(run.trace.read().step + 5)
            turn(run, sync)
            lose_the_primary(run, joined)
        (tmp_path / "go").touch()
        assert run.end() == 0, run.err
    assert modes(run) == list(syncs)
    assert "made again" not in run.err
    computed_again(run, 10)


def replayed(place: Path, changes: Sequence[dict[str, Any]], epochs: int) -> Launch:
    """The same changes at the same steps, on one machine, and nobody is lost. Each is asked for in the step before."""
    place.mkdir()
    holds = [(change["step"] - 1, place / f"hold{change['step']}") for change in changes[1:]]
    args = " ".join(f"--hold {step}:{file}" for step, file in holds)
    args = f"--epochs {epochs} --go {place}/go --trace {place}/trace-run {args}"
    with Launch(place, ADAM, "--workers", 2, "--sync", changes[0]["sync"], args=args) as run:
        for (step, file), change in zip(holds, changes[1:], strict=True):
            run.at_step(step)
            ask(run.dir, Set(change["sync"]))
            file.touch()
        assert run.end() == 0, run.err
    return run


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(24))
def test_with_replicas_nothing_is_lost_under_many_schedules(tmp_path: Path, seed: int) -> None:
    """The primary, another machine, or a worker is lost a random moment after each is asked for. Others join."""
    chance = random.Random(2000 + seed)
    syncs = drawn(chance, 4)
    options = ("--workers", 0, "--hosts", 3, "--replicas", 1 + seed % 2, "--servers", int(seed % 3 == 0))
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(on_hosts(tmp_path, *options, "--sync", syncs[0], epochs=60))
        machines = Machines(tmp_path, run, stack)
        run.at_step(2)
        machines.go_through(syncs, chance)
    computed_again(run, 60)
    assert replayed(tmp_path / "calm", run.summary["modes"], 60).sha256 == run.sha256
