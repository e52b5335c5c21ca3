"""Runs of the audit model (`scripts/tally.py`), and what it says in the end: how often each push counted, how much."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.process.harness import SCRIPTS, Launch

__all__ = ["BATCH", "EPOCHS", "SAMPLES", "STEPS", "TALLY", "applied_once", "arguments", "settings"]

TALLY = SCRIPTS / "tally.py"
EPOCHS, STEPS, LANES, SAMPLES, BATCH, MARK = 4, 8, 4, 256, 32, 16.0
#: The steps by which a push may be late with a quorum (`core.sync.modes`).
LATEST = 8


def settings(mode: str, *later: str) -> tuple[object, ...]:
    """Options of a run in this mode, and others later. The outer step after local ones adds up what lanes have done."""
    outer = ("--set", f"local.lr={LANES}", "--set", "local.momentum=0")
    return ("--sync", mode, *(outer if any(sync.startswith("local") for sync in (mode, *later)) else ()))


def arguments(tmp_path: Path, epochs: int = EPOCHS) -> str:
    """What the script is told: to leave its numbers and a trace, and to be slow until the file `go` is there."""
    files = f"--out {tmp_path}/tally --trace {tmp_path}/trace-run --go {tmp_path}/go --began {tmp_path}/began"
    return f"--epochs {epochs} {files}"


def applied_once(run: Launch, epochs: int = EPOCHS, *, plain: bool = False) -> None:
    """Every sample of the run counted once, on every slice, with the weight that is its due in the mode of its step.

    Where stale pushes count as any others (`plain`), those that are late for a quorum still count less.
    """
    summary = run.summary
    assert (summary["steps"], summary["samples"], summary["samples_left_out"]) == (epochs * STEPS, epochs * SAMPLES, 0)
    parts = torch.stack(torch.load(run.dir.parent / "tally", weights_only=True))
    odd = (parts // MARK - 1).count_nonzero().item()
    assert not odd, f"{odd} numbers were not marked once, but {(parts // MARK).unique().tolist()} times\n{run.err}"
    weights = parts - MARK
    assert (weights == weights[0]).all(), f"some weigh one thing in one slice and another in the next\n{run.err}"
    tried: dict[int, set[int]] = {}  # number -> steps in which it was: several, where a lost one joined the next step
    for step, _, numbers in run.trace.read().made:
        for number in numbers:
            tried.setdefault(number, set()).add(step)
    assert sorted(tried) == list(range(epochs * SAMPLES))
    for number, steps in tried.items():
        weight = weights[0, number].item()
        by = {next(mode["sync"] for mode in reversed(summary["modes"]) if mode["step"] <= step) for step in steps}
        assert any(due(weight, mode, plain) for mode in by), f"{number} weighs {weight} by {by}\n{run.err}"


def due(weight: float, mode: str, plain: bool) -> bool:
    """Can a sample weigh this much? With a quorum 1 / (1 + n) where its push was `n` steps late, else 1 / (1 + 2 s)
    where that was `s` steps old, counted in quarters: there are four lanes. With local steps each lane is a whole step.
    In `exact` a step is the mean of the samples that came, and of those that were left over of the one before.
    """
    if mode.startswith("local"):
        return weight == LANES
    if mode == "exact":
        return abs(BATCH / weight - round(BATCH / weight)) < 1e-3 and 0.4 < weight < 9.0
    if mode == "bounded:0" or (plain and not mode.startswith("quorum")):
        return abs(weight - 1.0) < 1e-3
    parts, most = (1, LATEST) if mode.startswith("quorum") else (LANES // 2, EPOCHS * STEPS * LANES**2)
    late = round(parts / weight) - parts
    return abs(weight * (parts + late) / parts - 1.0) < 1e-3 and 0 <= late <= most
