"""The promise: plain `python`, one worker or four end with the same weights, for the same lanes."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.process.harness import Launch, golden

pytestmark = [pytest.mark.process, pytest.mark.sharing]

MODELS, WORKERS, LANES = ("lenet", "normed", "transformer"), (1, 2, 3, 4), (4, 6, 8)
#: Every model. With the script that states its lanes itself: every number of workers and of lanes.
FEW = [("lenet", 3, 4), ("normed", 4, 8), ("transformer", 1, 4)]
MANY = [case for case in itertools.product(MODELS, WORKERS, LANES) if case not in FEW]


@pytest.mark.parametrize(
    ("model", "workers", "lanes"), [*FEW, *(pytest.param(*case, marks=pytest.mark.chaos) for case in MANY)]
)
def test_weights_are_those_of_plain_python(tmp_path: Path, model: str, workers: int, lanes: int) -> None:
    with Launch(tmp_path, model, "--workers", workers, "--lanes", lanes) as run:
        assert run.end() == 0, run.err
        run.trace.audit(samples=484, steps_of_epoch=16, epochs=3)
        assert run.trace.tries == len(run.trace.units), "a unit was computed twice without need"
    assert run.sha256 == golden(model, lanes)
    assert f"weights_sha256 {run.sha256}" in run.out, "the script sees other weights than the summary"
    assert run.summary["steps"] == 48 and run.summary["samples"] == 3 * 484 and run.summary["workers_lost"] == 0


def test_lanes_change_the_weights_and_the_script_may_state_them(tmp_path: Path) -> None:
    assert golden("normed", 6) != golden("normed", 8)
    with Launch(tmp_path, "normed", "--workers", 2, args="--lanes 6") as run:
        assert run.end() == 0, run.err
    assert run.sha256 == golden("normed", 6)
    assert run.summary["config"]["lanes"] == 6
