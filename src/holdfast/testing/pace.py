"""How the lanes of a simulated run keep step: only that it changes, when, and who stands still meanwhile.

Steps are simulated as exact ones in every mode; what other modes do with pushes has a simulation of its own
(`servers`). What is tried here is the change: it needs everybody at one step boundary, with nothing under way.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast.testing.model import Violation

__all__ = ["FakePace"]


class FakePace:
    """The mode that counts on one host, and the rows of workers that stand at a boundary."""

    def __init__(self) -> None:
        self.sync, self.serial, self.step = "exact", 0, 0
        self._stands: dict[int, int] = {}  # row -> step

    def stand(self, row: int, step: int) -> None:
        """Somebody stands before this step."""
        self._stands[row] = step

    def leave(self, row: int) -> None:
        """Somebody goes on, or is new in this row."""
        self._stands.pop(row, None)

    def complete(self, rows: Collection[int], step: int) -> bool:
        """Do all of them stand before this step?"""
        return all(self._stands.get(row) == step for row in rows)

    def turn(self, sync: str, step: int, versions: Collection[int], acting: Collection[int], begun: bool) -> None:
        """The mode becomes another one."""
        if acting:
            raise Violation(f"the mode becomes {sync} at step {step} while workers {sorted(acting)} act")
        if begun or set(versions) != {step}:
            raise Violation(f"the mode becomes {sync} at step {step}, which has begun; slices are at {versions}")
        self.sync, self.serial, self.step = sync, self.serial + 1, step
