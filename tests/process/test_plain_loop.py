"""The plain loop: one turn is one step, on every crew; the samples of a lost worker join the next step."""

from __future__ import annotations

import functools
import itertools
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.observe.audit import audit, read
from tests.process.harness import SCRIPTS, Launch, environment
from tests.process.schedules import draw, play

pytestmark = pytest.mark.process
PLAIN = SCRIPTS / "plain.py"


def told(out: str) -> dict[str, Any]:
    """What the lead said of its loop at the end."""
    found = re.search(r"^turns (.*)$", out, re.MULTILINE)
    assert found, out
    facts: dict[str, Any] = json.loads(found[1])
    return facts


def alone(*args: str) -> dict[str, Any]:
    """The same of plain `python`."""
    command = [sys.executable, str(PLAIN), *args]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return told(done.stdout)


#: What the script is asked for -> (turns, steps, samples) of an epoch.
EPOCHS = {"": (9, 9, 200), "--along": (9, 9, 200), "--accumulate 3": (9, 3, 200), "--count": (7, 7, 168)}


@pytest.mark.sharing
@pytest.mark.parametrize(
    ("workers", "args"),
    [(1, ""), (2, "--accumulate 3"), (3, "--along"), *(pytest.param(*case, marks=pytest.mark.chaos) for case in
     [(1, "--accumulate 3"), (1, "--along"), (2, ""), (2, "--along"), (3, ""), (3, "--accumulate 3")])],
)  # fmt: skip
def test_a_turn_is_a_step_on_every_crew(tmp_path: Path, workers: int, args: str) -> None:
    with Launch(tmp_path, PLAIN, "--workers", workers, "--set", "audit=true", args=args) as run:
        assert run.end() == 0, run.err
    here, there = told(run.out), alone(*args.split())
    assert {name: here[name] for name in ("turns", "steps", "rates")} == {
        name: there[name] for name in ("turns", "steps", "rates")
    }
    assert here["ema"] == pytest.approx(there["ema"], rel=1e-4), "an average of all steps"
    assert here["weights"] == pytest.approx(there["weights"], rel=1e-4)
    assert run.summary["units"] == "worker"
    check_counts(run, args, 3)
    assert run.summary["samples_left_out"] == 0


@pytest.mark.parametrize(
    ("seed", "args"), [(0, ""), (2, ""), (1, "--along"), (2, "--accumulate 3"), (4, "--count")]
)
def test_no_sample_is_lost_or_used_twice_whoever_is_killed(tmp_path: Path, seed: int, args: str) -> None:
    check(tmp_path, seed, args)


@pytest.mark.chaos
@pytest.mark.parametrize("args", EPOCHS)
@pytest.mark.parametrize("seed", range(3, 13))
def test_many_schedules(tmp_path: Path, seed: int, args: str) -> None:
    check(tmp_path, seed, args)


def check(tmp_path: Path, seed: int, args: str) -> None:
    lanes, workers, epochs = (4, 6, 8)[seed % 3], 1 + seed % 3, 14
    options = ["--workers", workers, "--lanes", lanes, "--set", "crew.frozen_limit=0.6s", "--set", "audit=true"]
    with Launch(tmp_path, PLAIN, *options, args=f"--epochs {epochs} --pace 0.004 {args}") as run:
        # Status tells of a step a moment later: the run is not to end before the last fault.
        faults = draw(seed, 7 * EPOCHS[args][1], lanes)
        play(run, faults)
        assert run.end() == 0, f"{faults}\n{run.err}"
    assert told(run.out)["rates"] == alone("--epochs", str(epochs), *args.split())["rates"], f"{faults}\n{run.err}"
    check_counts(run, args, epochs, str(faults))


def check_counts(run: Launch, args: str, epochs: int, what: str = "") -> None:
    """Turns and steps are as many as alone, and each sample was used in one committed step, or is told of."""
    here, what = told(run.out), f"{what}\n{run.err}"
    turns, steps, samples = (epochs * number for number in EPOCHS[args])
    assert (here["turns"], here["steps"], run.summary["steps"]) == (turns, steps, steps), what
    left_out = run.summary["samples_left_out"]
    assert run.summary["samples"] + left_out == samples, what
    passes = audit(read(run.dir / "audit"), steps)
    for found in passes:
        assert found.exact, f"{found.told()}\n{what}"
    assert len(passes) == epochs and sum(found.samples for found in passes) + left_out == samples, what


# ---------------------------------------------------------------- how the loss falls

CURVES = SCRIPTS / "curves.py"
ORDERS = (1, 2, 3, 4, 5, 6)


def drawn(out: str) -> list[list[float]]:
    return [json.loads(line.removeprefix("curve ")) for line in out.splitlines()]


@functools.cache
def undisturbed(rate: float = 0.01) -> list[list[float]]:
    """The curves of trainings with several orders of the data: what every crew comes to that nobody disturbs."""
    command = [sys.executable, str(CURVES), "--seeds", ",".join(map(str, ORDERS)), "--rate", str(rate)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return drawn(done.stdout)


def apart(one: list[float], other: list[float]) -> float:
    """How far two curves lie apart on average, in units of what all undisturbed ones spread over at that place."""
    spread = [max(values) - min(values) for values in zip(*undisturbed(), strict=True)]
    return statistics.fmean(abs(a - b) / wide for a, b, wide in zip(one, other, spread, strict=True))


def orders_apart() -> float:
    """How far undisturbed trainings with two orders of the data lie apart at most: about 0.7."""
    return max(apart(*pair) for pair in itertools.combinations(undisturbed(), 2))


@pytest.mark.parametrize(
    ("workers", "order", "kills"),
    [(2, 1, 7), *(pytest.param(*case, marks=pytest.mark.chaos) for case in
                  [(2, 1, 0), (3, 2, 0), (1, 3, 7), (3, 2, 7), (2, 4, 7), (3, 5, 7), (2, 6, 7)])],
)  # fmt: skip
def test_kills_move_the_loss_by_less_than_another_order_does(
    tmp_path: Path, workers: int, order: int, kills: int
) -> None:
    options = ["--workers", workers, "--seed", order]
    with Launch(tmp_path, CURVES, *options, args=f"--pace {0.02 if kills else 0.0}") as run:
        for number in range(kills):
            run.wait(lambda s, at=4 + 15 * number: (s.get("step") or 0) >= at, "a step", 60.0)
            run.strike(run.crew_of(workers)[number % workers])
        assert run.end() == 0, run.err
    assert run.summary["workers_lost"] == kills and run.summary["steps"] == 14 * 9
    assert run.summary["samples"] + run.summary["samples_left_out"] == 14 * 200
    (curve,) = drawn(run.out)
    assert apart(curve, undisturbed()[ORDERS.index(order)]) < (orders_apart() if kills else 0.01), curve


@pytest.mark.chaos
@pytest.mark.sharing
def test_a_learning_rate_that_is_a_third_less_moves_it_by_more() -> None:
    """So what is asked of kills can fail."""
    assert min(map(apart, undisturbed(rate=0.0067), undisturbed())) > 1.1 * orders_apart()
