"""Endings: in which way each worker's script has ended a turn's version, and whether all did so alike. Pure.

What ends a step is for the script to choose, in each worker: an optimizer's update, `step.skip()`, leaving the loop.
Owners do what their own script says. So where scripts choose apart, the step would be made in some slices, or on some
hosts, and dropped on others.

Of its newest endings a worker shows one word: the version of the newest, and below it four bits for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

__all__ = [
    "LEFT", "LEFT_OUT", "SHOWN", "SKIPPED", "STEPPED", "TURN_ENDED", "Ending", "apart", "newest", "shown", "word",
]  # fmt: skip

SKIPPED, LEFT, LEFT_OUT, STEPPED = 1, 2, 3, 4  #: STEPPED + n: by the step of optimizer n
SHOWN = 6  #: so many endings are in a word
TURN_ENDED = "turn_ended"  #: what a worker's result calls (version, step, how, line) of its newest ending
_BITS, _BELOW = 4, 4 * SHOWN
_HOW = {SKIPPED: "step.skip()", LEFT: "leaving the loop", LEFT_OUT: "scaler.step(), which left it out,"}


class Ending(NamedTuple):
    """How one worker has ended a version, and at which line of the script; 0: it is not known any more."""

    how: int
    line: int = 0


def word(before: int, version: int, how: int) -> int:
    """What a worker shows once it has ended this version so, where it has shown `before`.

    >>> shown(word(word(0, 7, STEPPED), 8, SKIPPED))
    {8: 1, 7: 4}
    >>> shown(word(word(0, 7, STEPPED), 99, SKIPPED)), shown(word(0, 7, STEPPED + 40))
    ({99: 1}, {7: 15})
    """
    apart = version - newest(before)
    kept = before << _BITS * apart if 0 < apart < SHOWN else 0
    return version << _BELOW | (kept | min(how, (1 << _BITS) - 1)) & ((1 << _BELOW) - 1)


def newest(said: int) -> int:
    """The version that was ended last."""
    return said >> _BELOW


def shown(said: int) -> dict[int, int]:
    """Version -> how it was ended."""
    every = {newest(said) - back: said >> _BITS * back & ((1 << _BITS) - 1) for back in range(SHOWN)}
    return {version: how for version, how in every.items() if how}


def apart(step: int, endings: Mapping[int, Ending], title: Callable[[int], str]) -> str | None:
    """The sentence that says who has ended this step otherwise than others; None where all did it alike.

    >>> print(apart(3, {0: Ending(STEPPED, 12), 2: Ending(SKIPPED, 9)}, "worker {}".format))
    Step 3 was ended by optimizer.step() in worker 0 (line 12 of the script) and by step.skip() in worker 2 (line 9 of \
the script). Decide it by what is the same in every worker: step.number, step.loss, .grad after the inner loop, a \
result of run.evaluate.
    >>> print(apart(3, {0: Ending(STEPPED), 2: Ending(STEPPED + 1)}, "worker {}".format))
    Step 3 was ended by the step of optimizer 0 in worker 0 and by the step of optimizer 1 in worker 2. Decide it by \
what is the same in every worker: step.number, step.loss, .grad after the inner loop, a result of run.evaluate.
    >>> apart(3, {0: Ending(STEPPED, 12), 2: Ending(STEPPED, 14)}, "worker {}".format)
    """
    first = min(endings, default=0)
    other = next((worker for worker in sorted(endings) if endings[worker].how != endings[first].how), None)
    if other is None:
        return None
    several = all(endings[worker].how >= STEPPED for worker in (first, other))

    def who(worker: int) -> str:
        how, line = endings[worker]
        by = f"the step of optimizer {how - STEPPED}" if several else _HOW.get(how, "optimizer.step()")
        return f"by {by} in {title(worker)}{f' (line {line} of the script)' if line else ''}"

    return (
        f"Step {step} was ended {who(first)} and {who(other)}. Decide it by what is the same in every worker: "
        "step.number, step.loss, .grad after the inner loop, a result of run.evaluate."
    )
