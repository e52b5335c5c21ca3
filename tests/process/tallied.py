"""Runs of the audit model (`scripts/tally.py`), and what it says in the end: how often each push counted, how much."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.process.harness import SCRIPTS, Launch

__all__ = ["BATCH", "EPOCHS", "SAMPLES", "TALLY", "applied_once", "arguments", "settings"]

TALLY = SCRIPTS / "tally.py"
EPOCHS, STEPS, LANES, SAMPLES, BATCH, MARK = 4, 8, 4, 256, 32, 16.0
#: The steps by which a push may be late with a quorum (`core.clocks`).
LATEST = 8


def settings(mode: str) -> tuple[object, ...]:
    """Options of a run in this mode. The outer step after local ones adds up what the lanes have done."""
    outer = ("--set", f"local.lr={LANES}", "--set", "local.momentum=0")
    return ("--sync", mode, *(outer if mode.startswith("local") else ()))


def arguments(tmp_path: Path, epochs: int = EPOCHS) -> str:
    """What the script is told: to leave its numbers and a trace, and to be slow until the file `go` is there."""
    files = f"--out {tmp_path}/tally --trace {tmp_path}/trace-run --go {tmp_path}/go --began {tmp_path}/began"
    return f"--epochs {epochs} {files}"


def applied_once(run: Launch, mode: str, epochs: int = EPOCHS) -> None:
    """Every push of the run was applied once, on every slice, with the weight that is its due."""
    run.trace.audit(samples=SAMPLES, steps_of_epoch=STEPS, epochs=epochs)
    assert (run.summary["steps"], run.summary["samples"]) == (epochs * STEPS, epochs * SAMPLES)
    parts = torch.stack(torch.load(run.dir.parent / "tally", weights_only=True))
    odd = (parts // MARK - 1).count_nonzero().item()
    assert not odd, f"{odd} numbers were not marked once, but {(parts // MARK).unique().tolist()} times\n{run.err}"
    weights = parts - MARK
    for (step, lane), numbers in run.trace.units.items():
        seen = weights[:, [step // STEPS * SAMPLES + number for number in numbers]].unique().tolist()
        assert len(seen) == 1, f"the push of step {step}, lane {lane} weighs {seen} in different places\n{run.err}"
        assert due(seen[0], mode), f"the push of step {step}, lane {lane} weighs {seen[0]}\n{run.err}"


def due(weight: float, mode: str) -> bool:
    """Can a push weigh this much? 1 / (1 + n) where it was `n` late; with local steps each lane is a whole step."""
    if mode in ("exact", "bounded:0"):
        return weight == 1.0
    if mode.startswith("local"):
        return weight == LANES
    late = round(1.0 / weight) - 1
    exact = abs(weight * (1 + late) - 1.0) < 1e-3
    return exact and 0 <= late <= (LATEST if mode.startswith("quorum") else EPOCHS * STEPS * LANES)
