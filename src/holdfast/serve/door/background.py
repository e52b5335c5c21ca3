"""What goes on in the background of a server: one task that fails ends it, with that task's error."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType

__all__ = ["Background"]


class Background:
    """Tasks that go on to the end of the block."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Background:
        await self._group.__aenter__()
        return self

    def start(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        """Begin one."""
        begun = self._group.create_task(work, name=name)
        self._tasks = [*(task for task in self._tasks if not task.done()), begun]
        return begun

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        try:
            await self._group.__aexit__(kind, error, trace)
        except ExceptionGroup as several:
            raise several.exceptions[0] from None
