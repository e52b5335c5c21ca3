"""Virtual time: a heap of things to do, in the order of their times, and of their making where times are equal.

Nothing sleeps and nothing reads a real clock, so a minute of a simulated run takes milliseconds and two
runs with the same seed do the same things in the same order.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

__all__ = ["Clock"]


class Clock:
    """A clock that stands still until somebody asks for the next thing to do.

    >>> clock = Clock()
    >>> clock.after(2.0, print, "later")
    >>> clock.after(1.0, print, "sooner")
    >>> while clock.step(): pass
    sooner
    later
    >>> clock.now
    2.0
    """

    __slots__ = ("_heap", "_made", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._made = 0

    def after(self, seconds: float, do: Callable[..., object], *args: Any) -> None:
        """Do something this much later."""
        self._made += 1
        heapq.heappush(self._heap, (self.now + seconds, self._made, do, args))

    def step(self) -> bool:
        """Do the next thing; False when there is none."""
        if not self._heap:
            return False
        self.now, _, do, args = heapq.heappop(self._heap)
        do(*args)
        return True
