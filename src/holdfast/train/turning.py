"""How the way of keeping step changes while a run is going: at a step boundary, while everybody stands still.

A generation says which mode is wanted. Its members go to the next step boundary, where nothing is under way, and stand
there, in their loop over the loader. When all of them do, the owner of the first slice lays out what the new mode needs
and says on the board that it counts: one store. Everybody who sees it takes the new mode up and goes on with the pass.

Whoever is killed, before that store nothing has happened: the next generation stands at the same boundary, and somebody
else makes the store. After it, all who look at the board next see the new mode, those who come later included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.exchange import board as cells
from holdfast.exchange.paced import Course

if TYPE_CHECKING:
    from holdfast.train.training import Training

__all__ = ["stand"]


def stand(training: Training, course: Course, done: int) -> None:
    """Stand at a step boundary, `done` steps into a pass, until the mode has changed or a new generation is there."""
    binding = training.bound
    board, member, controls = binding.board, binding.member, binding.controls
    before, version = binding.pace, binding.version
    acts = member.at.owner[0] == member.at.worker

    def absent(column: int, level: int) -> list[int]:
        return [worker for worker, row in member.rows() if board.cell(row, column) < level]

    def come() -> bool:
        return board.pace_serial() > before.serial or (acts and not absent(cells.R_STANDS, version + 1))

    board.put(cells.R_STANDS, version + 1)
    controls.ring()
    controls.look()
    while not controls.pausing and board.pace_serial() == before.serial:
        if come():
            binding.turn(course, done, training.step)
            controls.ring()
            break
        training.check_together(come)
        member.wait_for(absent(cells.R_STANDS, version + 1)[0] if acts else member.at.owner[0], come)
    old = binding.catch_up()
    while old is not None and acts and not controls.pausing and (late := absent(cells.R_PACE, before.serial + 1)):
        member.wait_for(late[0], lambda: not absent(cells.R_PACE, before.serial + 1))
    if old is not None and acts and not controls.pausing:
        old()  # nobody looks at what the mode before had of memory
    if controls.pausing:
        controls.rest(training.step)
    board.put(cells.R_STANDS, 0)
