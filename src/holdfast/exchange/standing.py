"""Where a worker stands in a generation, and what it sees of a step from there.

Fixed from one generation to the next: who is where, who drives, owns and sums what. `place` and `look` put it into
the terms of `core.step`, which decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.core import step as decide
from holdfast.core.slices import Layout, owners
from holdfast.core.tree import contribution, uncovered
from holdfast.exchange import board as cells
from holdfast.exchange.board import Board
from holdfast.exchange.pieces import Pieces
from holdfast.exchange.work import StepWork

__all__ = ["Standing"]


@dataclass(frozen=True, slots=True)
class Standing:
    """One worker's place in one generation."""

    worker: int = -1
    members: Sequence[int] = ()
    rows: Mapping[int, int] = field(default_factory=dict)  #: member -> row on the board
    driver: Sequence[int] = ()
    owner: Sequence[int] = ()  #: slice -> worker of my host that acts on it
    local: Sequence[int] = ()  #: the members on my host
    home: Sequence[bool] | None = None  #: slice -> is it summed on my host; None: there is one host
    following: bool = False  #: my host is not in the crew yet; it finishes the crew's steps after it
    carried: int = -1  #: a step whose sums were all here when the generation began
    alone: int = -1  #: a step that this host had begun to finish by itself, without sums, when others joined

    @classmethod
    def of(
        cls, worker: int, members: Sequence[int], rows: Sequence[int], driver: Sequence[int],
        hosts: Sequence[int] | None, layout: Layout, board: Board, *, summed: bool, following: bool,
    ) -> Standing:  # fmt: skip
        """My place in a generation, given what the board shows as it begins."""
        where = dict(zip(members, hosts or [0] * len(members), strict=True))
        here = where[worker]
        local = tuple(member for member in members if where[member] == here)
        several = sorted(set(where.values()))
        home: Sequence[bool] | None = None
        if following:
            home = (False,) * len(layout.slices)
        elif len(several) > 1:
            home = tuple(host == here for host in owners(layout, several))
        elif summed:
            home = (True,) * len(layout.slices)
        carried, alone = _begun(board)
        return cls(
            worker, tuple(members), dict(zip(members, rows, strict=True)), tuple(driver), owners(layout, local), local,
            home, following, carried, alone,
        )  # fmt: skip

    def sums(self, step: int) -> bool:
        """Is this step finished from sums that are made first, and carried between hosts?"""
        return self.carried == step or (self.home is not None and self.alone != step)

    def place(self, step: int) -> decide.Place:
        """My place, for the rule."""
        home, members = self.home, self.members
        if home is None and self.carried == step:
            home = (True,) * len(self.owner)
        elif self.alone == step:
            home, members = None, self.local
        return decide.Place(self.worker, step, self.driver, self.owner, members, self.local, home)

    def look(self, work: StepWork, board: Board, pieces: Pieces, *, pausing: bool) -> decide.Board:
        """What I see, for the rule."""
        step = work.step
        nodes = board.nodes(step)
        arrived = {member: board.cell(row, cells.R_ARRIVED) for member, row in self.rows.items()}
        clips = bool(nodes) and board.result(nodes[0].lane, step)[2] > 0.0  # said by its units, all alike
        seen = decide.Board(
            lanes=work.lanes, nodes=nodes, arrived=arrived, versions=board.versions(),
            summed=board.summed() if clips or self.sums(step) else None, pausing=pausing,
        )
        if self.home is None or self.alone == step:
            return seen
        several = contribution(nodes, board.num_lanes).merged is not None
        return seen._replace(
            covered=self._covered(seen, step, board, pieces), gathered=board.gathered() if several else None,
            unknown=_unknown(work, board),
        )

    def _covered(self, seen: decide.Board, step: int, board: Board, pieces: Pieces) -> list[int]:
        """The slices of mine that are at home here, not summed yet, and here from all lanes.

        They come in order from each host, so a few that are missing say enough about the rest.
        """
        found: list[int] = []
        missing = 0
        if not board.recorded(step) or any(seen.arrived.get(member, -1) < step for member in self.members):
            return found
        for index, at in enumerate(seen.summed or ()):
            if at > step or not (self.home and self.home[index]) or self.owner[index] != self.worker:
                continue
            if uncovered(seen.lanes, [*seen.nodes, *pieces.nodes(step, index, but=seen.nodes)]):
                missing += 1
                if missing > len(self.rows):
                    break
            else:
                found.append(index)
        return found


def _begun(board: Board) -> tuple[int, int]:
    """The step at hand, if its sums and facts are all here; the step at hand, if slices of it are finished without.

    In both cases this host needs nobody to complete the step. Else -1.
    """
    versions = board.versions()
    step = min(versions, default=0)
    begun = max(versions, default=0) > step
    if all(at > step for at in board.summed()) and (begun or board.decided(step)):
        return step, -1
    return -1, step if begun else -1


def _unknown(work: StepWork, board: Board) -> list[int]:
    known = board.known(work.step)
    return [] if len(known) >= len(work.lanes) else [lane for lane in work.lanes if lane not in known]
