"""Turn ends: what a worker shows of how it has ended versions, and whether others have ended them otherwise.

On one host all have ended a version before it is made. Workers of other hosts show their endings with where they stand,
so with their arrival at the next version: before anything of that is summed, the one before is compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from holdfast.core import endings
from holdfast.core.endings import Ending
from holdfast.core.roles import Role
from holdfast.dataplane.memory import board as cells
from holdfast.dataplane.memory.board import Board
from holdfast.dataplane.reduce.work import StepWork
from holdfast.errors import OutOfSync

__all__ = ["TurnEnds"]


class TurnEnds:
    """The endings of one worker's turns, beside those of others."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._mine: dict[int, tuple[int, Ending]] = {}  # version -> (step, how)

    def note(self, work: StepWork, how: int) -> None:
        """This worker's script has ended a version, at the line that its row shows."""
        board = self._board
        line = board.cell(board.row, cells.R_LINE)
        self._mine[work.version] = work.step, Ending(how, line)
        for version in [old for old in self._mine if old <= work.version - endings.SHOWN]:
            del self._mine[version]
        board.put(cells.R_ENDED_LINE, line)
        board.put(cells.R_ENDED, endings.word(board.cell(board.row, cells.R_ENDED), work.version, how))

    def newest(self) -> tuple[int, int, int, int]:
        """(version, step, how, line) of this worker's newest ending; of version -1, if it has made none."""
        version = max(self._mine, default=-1)
        step, (how, line) = self._mine.get(version, (-1, Ending(0)))
        return version, step, how, line

    def check(self, at: Role, members: Iterable[int]) -> None:
        """Raise OutOfSync where one of these members has ended a version otherwise than this worker."""
        board, told = self._board, dict[int, int]()
        for member in members:
            row = at.rows[member]
            if member != at.worker and board.cell(row, cells.R_WORKER) == member:  # else it has not said anything yet
                told[member] = board.cell(row, cells.R_ENDED)
        if all(said == board.cell(board.row, cells.R_ENDED) for said in told.values()):
            return
        for member, said in told.items():
            theirs = endings.shown(said)
            for version, (step, mine) in self._mine.items():
                if version not in theirs:
                    continue
                newest = endings.newest(said) == version
                line = board.cell(at.rows[member], cells.R_ENDED_LINE) if newest else 0
                several = {at.worker: mine, member: Ending(theirs[version], line)}
                if sentence := endings.apart(step, several, partial(_title, at)):
                    raise OutOfSync(sentence)


def _title(at: Role, worker: int) -> str:
    return f"{'server' if worker in at.servers else 'worker'} {worker}"
