"""The promise on several hosts: the same weights on 1, 2, 3 and 4 of them, whatever happens to them and their links."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.harness import Spread
from tests.hosts.lab import Lab
from tests.hosts.schedules import draw, play
from tests.process.harness import golden

pytestmark = pytest.mark.process

MODELS, HOSTS, LANES = ("lenet", "normed", "transformer"), (1, 2, 3, 4), (4, 6, 8)
FEW = [("lenet", 2, 4), ("transformer", 4, 8)]
MANY = [
    (model, hosts, LANES[(index + hosts) % 3])
    for index, (model, hosts) in enumerate(itertools.product(MODELS, HOSTS))
] + [("normed", 3, 6)]  # fmt: skip
EPOCHS = 10
STEPS = EPOCHS * 16


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(4) as made:
        yield made


@pytest.mark.sharing
@pytest.mark.parametrize(
    ("model", "hosts", "lanes"), [*FEW, *(pytest.param(*case, marks=pytest.mark.chaos) for case in MANY)]
)
def test_weights_are_those_of_one_host(lab: Lab, tmp_path: Path, model: str, hosts: int, lanes: int) -> None:
    still = ("--lanes", lanes, "--set", "crew.settle=10m")  # no lane moves for speed
    with Spread(lab, tmp_path, model, *still, hosts=hosts) as run:
        assert run.end() == 0, run.said
        run.trace.audit(samples=484, steps_of_epoch=16, epochs=3)
        assert run.trace.tries == len(run.trace.units), "a unit was computed twice without need"
    assert run.sha256 == golden(model, lanes)
    assert run.summary["steps"] == 48 and run.summary["workers_lost"] == 0


@pytest.mark.sharing
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.chaos)])
def test_by_steps(lab: Lab, tmp_path: Path, workers: int) -> None:
    """The script's code between units and end runs on all hosts, also on one that comes late and catches up."""
    args = "--epochs 6"
    slow = f"{args} --linger {tmp_path}/go"
    with Spread(lab, tmp_path, "transformer", hosts=2, workers=workers, args=slow) as run:
        run.at_step(3)
        run.join(2)
        run.spread_over(3)
        (tmp_path / "go").touch()
        assert run.end() == 0, run.said
        run.trace.audit(samples=484, steps_of_epoch=16, epochs=6)
    assert run.sha256 == golden("transformer", 4, *args.split()), run.said


@pytest.mark.sharing
def test_hosts_come_and_go(lab: Lab, tmp_path: Path) -> None:
    args = "--epochs 10"
    # Slow until all has happened.
    with Spread(lab, tmp_path, "normed", "--lanes", 6, hosts=2, args=f"{args} --linger {tmp_path}/go") as run:
        run.at_step(3)
        run.join(2)
        run.join(3)
        run.spread_over(4)
        lab.rate(2, 20)  # slow it
        number = run.number(1)
        run.kill(1)
        run.told(f"host {number} lost (")
        run.spread_over(3)
        number = run.number(3)
        run.cut(3)
        run.told(f"host {number} lost (no sign of life")
        run.spread_over(2)
        lab.rate(2, None)
        lab.heal(3)
        run.spread_over(3)
        assert run.number(3) > number, "the same machine, as a new host"
        run.leave(2)
        assert run.joined[2].wait(20.0) == 0, run.said
        run.spread_over(2)
        (tmp_path / "go").touch()
        assert run.end() == 0, run.said
        run.trace.audit(samples=484, steps_of_epoch=16, epochs=10)
    assert run.sha256 == golden("normed", 6, *args.split()), run.said


@pytest.mark.sharing
def test_over_ipv6(lab: Lab, tmp_path: Path) -> None:
    with Spread(lab, tmp_path, "normed", hosts=2, ipv6=True) as run:
        assert run.end() == 0, run.said
    assert run.sha256 == golden("normed", 4)
    talk = [line for line in run.story if " talk over " in line]
    assert talk and all(lab.hosts[0].address6.rpartition(":")[0] in line for line in talk), talk


def test_the_crew_goes_on_while_a_newcomer_fetches_the_state(lab: Lab, tmp_path: Path) -> None:
    lab.rate(1, 2)  # Mbit/s: the state of this model is on its way for seconds
    args = f"--epochs 6 --pace 0.02 --linger {tmp_path}/go"
    with Spread(lab, tmp_path, "lenet", hosts=1, args=args) as run:
        run.at_step(3)
        run.join(1)
        run.told("while the run goes on")
        step = run.status()["step"]
        told = next(line for line in run.story if "while the run goes on" in line)
        found = re.search(r"the state at step (\d+) has come from host 0 .* in ([0-9.]+) s, verified", told)
        assert found is not None, told
        assert float(found[2]) > 1.0 and step - int(found[1]) > 5, (step, told)
        lab.rate(1, None)
        (tmp_path / "go").touch()
        assert run.end() == 0, run.said
    assert run.sha256 == golden("lenet", 4, "--epochs", "6"), run.said


def check(lab: Lab, tmp_path: Path, model: str, seed: int) -> None:
    lanes, hosts = LANES[seed % 3], 2 + seed % 3
    faults, args = draw(seed, STEPS, len(lab.hosts)), f"--epochs {EPOCHS}"
    workers, args_ = 1 + seed % 2, f"{args} --pace 0.02"
    with Spread(lab, tmp_path, model, "--lanes", lanes, hosts=hosts, workers=workers, args=args_) as run:
        play(run, faults)
        told = f"{faults}\n{run.said}"
        assert run.end() == 0, told
        run.trace.audit(samples=484, steps_of_epoch=16, epochs=EPOCHS)
    assert run.summary["steps"] == STEPS and run.summary["outcome"] == "ok"
    assert run.sha256 == golden(model, lanes, *args.split()), told


@pytest.mark.sharing
@pytest.mark.parametrize(
    ("model", "seed"),
    [("transformer", 1002), *(pytest.param(*case, marks=pytest.mark.chaos) for case in
                              [("normed", 1003), ("lenet", 1012)])],
)
def test_a_schedule_changes_nothing(lab: Lab, tmp_path: Path, model: str, seed: int) -> None:
    check(lab, tmp_path, model, seed)


@pytest.mark.chaos
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("seed", range(24))
def test_many_schedules_change_nothing(lab: Lab, tmp_path: Path, model: str, seed: int) -> None:
    check(lab, tmp_path, model, seed)
