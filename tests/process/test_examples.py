"""What the examples say when they cannot: the rest of them is in the sessions of the documentation."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.markdown import ROOT
from tests.process.harness import environment

pytestmark = pytest.mark.process


def example(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "examples" / name), *words]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.sharing
def test_hard_samples_leave_nothing_to_warn_of() -> None:
    done = example("hard_samples.py")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout == "mean loss 0.503; the hardest samples: 1288 (4.74), 1302 (3.76), 541 (3.62)\n"


def test_a_mode_that_there_is_not() -> None:
    done = example("modes.py", "--modes", "bouned:4")
    assert done.returncode == 1
    assert done.stderr.startswith("The run with --sync bouned:4 ended with status 2:\n")
    assert "Did you mean bounded:4?" in done.stderr
