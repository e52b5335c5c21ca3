"""How the way of keeping step changes while a run is going: at a step boundary, while everybody stands still.

A generation says which mode is wanted. Its members go to the next step boundary, where nothing is under way, and stand
there, in their loop over the loader, and say so. When all of them do, on all hosts, the coordinator ends the
generation; the next one is of the new mode. Each host takes that up before its workers hear of it
(`dataplane.memory.host_memory`), and then they go on with the pass.

With local steps the boundary is the end of the round at hand, and one thing is converted there: see
`dataplane.relaxed.inner_state`.

Whoever is killed before all stand is replaced, and the next generation stands at the same boundary. After that, the
boundary is where the run is: those who come later find it in the new mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.control.protocol.messages import AtBoundary
from holdfast.dataplane.memory import board as cells

if TYPE_CHECKING:
    from holdfast.train.training import Training

__all__ = ["stand"]


def stand(training: Training) -> None:
    """Stand at a step boundary until a new generation is there."""
    binding = training.bound
    board, member, controls = binding.board, binding.member, binding.controls
    board.put(cells.R_STANDS, 1)
    controls.look()
    while not controls.pausing:
        binding.steered.send(AtBoundary(member.at.worker, binding.steered.generation, binding.version, training.step))
        training.check_together(lambda: controls.pausing)
        others = [other for other, row in member.rows() if not board.cell(row, cells.R_STANDS)]
        member.wait_for(others[0] if others else member.at.lead, lambda: False)
    controls.rest(training.step)
    board.put(cells.R_STANDS, 0)
