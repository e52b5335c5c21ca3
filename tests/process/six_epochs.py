"""Runs of `scripts/train.py` through six epochs, 96 steps: so long that something can happen to them on the way.

With `slow(tmp_path)` a unit takes 0.1 s until the test says `go`, so whoever starts late is in time. A run that changes
its mode is to loop plainly (`PLAIN`), and to write down what its units used (`trail.AUDITED`).
"""

from __future__ import annotations

from pathlib import Path

from tests.process.harness import Launch, golden
from tests.process.trail import each_sample_once

__all__ = ["PLAIN", "finished", "go", "slow", "used_once", "weights"]

PLAIN = " --plain"


def slow(tmp_path: Path) -> str:
    """What the script is told."""
    return f"--epochs 6 --linger {tmp_path}/go"


def go(tmp_path: Path) -> None:
    """From now on it is as fast as it can be."""
    (tmp_path / "go").touch()


def weights(model: str = "normed") -> str:
    """The weights that plain python ends with."""
    return golden(model, 4, "--epochs", "6")


def used_once(run: Launch) -> None:
    """Every sample was used once in an epoch of a plain loop, by the audit trail."""
    each_sample_once(run, samples=484, epochs=6)
    assert run.summary["steps"] == 6 * 16


def finished(run: Launch) -> None:
    """It went on by steps to its end, with the right weights and every sample once."""
    assert run.end() == 0, run.err
    run.trace.audit(samples=484, steps_of_epoch=16, epochs=6)
    assert (run.summary["steps"], run.summary["samples"]) == (6 * 16, 6 * 484)
    assert run.sha256 == weights(), run.err
