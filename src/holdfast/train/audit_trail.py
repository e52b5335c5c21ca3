"""The audit trail: which samples each unit used, for `holdfast run --set audit=true`.

One line per unit, written before the unit is shown, so a committed unit always has its line; a unit that
was computed twice has two, and they must be equal (`observe.audit` checks it). A disk that is full ends the
trail, with a line in the worker's log, not the training. A line is

    PASS STEP LANE ID ID ID ...

in `DIR/audit/worker-N.txt`. In a plain loop a unit is a worker's share of the step, and bears its first lane; one that
takes along what is left over of another pass has a line for each pass. There a step commits with the shares that came,
so which ones did is written before it does:

    came STEP LANE LANE ...
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["AuditTrail"]


class AuditTrail:
    """Writes one worker's part of the trail. Resources: `close` closes its file."""

    def __init__(self, directory: Path, worker: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file = open(directory / f"worker-{worker}.txt", "ab", buffering=0)  # noqa: SIM115

    def note(self, order: int, step: int, lane: int, ids: Sequence[int]) -> None:
        """Note a unit. One write, so a kill leaves whole lines or a last one that is cut."""
        self._write(step, order, step, lane, *ids)

    def came(self, step: int, lanes: Sequence[int]) -> None:
        """Note of which shares a step consists."""
        self._write(step, "came", step, *lanes)

    def _write(self, step: int, *words: str | int) -> None:
        if self._file.closed:
            return
        try:
            self._file.write((" ".join(map(str, words)) + "\n").encode())
        except OSError as error:
            told = f"holdfast: the audit trail ends at step {step}: {error.strerror}. Make room for it."
            print(told, file=sys.stderr)
            self._file.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
