"""Rows of the board for tests."""

from __future__ import annotations

from holdfast.dataplane.memory.board_snapshot import BoardRow


def row(worker: int = 0, **cells: float) -> BoardRow:
    idle = BoardRow(
        row=worker, worker=worker, pid=100 + worker, step=0, epoch=0, unit_step=-1, unit_lane=-1, units=0,
        unit_seconds=0.0, wait_seconds=0.0, busy_seconds=0.0, samples=0, loss=0.0, beat=0, waiting_for=-1,
    )
    return idle._replace(**cells)
