"""Which units are computed a second time, to see whether they give the same.

The choice is a pure function of seed and step, so it is the same in every worker and after every kill, and whoever
drives the lane does it. At most one unit of a step is chosen: in some of the run's first steps, another lane from one
to the next, because what is wrong with a script is mostly wrong at once; and in a small share of the later steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.core.keys import STREAM_VERIFY, key

__all__ = ["FIRST", "SHARE", "chosen"]

FIRST: Final = (0, 1, 3, 6, 10, 15)  #: steps of a run, in each of which a unit is verified
SHARE: Final = 0.01  #: of the later steps, unless somebody says otherwise


def chosen(seed: int, step: int, lanes: Sequence[int], share: float) -> int | None:
    """The lane of `step` whose unit is computed twice; None: no unit of it is. `lanes` are those with work.

    With a larger share the steps of a smaller one are chosen as well; with share 0, none.

    >>> [chosen(0, step, range(4), 0.01) for step in (*FIRST, 2, 20, 21)]
    [1, 2, 3, 0, 1, 2, None, None, None]
    """
    if share <= 0.0 or not lanes:
        return None
    if step in FIRST:
        # Far from each other where there are many, so that each worker has its turn.
        at = FIRST.index(step) * max(len(lanes), len(FIRST)) // len(FIRST)
        return lanes[(key(seed, STREAM_VERIFY) + at) % len(lanes)]
    draw = key(seed, STREAM_VERIFY, step)
    return lanes[key(draw, STREAM_VERIFY) % len(lanes)] if draw < share * 2.0**64 else None
