"""Checkpoints of a run whose state is on other machines than the launcher's, and runs that go on there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.harness import Launch, golden
from tests.process.joined import LOOPBACK, Joined
from tests.process.test_resume import OFTEN, crash, has_checkpoint_of, resumed

pytestmark = [pytest.mark.process, pytest.mark.sharing]
COORDINATES = ("--workers", 0, *LOOPBACK)


def test_a_launcher_that_only_coordinates(tmp_path: Path) -> None:
    """Its checkpoints are of the machine that trains; another one goes on from them, and then this one does."""
    with Launch(tmp_path, "normed", *COORDINATES, "--lanes", 4, *OFTEN, args="--pace 0.02") as run, Joined(
        tmp_path, run, workers=2
    ):
        has_checkpoint_of(run, 8)
        crash(run)
    with resumed(tmp_path, "normed", *OFTEN, args="--pace 0.02") as run, Joined(tmp_path, run, workers=1):
        has_checkpoint_of(run, 20)
        crash(run)
    with resumed(tmp_path, "normed", "--workers", 1) as run:
        assert run.end() == 0, run.err
    assert run.sha256 == golden("normed", 4), run.err
    assert run.summary["resumed"]["step"] >= 20


def test_in_a_relaxed_mode(tmp_path: Path) -> None:
    options = (*COORDINATES, "--lanes", 4, "--sync", "bounded:2", *OFTEN)
    with Launch(tmp_path, "normed", *options, args="--pace 0.02") as run, Joined(tmp_path, run, workers=2):
        has_checkpoint_of(run, 6)
        crash(run)
    with resumed(tmp_path, "normed", args="") as run, Joined(tmp_path, run, workers=1):
        assert run.end() == 0, run.err
    assert run.summary["samples"] == 3 * 484, "what the last of them have seen is not in their machine's trail"
    assert run.summary["steps"] == 48 and run.summary["resumed"]["step"] >= 6
