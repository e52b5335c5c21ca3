"""`holdfast set DIR sync=MODE` on real runs: nothing is lost or counts twice, whatever the modes, whoever is killed."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.control.protocol.requests import Set
from holdfast.control.shell.control_client import ask
from tests.process.counted import BATCH, STEPS
from tests.process.harness import SCRIPTS, Launch, holdfast
from tests.process.mode_changes import LOCALS, Computed, Counted, Judged, drawn, modes, strike_somebody, turn
from tests.process.scripts.adam import LOADED
from tests.process.six_epochs import PLAIN, go, slow, used_once
from tests.process.trail import AUDITED

pytestmark = [pytest.mark.process, pytest.mark.sharing]


# ---------------------------------------------------------------- back to exact


@pytest.mark.chaos
@pytest.mark.parametrize("model", ["normed", "transformer"])
def test_there_and_back_in_the_middle_of_passes(tmp_path: Path, model: str) -> None:
    """A worker that is started later comes up in the present mode."""
    with Launch(tmp_path, model, "--workers", 2, "--servers", 1, *AUDITED, args=slow(tmp_path) + PLAIN) as run:
        run.at_step(3)
        first = turn(run, "bounded:0")
        assert run.status()["sync"] == run.status()["sync_wanted"] == "bounded:0"
        run.strike(run.crew_of(2)[1])
        run.wait(lambda s: s["workers_lost"] == 1, "the loss")
        run.crew_of(2)
        second = turn(run, "exact")
        go(tmp_path)
        assert run.end() == 0, run.err
    assert 3 <= first < second
    assert run.summary["modes"] == [
        {"step": 0, "sync": "exact"}, {"step": first, "sync": "bounded:0"}, {"step": second, "sync": "exact"},
    ]  # fmt: skip
    used_once(run)


def test_a_sample_is_used_once_though_lanes_were_apart(tmp_path: Path) -> None:
    """And a worker is killed right after the change was asked for, before or while all go to the boundary."""
    with Launch(tmp_path, "normed", "--workers", 2, *AUDITED, args=slow(tmp_path) + PLAIN) as run:
        run.at_step(3)
        pids = run.crew_of(2)
        turn(run, "bounded:2", lambda: run.strike(pids[0]))
        pids = run.crew_of(2)
        turn(run, "exact", lambda: run.strike(pids[1]))
        go(tmp_path)
        assert run.end() == 0, run.err
    assert modes(run) == ["exact", "bounded:2", "exact"]
    used_once(run)


# ---------------------------------------------------------------- nothing is lost, nothing counts twice


def test_every_push_is_applied_once_across_modes(tmp_path: Path) -> None:
    syncs = ["exact", "async", "bounded:1", "exact"]
    with Counted(tmp_path, syncs, "--workers", 2, "--servers", 1, epochs=8, pace=0.02) as run:
        run.through(syncs[1:])
        assert run.end() == 0, run.err
    assert modes(run) == syncs
    run.judge()


def test_each_lane_goes_on_with_the_owners_state_and_the_owners_with_the_mean(tmp_path: Path) -> None:
    """And a worker is killed right after each change was asked for."""
    syncs = ["exact", "local:3", "local:2", "exact", "local:4", "bounded:0"]
    with Computed(tmp_path, syncs, "--workers", 2, "--servers", 1, epochs=14, pace=0.08) as run:
        run.through(syncs[1:], lambda: run.strike(run.crew_of(2)[0]), steps=5)
        assert run.end() == 0, run.err
    assert modes(run) == syncs
    run.judge()


ANY = ("exact", "bounded:0", "bounded:3", "async", "quorum:3")
OF_TIMING = ("exact", "async", "bounded:2")


def between_rounds_and_others(chance: random.Random) -> list[str]:
    syncs = [chance.choice(OF_TIMING)]
    for _ in range(5):
        syncs.append(chance.choice(OF_TIMING if syncs[-1] in LOCALS else LOCALS))
    return syncs


#: By which script, how long, how many steps a mode has at least, and the modes that a seed draws.
Schedule = tuple[type[Judged], int, int, Callable[[random.Random, int], list[str]]]
SCHEDULES: dict[str, Schedule] = {
    "pushes": (Counted, 24, 0, lambda chance, seed: drawn(chance, 6, ANY if seed % 2 else ANY[:-1], "exact")),
    "rounds": (Counted, 24, 0, lambda chance, seed: between_rounds_and_others(chance)),
    "states": (Computed, 40, 5, lambda chance, seed: drawn(chance, 6, ("exact", "bounded:0", *LOCALS))),
}


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("what", "seed"), [(what, seed) for what, seeds in (("pushes", 20), ("rounds", 10), ("states", 20))
                       for seed in range(seeds)],
)  # fmt: skip
def test_many_schedules(tmp_path: Path, what: str, seed: int) -> None:
    """Random modes, one after the other, and somebody is killed a random moment after each is asked for."""
    chance = random.Random(seed)
    script, epochs, steps, draw = SCHEDULES[what]
    syncs, pace = draw(chance, seed), 0.08 if steps else 0.04
    with script(tmp_path, syncs, "--workers", 2, "--servers", seed % 3, epochs=epochs, pace=pace) as run:
        run.through(syncs[1:], lambda: strike_somebody(run, chance), steps)
        assert run.end() == 0, run.err
    assert modes(run) == syncs
    run.judge()


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(10))
def test_modes_and_workers_that_are_asked_for_in_haste(tmp_path: Path, seed: int) -> None:
    """Nobody waits for what was asked for before: the mode, the number of workers and of servers change all at once."""
    chance = random.Random(seed)
    with Counted(tmp_path, ["exact"], "--workers", 2, "--servers", seed % 2, epochs=24, pace=0.02) as run:
        run.at_step(0)
        run.wait(lambda s: s["generation"], "a generation")
        for _ in range(12):
            ask(run.dir, Set(chance.choice(("exact", "bounded:0", "bounded:2", "async"))))
            if chance.random() < 0.4:
                run.scale(chance.randrange(1, 4))
            run.go_on_for(chance.random() * 0.2)
        turned = run.status()["sync_wanted"]
        run.wait(lambda s: s["sync"] == turned, "the last mode")
        run.go()
        assert run.end() == 0, run.err
    run.judge()


@pytest.mark.chaos
@pytest.mark.parametrize("before", ["exact", "async"])
@pytest.mark.parametrize("seconds", [0.0, 0.03, 0.1])
def test_a_run_that_is_asked_to_end_while_it_changes(tmp_path: Path, before: str, seconds: float) -> None:
    with Counted(tmp_path, [before], "--workers", 2, "--servers", 1, epochs=50, pace=0.02) as run:
        run.wait(lambda s: s.get("step") and s["step"] > 5, "some steps")
        ask(run.dir, Set("bounded:2" if before == "exact" else "exact"))
        run.go_on_for(seconds)
        run.send(signal.SIGTERM)
        run.end(20.0)
    assert run.summary["outcome"] == "stopped"
    assert run.summary["samples"] == run.summary["steps"] * BATCH, "all lanes have come as far"


# ---------------------------------------------------------------- the same bits


@pytest.mark.chaos
def test_a_run_that_begins_with_local_steps_has_the_state_that_was_loaded(tmp_path: Path) -> None:
    with Computed(tmp_path, ["local:3"], "--workers", 1, epochs=2, pace=0.0, args="--loaded") as run:
        assert run.end() == 0, run.err
    run.loaded = LOADED
    run.judge()


def test_the_same_bits_whoever_is_killed(tmp_path: Path) -> None:
    """Changes are asked for in the middle of two rounds, in which everybody is held meanwhile."""
    ends = []
    for name in ("calm", "struck"):
        place = tmp_path / name
        place.mkdir()
        holds = f"--hold 5:{place}/first --hold 9:{place}/second"
        with Computed(place, ["local:4"], "--workers", 2, "--servers", 1, epochs=4, pace=0.0, args=holds) as run:
            for lost, (step, sync, file) in enumerate(((5, "local:2", "first"), (9, "local:3", "second"))):
                run.at_step(step)
                ask(run.dir, Set(sync))
                if name == "struck":
                    status = run.status()
                    run.strike((status["servers"][0] if lost else status["workers"][-1])["pid"])
                    run.wait(lambda s, lost=lost: s["workers_lost"] > lost, "the loss")
                (place / file).touch()
            assert run.end() == 0, run.err
        run.judge()
        ends.append((run.summary["modes"], run.sha256))
    assert [mode["step"] for mode in ends[0][0]] == [0, 8, 10], "a round that was begun is made to its end"
    assert ends[0] == ends[1]


# ---------------------------------------------------------------- what cannot be


def test_what_is_said_at_the_command_line(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", "--workers", 2, *AUDITED, args=slow(tmp_path) + PLAIN) as run:
        run.at_step(3)
        for setting, sentence in {
            "foo=1": "foo = 1: cannot be set while a run is going; what can: sync (set by holdfast set).",
            "sync=bouned:2": "sync = bouned:2: unknown; there is exact, bounded:S, async, quorum:K, local:H. Did you "
            "mean bounded:2?",
            "sync=quorum:9": "a quorum of 9 cannot come together: K is 1 to 4, the number of lanes: still exact",
            "sync=local:0": "0 steps cannot lie between two exchanges: H is 1 to 100000",
        }.items():
            refused = holdfast("set", run.dir, setting)
            assert refused.returncode == 2 and sentence in refused.stderr, refused
        same = holdfast("set", run.dir, "sync=exact")
        assert (same.returncode, same.stdout) == (0, "sync = exact was asked for, as before\n")
        asked = holdfast("set", run.dir, "sync=async")
        assert asked.stdout.startswith(
            "sync = async was asked for instead of exact; it counts from the next step boundary on"
        ), asked
        run.told("lanes keep step by async from step ")
        assert "\n  sync async\n" in holdfast("status", run.dir).stdout
        go(tmp_path)
        assert run.end() == 0, run.err
    ended = holdfast("set", run.dir, "sync=exact")
    assert ended.returncode == 2 and f"No run is going in {run.dir}." in ended.stderr
    used_once(run)


def test_an_optimizer_that_takes_whole_steps_only_is_not_made_to_take_parts(tmp_path: Path) -> None:
    script = tmp_path / "rprop.py"
    script.write_text((SCRIPTS / "counting.py").read_text().replace("torch.optim.SGD", "torch.optim.Rprop"))
    args = f"--pace 0.02 --go {tmp_path}/go --began {tmp_path}/began"
    with Launch(tmp_path, script, "--workers", 2, args=args) as run:
        run.wait(lambda s: s.get("step") and s["step"] > 2, "some steps")
        refused = holdfast("set", run.dir, "sync=async")
        go(tmp_path)
        assert run.end() == 0, run.err
    assert refused.returncode == 2 and (
        "The mode stays exact: sync = async was asked for, but any lane makes a version, with a part of a step, which "
        "is a step with a smaller lr, and Rprop does not move half as far with half its lr: still exact."
    ) in refused.stderr, refused
    assert (run.summary["steps"], run.summary["workers_lost"], modes(run)) == (4 * STEPS, 0, ["exact"])
