"""The ranks of one node, as the helper that speaks for them sees them: who is left, and who was asked to end."""

from __future__ import annotations

import asyncio
import faulthandler
import time
from collections.abc import Callable

from holdfast.config.limits import TORCHRUN
from holdfast.config.worker_spec import WorkerSpec
from holdfast.control.protocol.messages import Leaving
from holdfast.hosts.torchrun.rank_listener import RankListener
from holdfast.hosts.torchrun.rank_spawner import RankSpawner, SignalJudge, SignalVerdict

__all__ = ["RankSupervisor"]


class RankSupervisor:
    """`ranks` is how many the launcher has started here."""

    def __init__(self, ranks: int, rank_listener: RankListener) -> None:
        self.ranks, self.rank_listener, self.judge = ranks, rank_listener, SignalJudge()
        self.spawner: RankSpawner | None = None

    def adopt(self, spec: WorkerSpec, tell: Callable[[str], None]) -> RankSpawner:
        """The spawner that makes workers of them."""
        self.spawner = RankSpawner(
            self.rank_listener, spec, ranks=self.ranks, say=tell,
            asked=lambda index, name: self.judge.asked(index, name, time.monotonic()),
        )  # fmt: skip
        return self.spawner

    async def watch(self, deserted: Callable[[], None], act: Callable[[SignalVerdict], None]) -> None:
        """Tell, until cancelled, who was asked to end; and that nobody is left, again and again."""
        while not self.rank_listener.deserted():
            if verdict := self.judge.verdict(set(self.rank_listener.guests), time.monotonic()):
                act(verdict)
            await asyncio.sleep(TORCHRUN.helper_tick)
        faulthandler.dump_traceback_later(TORCHRUN.helper_end, exit=True)
        while True:
            deserted()
            await asyncio.sleep(TORCHRUN.helper_tick)

    def leaving(self, verdict: SignalVerdict) -> list[Leaving]:
        """What the workers would say themselves that are to leave."""
        assert self.spawner is not None
        workers = (self.spawner.worker(index) for index in sorted(verdict.some))
        return [Leaving(worker, verdict.signal) for worker in workers if worker is not None]
