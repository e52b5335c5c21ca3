"""How the way of keeping step changes while a run is going: at a step boundary, while everybody stands still.

A generation says which mode is wanted. Its members go to the next step boundary, where nothing is under way, and stand
there, in their loop over the loader. When all of them do, the owner of the first slice lays out what the new mode needs
and says on the board that it counts: one store. Everybody who sees it takes the new mode up and goes on with the pass.

Whoever is killed, before that store nothing has happened: the next generation stands at the same boundary, and somebody
else makes the store. After it, all who look at the board next see the new mode, those who come later included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.exchange import board as cells
from holdfast.exchange.paced import Course

if TYPE_CHECKING:
    from holdfast.train.binding import Binding
    from holdfast.train.training import Training

__all__ = ["stand"]


def stand(training: Training, course: Course, done: int) -> None:
    """Stand at a step boundary, `done` steps into a pass, until the mode has changed or a new generation is there."""
    binding = training.bound
    board, at, controls = binding.board, binding.member.at, binding.controls
    serial, stands = binding.pace.serial, binding.version + 1
    acts = at.owner[0] == at.worker

    def come() -> bool:
        return board.pace_serial() > serial or (acts and not _absent(binding, cells.R_STANDS, stands))

    board.put(cells.R_STANDS, stands)
    controls.ring()
    controls.look()
    while not controls.pausing and board.pace_serial() == serial:
        missing = _absent(binding, cells.R_STANDS, stands)
        if acts and not missing:
            binding.turn(course, done, training.step)
            controls.ring()
            break
        training.check_together(come)
        binding.member.wait_for(missing[0] if acts else at.owner[0], come)
    give_back = binding.catch_up()
    if acts and give_back is not None:
        _when_all_have(binding, serial + 1, give_back)
    if controls.pausing:
        controls.rest(training.step)
    board.put(cells.R_STANDS, 0)


def _when_all_have(binding: Binding, serial: int, give_back: Callable[[], None]) -> None:
    """Give the memory of the old mode back when nobody looks at it any more; should a pause come before, later."""
    while not binding.controls.pausing:
        missing = _absent(binding, cells.R_PACE, serial)
        if not missing:
            give_back()
            return
        binding.member.wait_for(missing[0], lambda: not _absent(binding, cells.R_PACE, serial))


def _absent(binding: Binding, column: int, level: int) -> list[int]:
    """The members whose row does not say so much yet."""
    return [member for member, row in binding.member.rows() if binding.board.cell(row, column) < level]
