"""Variables that a script should have kept, wherever it has them, are named; what differs rightly stops nobody."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.process.harness import SCRIPTS, Launch

pytestmark = pytest.mark.process
VARIABLES = SCRIPTS / "variables.py"
NUMBER = r"(inf|[\d.]+(e-\d+)?)"


@pytest.mark.sharing
@pytest.mark.parametrize(
    ("args", "named"),
    [
        ("--lack main", "best (in main)"), ("--lack self --plain", "self.best"),
        pytest.param("--lack entry", "self.counters['turns']", marks=pytest.mark.chaos),
        pytest.param("--lack state", "self.state.best", marks=pytest.mark.chaos),
        pytest.param("--lack global --plain", "moved", marks=pytest.mark.chaos),
    ],
)  # fmt: skip
def test_what_is_not_kept_is_named_also_where_one_other_worker_is_left(tmp_path: Path, args: str, named: str) -> None:
    with Launch(tmp_path, VARIABLES, "--workers", 2, args=f"{args} --epochs 60") as run:
        run.wait(lambda s: s.get("step", -1) >= 40, "step 40")
        run.strike(run.crew_of(2)[1])
        run.told("is let go, and the run goes on without it: A worker that came late to step ")
        assert run.end() == 0, run.err
    told = next(line for line in run.story if "is let go" in line)
    lack = f" has {re.escape(named)} = {NUMBER} where the others' scripts have {NUMBER}: "
    assert re.search(lack, told) and f" in place of {named.removesuffix(' (in main)')}" in told, told
    assert run.out.splitlines() == ["480 steps, True"]


@pytest.mark.sharing
@pytest.mark.parametrize("args", ["", pytest.param("--plain", marks=pytest.mark.chaos)])
def test_times_and_what_each_worker_counts_for_itself_stop_nobody(tmp_path: Path, args: str) -> None:
    """Two workers at first, and one: so that one has nobody to compare with, and then nobody is left."""
    with Launch(tmp_path, VARIABLES, "--workers", 2, args=f"{args} --epochs 100") as run:
        for step, worker in ((40, 1), (300, 0)):
            run.wait(lambda s, step=step: s.get("step", -1) >= step, f"step {step}")
            run.strike(run.crew_of(2)[worker])
        run.crew_of(2)
        assert run.end() == 0, run.err
    assert run.out.splitlines() == ["800 steps, True"] and run.summary["workers_lost"] == 2, run.err
