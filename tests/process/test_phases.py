"""Several phases, optimizers and loaders in a turn: the same weights, whatever the crew and whoever is killed where."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tests.process.harness import SCRIPTS, Launch, printed
from tests.process.joined import LOOPBACK, Joined

pytestmark = pytest.mark.process

PHASES = SCRIPTS / "phases.py"
PLACES = [
    "in a unit of the first phase", "after the units of the first phase", "in the update", "after the first phase",
    "in a unit of the second phase", "after the units of the second phase", "after the second phase",
    "in a unit of the third phase", "after the units of the third phase", "between two steps with one gradient",
    "at the end",
]  # fmt: skip


plain = functools.partial(printed, PHASES)  # what it keeps and has drawn, its rates, its weights


@pytest.mark.sharing
@pytest.mark.parametrize("options", [["--workers", 1], ["--workers", 2], ["--workers", 3], ["--servers", 1]])
def test_the_same_on_every_crew(tmp_path: Path, options: list[object]) -> None:
    with Launch(tmp_path, PHASES, *options) as run:
        assert run.end() == 0, run.err
    assert run.out.splitlines() == plain()
    assert run.summary["steps"] == 12 and run.summary["samples"] == 3 * (92 + 120)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("workers", "lost"),
    [(1, 1), pytest.param(2, 1, marks=pytest.mark.chaos), pytest.param(2, 2, marks=pytest.mark.chaos)],
)
def test_workers_are_lost_in_every_place_of_a_turn(tmp_path: Path, place: str, workers: int, lost: int) -> None:
    died = f"--die {place.replace(' ', '_')}:6:{lost}:{tmp_path}"
    with Launch(tmp_path, PHASES, "--workers", workers, "--verify", "off", args=died) as run:
        assert run.end() == 0, run.err
    assert run.out.splitlines() == plain(), run.err
    assert run.summary["workers_lost"] == lost and run.summary["steps"] == 12


@pytest.mark.parametrize(
    "place",
    ["nowhere", "after the first phase", *(pytest.param(place, marks=pytest.mark.chaos) for place in PLACES)],
)
def test_the_same_on_two_hosts_and_with_a_loss_there(tmp_path: Path, place: str) -> None:
    died = f"--die {place.replace(' ', '_')}:6:1:{tmp_path}"
    with Launch(tmp_path, PHASES, *LOOPBACK, "--hosts", 2, "--workers", 1, "--verify", "off", args=died) as run, \
            Joined(tmp_path, run, workers=1) as other:  # fmt: skip
        assert run.end() == 0, run.err
        assert other.end() == 0, other.err
    assert run.out.splitlines() == plain(), run.err
    assert run.summary["workers_lost"] == (place != "nowhere") and run.summary["steps"] == 12


def test_a_host_joins_in_the_middle(tmp_path: Path) -> None:
    with Launch(tmp_path, PHASES, *LOOPBACK, "--workers", 1, "--verify", 1, args="--epochs 24 --pace 0.02") as run:
        run.wait(lambda status: status.get("step", -1) >= 20, "step 20")
        with Joined(tmp_path, run, workers=1) as other:
            assert run.end() == 0, run.err
            assert other.end() == 0, other.err
    assert run.out.splitlines() == plain("--epochs", "24"), run.err
    assert run.summary["generations"] > 1, "it took part"
