"""The interval between two checkpoints: a time, a number of steps, or none at all. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast.quantities import Duration

__all__ = ["Interval", "parse"]

_STEPS = re.compile(r"(\d+) ?steps?")


class Interval(NamedTuple):
    """How far apart checkpoints are. Neither a time nor steps: there are none."""

    seconds: float = 0.0
    steps: int = 0

    @property
    def off(self) -> bool:
        """Are there no checkpoints?"""
        return not self.seconds and not self.steps

    def due(self, waited: float, made: int) -> bool:
        """Is there to be one, so many seconds and steps after the last?"""
        return made > 0 and (waited >= self.seconds if self.seconds else 0 < self.steps <= made)


def parse(text: str) -> Interval:
    """What people write. Raises ValueError with what is wrong.

    >>> parse("5m"), parse("200 steps"), parse("off").off
    (Interval(seconds=300.0, steps=0), Interval(seconds=0.0, steps=200), True)
    """
    if text == "off":
        return Interval()
    if found := _STEPS.fullmatch(text.strip()):
        if not int(found[1]):
            raise ValueError("must be at least 1 step")
        return Interval(steps=int(found[1]))
    try:
        seconds = Duration(text).seconds
    except ValueError:
        raise ValueError("must be a time such as 5m, a number of steps such as 200steps, or off") from None
    if seconds <= 0:
        raise ValueError("must be more than 0")
    return Interval(seconds=seconds)
