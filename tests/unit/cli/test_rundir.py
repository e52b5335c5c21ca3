"""Opening a run's directory from a command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.cli.rundir import open_run
from holdfast.errors import UsageError


def test_a_wrong_name_is_answered_with_the_run_that_was_written_to_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, written in (("zebra", 1_000), ("ant", 3_000), ("moth", 2_000)):
        run = Path("runs", name)
        run.mkdir(parents=True)
        (run / "run.json").write_text("{}")
        os.utime(run / "run.json", (written, written))
    with pytest.raises(UsageError) as told:
        open_run("runs/bee")
    assert str(told.value) == "runs/bee is not a run's directory. The newest under runs/ is runs/ant."


def test_without_any_run_it_says_how_one_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as told:
        open_run("bee")
    assert str(told.value) == "bee is not a run's directory. A run is made by `holdfast run SCRIPT`."
