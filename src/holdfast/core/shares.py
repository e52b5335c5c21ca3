"""Shares: which samples of a step each worker takes in a plain loop, and what becomes of those of a lost worker. Pure.

In a plain loop a worker computes one batch a turn: its *share*, which is the run of its lanes. A step is made of the
shares that came. What did not come, because a worker was lost, is written down in the *backlog*, and is shared out once
more with the next step: so each sample is used in one committed step.

A step may take several turns, where the script adds up gradients before it calls `optimizer.step()`. Its parts are then
those of all turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

__all__ = ["LostPart", "Share", "left_over", "runs", "shares"]


class LostPart(NamedTuple):
    """One lane's samples in one turn, which were not used in their own step."""

    loader: int  #: which of the prepared ones
    order: int  #: of the data, in that pass
    at: int  #: turn of that pass
    lane: int


class Share(NamedTuple):
    """One worker's part of a step: lanes [first, last) of its turns, and parts [begin, end) of the backlog."""

    first: int
    last: int
    begin: int = 0
    end: int = 0


def runs(drivers: Sequence[int]) -> list[tuple[int, int, int]]:
    """(worker, first lane, beyond its last) of each run of lanes.

    >>> runs((4, 4, 4, 7))
    [(4, 0, 3), (7, 3, 4)]
    """
    found: list[tuple[int, int, int]] = []
    for lane, worker in enumerate(drivers):
        if found and found[-1][0] == worker:
            found[-1] = (worker, found[-1][1], lane + 1)
        else:
            found.append((worker, lane, lane + 1))
    return found


def shares(drivers: Sequence[int], backlog: int) -> dict[int, Share]:
    """Worker -> its share of a step, where so many parts of earlier ones are left over.

    >>> shares((4, 4, 4, 7), 3)
    {4: Share(first=0, last=3, begin=0, end=1), 7: Share(first=3, last=4, begin=1, end=3)}
    """
    parts = runs(drivers)
    many = len(parts)
    return {
        worker: Share(first, last, backlog * number // many, backlog * (number + 1) // many)
        for number, (worker, first, last) in enumerate(parts)
    }


def left_over(
    came: Iterable[Share], backlog: Sequence[LostPart], whole: Iterable[LostPart], loader: int
) -> tuple[LostPart, ...]:
    """The backlog after a step: what of it, and of the `whole` step, is in no share that came.

    Parts of another loader stay where they are: a step takes those of its own.

    >>> left_over([Share(0, 2, 0, 1)], [LostPart(0, 1, 6, 3)], [LostPart(0, 1, 7, lane) for lane in range(3)], 0)
    (LostPart(loader=0, order=1, at=7, lane=2),)
    """
    came = list(came)
    lanes = {lane for share in came for lane in range(share.first, share.last)}
    taken = {index for share in came for index in range(share.begin, share.end)}
    mine = [part for part in backlog if part.loader == loader]
    others = [part for part in backlog if part.loader != loader]
    left = [part for index, part in enumerate(mine) if index not in taken]
    return (*others, *left, *(part for part in whole if part.lane not in lanes))
