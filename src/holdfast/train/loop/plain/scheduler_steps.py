"""Scheduler steps: how a worker's schedulers go along with the steps it computes units of, in relaxed modes.

The script steps them once a turn, which is one step as long as the worker keeps its lanes; with local steps a turn for
each lane. And a worker may be given a unit of a step behind its newest one (of a lane that was another's), or one
further on (others have made the calls in between). So schedulers follow the steps and not the turns: they stand at the
worker's newest one; what earlier ones were made with is kept as long as it may be asked for.
"""

from __future__ import annotations

from typing import Any

from holdfast.train.loop.optimizer_settings import Settings

__all__ = ["SchedulerSteps"]


class SchedulerSteps:
    """Which steps this worker has made units of, and with which settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._made: dict[int, list[dict[str, Any]]] = {}  # step -> its settings

    def begin_pass(self) -> None:
        """The script begins a loop."""
        self._made = {}

    def reached(self, step: int) -> bool:
        """Is it my newest step? Else others have moved on from it, and so have my schedulers."""
        return step >= max(self._made, default=0)

    def turn_to(self, step: int, committed: int) -> None:
        """The next unit of this worker is of this step."""
        newest = max(self._made, default=None)
        if newest is not None and step > newest:
            self._go_on()
        if step > (committed if newest is None else newest + 1):
            self._settings.restore(step)

    def hyper(self, step: int, committed: int) -> list[dict[str, Any]]:
        """The settings that a unit of this step is made with."""
        if step not in self._made:
            self._made[step] = self._settings.hyper()
            for old in [other for other in self._made if other < min(committed, step)]:
                del self._made[old]
        return self._made[step]

    def settle(self, step: int, op: int | None) -> None:
        """All stand before this step; with `op`, at the very beginning of that operation.

        This worker may have been further, for a host that was lost before others held what came of it.
        """
        if op is None and self._ends(step):
            self._go_on()
        elif op is None or self._made:
            self._settings.restore(step, op)
        self._made = {}

    def complete_pass(self, end: int) -> None:
        """All units of the loop, before step `end`, were pushed and applied.

        Whoever made none of the last step, because its lanes are another's now, has its settings from others: they
        are what the next loop begins with, for all, if this worker is the first there.
        """
        if self._ends(end):
            self._go_on()
        else:
            self._settings.restore(end)

    def _ends(self, step: int) -> bool:
        """Is my newest step the last one before this?"""
        return max(self._made, default=-1) == step - 1

    def _go_on(self) -> None:
        self._settings.end_units()
