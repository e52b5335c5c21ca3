"""`holdfast set DIR sync=MODE` on real runs: no sample is lost or used twice, whatever the modes, whoever is killed."""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.control.protocol.requests import Set
from holdfast.control.shell.control_client import ask
from tests.process.counted import BATCH, STEPS, TALLY, applied_once, arguments, settings
from tests.process.harness import SCRIPTS, Launch, golden, holdfast, until

pytestmark = [pytest.mark.process, pytest.mark.sharing]

#: Units of 0.1 s and more until the test says `go`: 96 steps.
SLOW = "--epochs 6 --pace 0.005 --linger {}/go"


def turn(run: Launch, sync: str, struck: Callable[[], object] = lambda: None) -> int:
    """Have another mode, and wait for it. The step from which it counts."""
    ask(run.dir, Set(sync))
    struck()
    run.wait(lambda s: s.get("sync") == sync, f"sync = {sync}")
    return int(re.findall(rf"lanes keep step by {sync} from step (\d+) on", "\n".join(run.story))[-1])


def modes(run: Launch) -> list[str]:
    return [mode["sync"] for mode in run.summary["modes"]]


def audited(run: Launch) -> None:
    run.trace.audit(samples=484, steps_of_epoch=16, epochs=6)
    assert run.summary["samples"] == 6 * 484
    assert run.summary["steps"] == 6 * 16


# ---------------------------------------------------------------- back to exact


@pytest.mark.chaos
@pytest.mark.parametrize("model", ["normed", "transformer"])
def test_there_and_back_in_the_middle_of_passes(tmp_path: Path, model: str) -> None:
    """By bounded:0 the weights are those of exact; a worker that is started later comes up in the present mode."""
    with Launch(tmp_path, model, "--workers", 2, "--servers", 1, args=SLOW.format(tmp_path)) as run:
        run.at_step(3)
        first = turn(run, "bounded:0")
        assert run.status()["sync"] == run.status()["sync_wanted"] == "bounded:0"
        run.strike(run.crew_of(2)[1])
        run.wait(lambda s: s["workers_lost"] == 1, "the loss")
        run.crew_of(2)
        second = turn(run, "exact")
        (tmp_path / "go").touch()
        assert run.end() == 0, run.err
    assert 3 <= first < second
    assert run.summary["modes"] == [
        {"step": 0, "sync": "exact"}, {"step": first, "sync": "bounded:0"}, {"step": second, "sync": "exact"},
    ]  # fmt: skip
    audited(run)
    assert run.sha256 == golden(model, 4, "--epochs", "6")


def test_a_sample_is_used_once_though_lanes_were_apart(tmp_path: Path) -> None:
    """And a worker is killed right after the change was asked for, before or while all go to the boundary."""
    with Launch(tmp_path, "normed", "--workers", 2, args=SLOW.format(tmp_path)) as run:
        run.at_step(3)
        pids = run.crew_of(2)
        turn(run, "bounded:2", lambda: run.strike(pids[0]))
        pids = run.crew_of(2)
        turn(run, "exact", lambda: run.strike(pids[1]))
        (tmp_path / "go").touch()
        assert run.end() == 0, run.err
    assert modes(run) == ["exact", "bounded:2", "exact"]
    audited(run)


# ---------------------------------------------------------------- exactly once


def counted(
    tmp_path: Path, syncs: Sequence[str], struck: Callable[[Launch], object] = lambda run: None, *, servers: int = 1,
    epochs: int = 8,
) -> None:  # fmt: skip
    """A run of the audit model, through these modes; every push must have been applied once."""
    options = ("--workers", 2, "--servers", servers, "--set", "staleness=plain", *settings(*syncs))
    with Launch(tmp_path, TALLY, *options, args=f"{arguments(tmp_path, epochs)} --pace 0.02") as run:
        until((tmp_path / "began").exists, lambda: f"the first unit\n{run.err}")
        for sync in syncs[1:]:
            turn(run, sync, lambda: struck(run))
        (tmp_path / "go").touch()
        assert run.end() == 0, run.err
    assert modes(run) == list(syncs)
    applied_once(run, epochs, plain=True)


