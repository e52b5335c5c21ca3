"""Clocks of very many lanes that know at any time who is last, without looking at all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from holdfast.core.sync.modes import Clocks

__all__ = ["Tally"]


class Tally(Clocks):
    """Where lanes stand, counted as they go on: `core.sync.modes` asks it what it would look for in plain `Clocks`.

    >>> tally = Tally(steps=5, lanes=2)
    >>> tally.push(1)
    >>> tally.slowest, tally.late
    (0, (0,))
    """

    # The sequences are lists, whatever `Clocks` says of them.
    pushed: list[int]
    taken: list[int]
    applied: list[int]

    def __new__(cls, steps: int, lanes: int) -> Tally:
        tally = super().__new__(cls, steps, [0] * lanes, [0] * lanes, [0] * lanes)
        tally._applies, tally._slowest = Counter({0: lanes}), 0
        tally._late = None
        return tally

    _applies: Counter[int]  # clock -> lanes that stand there
    _slowest: int
    _late: dict[int, None] | None  # in order; None: to be found

    def push(self, lane: int) -> None:
        """A lane has made a push."""
        self.pushed[lane] += 1
        if self._late is not None:
            self._late.pop(lane, None)

    def apply(self, lanes: Iterable[int]) -> None:
        """A push of each of these lanes is applied."""
        for lane in lanes:
            at = self.applied[lane]
            self.applied[lane] += 1
            self._applies[at] -= 1
            self._applies[at + 1] += 1
        while not self._applies[self._slowest]:
            self._slowest += 1
            self._late = None

    @property
    def slowest(self) -> int:
        return self._slowest

    @property
    def late(self) -> tuple[int, ...]:
        if self._late is None:
            self._late = dict.fromkeys(super().late)
        return tuple(self._late)
