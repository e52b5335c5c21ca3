"""Turn ends: whether all workers of a host have ended a step in the same way.

What ends a step is for the script to choose, in each worker: an update, `step.skip()`, leaving the loop. Owners do what
their own script says. So where scripts choose apart, the step would be made in some slices and dropped in others.
"""

from __future__ import annotations

from holdfast.core.roles import Role
from holdfast.dataplane.memory import board as cells
from holdfast.dataplane.memory.board import Board
from holdfast.dataplane.reduce.work import StepWork
from holdfast.errors import OutOfSync

__all__ = ["check_ends"]

#: What a row says of the newest step that its worker ended: below its version, whether no update was made, and no step.
_HOW = {0: "optimizer.step()", 1: "step.skip()", 3: "leaving the loop"}


def check_ends(work: StepWork, at: Role, board: Board) -> None:
    """Every worker of this host has ended this step: raise OutOfSync unless all did so in the same way."""
    told = {worker: board.cell(row, cells.R_ENDED) for worker, row in at.rows.items() if worker in at.on_host}
    ends = {worker: how & 3 for worker, how in told.items() if how >> 2 == work.version}
    mine = ends.get(at.worker)
    other = next((worker for worker, how in sorted(ends.items()) if how != mine), None)
    if mine is None or other is None:
        return

    def who(worker: int) -> str:
        line = board.cell(at.rows[worker], cells.R_LINE)
        return f"by {_HOW[ends[worker]]} in worker {worker} (line {line} of the script)"

    raise OutOfSync(
        f"Step {work.step} was ended {who(min(at.worker, other))} and {who(max(at.worker, other))}. Decide it by what "
        "is the same in every worker: step.number, step.loss, .grad after the inner loop, a result of run.evaluate."
    )