def test_every_push_is_applied_once_across_modes(tmp_path: Path) -> None:
    counted(tmp_path, ["exact", "async", "bounded:1", "exact"])


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(20))
def test_every_push_is_applied_once_under_many_schedules(tmp_path: Path, seed: int) -> None:
    """Random modes, one after the other, and somebody is killed a random moment after each is asked for."""
    chance = random.Random(seed)
    syncs = ["exact"]
    while len(syncs) < 6:
        others = [mode for mode in ("exact", "bounded:0", "bounded:3", "async", "quorum:3") if mode != syncs[-1]]
        syncs.append(chance.choice(others if seed % 2 else others[:-1]))

    def strike(run: Launch) -> None:
        everybody: list[dict[str, Any]] = [*run.status()["workers"], *run.status()["servers"]]
        pids = [one["pid"] for one in everybody if one["state"] == "member"]
        pause = chance.random() * 0.3
        run.go_on_for(pause)
        if pids:
            run.strike(chance.choice(pids))

    counted(tmp_path, syncs, strike, servers=seed % 3, epochs=24)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(10))
def test_modes_and_workers_that_are_asked_for_in_haste(tmp_path: Path, seed: int) -> None:
    """Nobody waits for what was asked for before: the mode, the number of workers and of servers change all at once."""
    chance = random.Random(seed)
    options = ("--workers", 2, "--servers", seed % 2, "--set", "staleness=plain")
    with Launch(tmp_path, TALLY, *options, args=f"{arguments(tmp_path, 24)} --pace 0.02") as run:
        until((tmp_path / "began").exists, lambda: f"the first unit\n{run.err}")
        run.wait(lambda s: s["generation"], "a generation")
        for _ in range(12):
            ask(run.dir, Set(chance.choice(("exact", "bounded:0", "bounded:2", "async"))))
            if chance.random() < 0.4:
                run.scale(chance.randrange(1, 4))
            moment = run.status()["seconds"] + chance.random() * 0.2
            run.wait(lambda s, moment=moment: s["seconds"] >= moment, "a moment")
        turned = run.status()["sync_wanted"]
        run.wait(lambda s: s["sync"] == turned, "the last mode")
        (tmp_path / "go").touch()
        assert run.end() == 0, run.err
    applied_once(run, 24, plain=True)


@pytest.mark.chaos
@pytest.mark.parametrize("before", ["exact", "async"])
@pytest.mark.parametrize("seconds", [0.0, 0.03, 0.1])
def test_a_run_that_is_asked_to_end_while_it_changes(tmp_path: Path, before: str, seconds: float) -> None:
    options = ("--workers", 2, "--servers", 1, "--sync", before)
    with Launch(tmp_path, TALLY, *options, args=f"{arguments(tmp_path, 50)} --pace 0.02") as run:
        run.wait(lambda s: s.get("step") and s["step"] > 5, "some steps")
        ask(run.dir, Set("bounded:2" if before == "exact" else "exact"))
        moment = run.status()["seconds"] + seconds
        run.wait(lambda s: s["seconds"] >= moment, "a moment")
        run.send(signal.SIGTERM)
        run.end(20.0)
    assert run.summary["outcome"] == "stopped"
    assert run.summary["samples"] == run.summary["steps"] * BATCH, "all lanes have come as far"


# ---------------------------------------------------------------- what cannot be


def test_what_is_said_at_the_command_line(tmp_path: Path) -> None:
    with Launch(tmp_path, "normed", "--workers", 2, args=SLOW.format(tmp_path)) as run:
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
        (tmp_path / "go").touch()
        assert run.end() == 0, run.err
    ended = holdfast("set", run.dir, "sync=exact")
    assert ended.returncode == 2 and f"No run is going in {run.dir}." in ended.stderr
    audited(run)


def test_an_optimizer_that_takes_whole_steps_only_is_not_made_to_take_parts(tmp_path: Path) -> None:
    script = tmp_path / "rprop.py"
    script.write_text((SCRIPTS / "counting.py").read_text().replace("torch.optim.SGD", "torch.optim.Rprop"))
    args = f"--pace 0.02 --go {tmp_path}/go --began {tmp_path}/began"
    with Launch(tmp_path, script, "--workers", 2, args=args) as run:
        run.wait(lambda s: s.get("step") and s["step"] > 2, "some steps")
        refused = holdfast("set", run.dir, "sync=async")
        (tmp_path / "go").touch()
        assert run.end() == 0, run.err
    assert refused.returncode == 2 and (
        "The mode stays exact: sync = async was asked for, but any lane makes a version, with a part of a step, which "
        "is a step with a smaller lr, and Rprop does not move half as far with half its lr: still exact."
    ) in refused.stderr, refused
    assert (run.summary["steps"], run.summary["workers_lost"], modes(run)) == (4 * STEPS, 0, ["exact"])
