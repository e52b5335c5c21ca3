"""The ranks of one node, as the helper that speaks for them sees them: who is left, and who was asked to end."""

from __future__ import annotations

import asyncio
import faulthandler
import time
from collections.abc import Callable

from holdfast.config.worker import WorkerSpec
from holdfast.coordinator.messages import Leaving
from holdfast.engines.adopting import AdoptingSpawner, Judge, Verdict
from holdfast.engines.porch import Porch

__all__ = ["LAST", "Ward"]

#: Seconds between two looks.
_TICK = 0.1
#: Seconds that a helper has, when nobody is left or the run has ended, to end by itself.
LAST = 30.0


class Ward:
    """`ranks` is how many the launcher has started here."""

    def __init__(self, ranks: int, porch: Porch) -> None:
        self.ranks, self.porch, self.judge = ranks, porch, Judge()
        self.spawner: AdoptingSpawner | None = None

    def adopt(self, spec: WorkerSpec, tell: Callable[[str], None]) -> AdoptingSpawner:
        """The spawner that makes workers of them."""
        self.spawner = AdoptingSpawner(
            self.porch, spec, ranks=self.ranks, say=tell,
            asked=lambda index, name: self.judge.asked(index, name, time.monotonic()),
        )  # fmt: skip
        return self.spawner

    async def watch(self, deserted: Callable[[], None], act: Callable[[Verdict], None]) -> None:
        """Tell, until cancelled, who was asked to end; and that nobody is left, again and again."""
        while not self.porch.deserted():
            if verdict := self.judge.verdict(set(self.porch.guests), time.monotonic()):
                act(verdict)
            await asyncio.sleep(_TICK)
        faulthandler.dump_traceback_later(LAST, exit=True)
        while True:
            deserted()
            await asyncio.sleep(_TICK)

    def leaving(self, verdict: Verdict) -> list[Leaving]:
        """What the workers would say themselves that are to leave."""
        assert self.spawner is not None
        workers = (self.spawner.worker(index) for index in sorted(verdict.some))
        return [Leaving(worker, verdict.signal) for worker in workers if worker is not None]
