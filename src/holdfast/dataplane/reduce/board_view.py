"""What a worker sees of a step on its host's board, in the terms of `core.sync.exact`, which decides."""

from __future__ import annotations

from holdfast.core.roles import Role
from holdfast.core.sync import exact as decide
from holdfast.core.tree import bits, contribution, cover
from holdfast.dataplane.memory import board as cells
from holdfast.dataplane.memory.board import Board
from holdfast.dataplane.memory.pieces import Pieces
from holdfast.dataplane.reduce.work import StepWork

__all__ = ["complete", "look"]


def complete(board: Board) -> bool:
    """Is all here that the step at hand is finished from: its sums, and what its lanes gave besides?"""
    versions = board.versions()
    step = min(versions, default=0)
    begun = max(versions, default=0) > step  # nobody begins without
    return all(summed > step for summed in board.summed()) and (begun or board.decided(step))


def look(at: Role, work: StepWork, board: Board, pieces: Pieces, *, pausing: bool) -> decide.BoardView:
    """What a worker that stands there sees."""
    step = work.version
    nodes = board.nodes(step)
    arrived = {member: board.cell(row, cells.R_ARRIVED) for member, row in at.rows.items()}
    clips = bool(nodes) and board.result(nodes[0].lane, step)[2] > 0.0  # said by its units, all alike
    closed = {m: board.cell(row, cells.R_CLOSED) for m, row in at.rows.items()} if work.turn else None
    seen = decide.BoardView(
        lanes=work.lanes, nodes=nodes, arrived=arrived, versions=board.versions(),
        summed=board.summed() if clips or work.turn or at.sums(step) else None, pausing=pausing, closed=closed,
        held=board.held(step),
    )
    if at.apart(step):
        return seen
    several = contribution(nodes, board.num_lanes).merged is not None
    return seen._replace(
        covered=_covered(at, seen, step, board, pieces), gathered=board.gathered() if several else None,
        unknown=_unknown(work, board),
    )


def _covered(at: Role, seen: decide.BoardView, step: int, board: Board, pieces: Pieces) -> list[int]:
    """The slices of mine that are at home here, not summed yet, and here from all lanes.

    They come in order from each host, so a few that are missing say enough about the rest.
    """
    found: list[int] = []
    missing = 0
    if not board.recorded(step) or any(seen.arrived.get(member, -1) < step for member in at.members):
        return found
    wanted, but = bits(seen.lanes) & ~cover(seen.nodes), bits(node.lane for node in seen.nodes)
    for index, version in enumerate(seen.summed or ()):
        if version > step or not at.sums_here(index):
            continue
        if pieces.missing(step, index, wanted, but):
            missing += 1
            if missing > len(at.rows):
                break
        else:
            found.append(index)
    return found


def _unknown(work: StepWork, board: Board) -> list[int]:
    known = board.known(work.version)
    return [] if len(known) >= len(work.lanes) else [lane for lane in work.lanes if lane not in known]
