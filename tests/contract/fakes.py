"""A spawner, monitor and a story writer of a few lines: whoever tests what stands above them speaks for the workers."""

from __future__ import annotations

import gc
import mmap
import os
from collections.abc import Mapping, Sequence, Set

from holdfast.config.run_config import board_rows
from holdfast.control.protocol.events import Event, WorkerLost, WorkerStarted
from holdfast.control.protocol.messages import FromWorker, Ready, ToWorker, decode_to_worker, encode
from holdfast.control.story import Sentence
from holdfast.dataplane.memory.board import Board, board_bytes
from holdfast.transport.link import Link

__all__ = ["LANES", "SIZE", "FakeMonitor", "FakeSpawner", "FakeStoryWriter", "ready", "seed"]

LANES = 4
SIZE = board_bytes(LANES, board_rows(LANES), 1)


class FakeSpawner:
    """Workers are the far ends of their links; the test speaks for them."""

    def __init__(self) -> None:
        self.far: dict[int, Link] = {}
        self.signals: list[tuple[int, int]] = []
        self.news: list[WorkerStarted | WorkerLost] = []
        self.bell = os.eventfd(0, os.EFD_NONBLOCK)
        self.closed = False

    def start(self, worker: int, row: int) -> Link:
        ours, self.far[worker] = Link.pair()
        ours.setblocking(False)
        self.report(WorkerStarted(worker, 1000 + worker))
        return ours

    def signal(self, worker: int, number: int) -> None:
        self.signals.append((worker, number))
        if number == 9 and worker in self.far:
            self.lose(worker, "signal", 9)

    def fileno(self) -> int:
        return self.bell

    def events(self) -> Sequence[WorkerStarted | WorkerLost]:
        os.eventfd_read(self.bell)
        news, self.news = self.news, []
        return news

    def close(self) -> None:
        assert not self.closed
        self.closed = True
        os.close(self.bell)
        for link in self.far.values():
            link.close()

    def report(self, event: WorkerStarted | WorkerLost) -> None:
        self.news.append(event)
        os.eventfd_write(self.bell, 1)

    def lose(self, worker: int, cause: str = "exit", code: int = 0) -> None:
        self.far[worker].close()
        self.report(WorkerLost(worker, cause, code))

    def say(self, message: FromWorker) -> None:
        self.far[message.worker].send(encode(message))

    def heard(self, worker: int) -> tuple[ToWorker, tuple[int, ...]]:
        frame = self.far[worker].recv()
        assert frame is not None
        return decode_to_worker(frame.data), frame.fds


def seed(arena: int) -> None:
    """What the first worker does with the arena, as far as it matters here. Closes the descriptor."""
    with mmap.mmap(arena, SIZE) as memory, memoryview(memory) as view:
        board = Board(view, LANES, board_rows(LANES), 1)
        board.format()
        del board
        gc.collect()
    os.close(arena)


class FakeMonitor:
    def __init__(self) -> None:
        self.view: memoryview | None = None
        self.broken = False
        self.news: list[Event] = []
        self.asked: list[tuple[dict[int, int], set[int]]] = []

    def opened(self, arena: memoryview) -> None:
        self.view = arena

    def closed(self) -> None:
        if self.view is not None:
            self.view.release()

    async def look(
        self, pids: Mapping[int, int], quiet: Set[int], now: float, servers: Set[int] = frozenset()
    ) -> Sequence[Event]:
        if self.broken:
            raise KeyError("a bug in the monitor")
        self.asked.append((dict(pids), set(quiet)))
        return self.news

    def lost(self, event: WorkerLost) -> WorkerLost:
        return event


class FakeStoryWriter:
    def __init__(self) -> None:
        self.sentences: list[str] = []
        self.aloud: list[str] = []

    def tell(self, entries: Sequence[Sentence], *, aloud: bool = True) -> None:
        self.sentences += [entry.sentence for entry in entries]
        self.aloud += [entry.sentence for entry in entries if aloud]


def ready(worker: int, size: int = SIZE) -> Ready:
    return Ready(worker, {"torch": "2"}, "golden", "model", size)
