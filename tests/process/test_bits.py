"""A loop by steps against PyTorch alone, which computes the same lanes one after the other: every bit is the same."""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.process.harness import SCRIPTS, Launch, environment
from tests.same import assert_same

pytestmark = [pytest.mark.process, pytest.mark.sharing]
BITS = SCRIPTS / "bits.py"


@functools.cache
def bare(*args: str) -> dict[str, Any]:
    """What PyTorch alone comes to."""
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory, "out")
        command = [sys.executable, str(BITS), str(out), "--bare", *args]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = torch.load(out)
        return found


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("args", ["", "--drawn"])
def test_weights_average_state_rate_and_what_is_kept(tmp_path: Path, workers: int, args: str) -> None:
    out = tmp_path / "out"
    with Launch(tmp_path, BITS, "--workers", workers, args=f"{out} {args}") as run:
        assert run.end() == 0, run.err
    reference = bare(*args.split())
    turns = reference["kept"]["turns"]
    assert turns == (21 if args else 18)
    assert reference["kept"]["norms"] / turns > 0.2, "it was clipped"
    assert_same(torch.load(out), reference)
