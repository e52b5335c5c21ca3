"""Variables between trainings: what a script has when it joins again, in a worker that has not been in all trainings.

Such a worker goes through a training that is over without its steps, so a plain variable that the script changes in its
loops has another value in it. What the script may still read is compared, at each `hf.join()` after the first, with
what the workers had there that the training was made by. What differs is named; nothing differs in silence. What they
had apart among themselves are measured times and the like; with one worker that cannot be known, and is only said.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from holdfast.errors import NotKept
from holdfast.train.loop.variables.differences import Left, differing
from holdfast.train.loop.variables.late_variables import Clock, as_told
from holdfast.train.loop.variables.script_values import loop_frame, values_around

__all__ = ["compare", "left"]

_MISSING = "nothing"


def left() -> dict[str, str]:
    """What this worker has in its script's variables, as it is told to later ones."""
    clock = Clock()
    return {name: as_told(value) for name, value in _values().items() if not clock.is_near(value)}


def compare(others: Sequence[dict[str, str]], number: int) -> None:
    """Look whether this worker has what others had at the end of training `number`. Raises NotKept."""
    values, clock = _values(), Clock()
    names = dict.fromkeys([*values, *(name for one in others for name in one)])
    mine = {
        name: as_told(values[name]) if name in values else _MISSING
        for name in names if name not in values or not clock.is_near(values[name])
    }  # fmt: skip
    tables = [{name: Left(one.get(name, _MISSING)) for name in mine} for one in others]
    unsure: list[NotKept] = []
    for one in differing(mine, tables):
        lack = NotKept.between(one.name, mine=one.mine, theirs=one.theirs, training=number)
        if one.sure:
            raise lack
        unsure.append(lack)
    if unsure:
        first, *more = unsure
        likewise = f" So it is with {', '.join(one.name for one in more)}." if more else ""
        warnings.warn(f"Unless it is a measured time, something is not kept. {first}{likewise}", stacklevel=2)


def _values() -> dict[str, Any]:
    return values_around(loop_frame(), ahead=True)
