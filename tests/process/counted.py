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
    """Every push of the run was applied once, on every slice, with the weight that is its due in the mode of its step.

    Where stale pushes count as any others (`plain`), those that are late for a quorum still count less.
    """
    run.trace.audit(samples=SAMPLES, steps_of_epoch=STEPS, epochs=epochs)
    assert (run.summary["steps"], run.summary["samples"]) == (epochs * STEPS, epochs * SAMPLES)
    parts = torch.stack(torch.load(run.dir.parent / "tally", weights_only=True))
    odd = (parts // MARK - 1).count_nonzero().item()
    assert not odd, f"{odd} numbers were not marked once, but {(parts // MARK).unique().tolist()} times\n{run.err}"
    weights = parts - MARK
    for (step, lane), numbers in run.trace.units.items():
        seen = weights[:, [step // STEPS * SAMPLES + number for number in numbers]].unique().tolist()
        assert len(seen) == 1, f"the push of step {step}, lane {lane} weighs {seen} in different places\n{run.err}"
        mode = next(mode["sync"] for mode in reversed(run.summary["modes"]) if mode["step"] <= step)
        assert due(seen[0], mode, plain), f"the push of step {step}, lane {lane} weighs {seen[0]} by {mode}\n{run.err}"


def due(weight: float, mode: str, plain: bool) -> bool:
    """Can a push weigh this much? With a quorum 1 / (1 + n) where it was `n` steps late, else 1 / (1 + 2 s) where it
    was `s` steps old, in agent directory: there are four lanes. With local steps each lane is a whole step.
    """
    if mode.startswith("local"):
        return weight == LANES
    if mode in ("exact", "bounded:0") or (plain and not mode.startswith("quorum")):
        return weight == 1.0
    parts, most = (1, LATEST) if mode.startswith("quorum") else (LANES // 2, EPOCHS * STEPS * LANES**2)
    late = round(parts / weight) - parts
    return abs(weight * (parts + late) / parts - 1.0) < 1e-3 and 0 <= late <= most
