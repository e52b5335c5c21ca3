"""The premises: a host's shared memory as whoever holds it sees it, the arena and the annex of the mode that counts.

A generation says how lanes keep step in it. A host for which that is news takes it up here, before any of its workers
hears of the generation: they are quiet, and nothing is under way. The new mode's annex is laid out, what the old one
left is given back, and the board says what counts. Nothing is converted: parameters, optimizer state and versions are
the same in all modes. Nobody can be killed in the middle of it but the host as a whole. No torch here.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
import time
from collections.abc import Callable

import msgspec

from holdfast.coordinator.messages import Reached
from holdfast.core.clocks import parse
from holdfast.exchange import annex
from holdfast.exchange.board import Board, Pace
from holdfast.exchange.chart import Chart, read_chart
from holdfast.exchange.hold import Hold
from holdfast.exchange.pushes import Pushes
from holdfast.transport.arena import Sections, discard, grow

__all__ = ["Premises", "await_hold"]

_POLL = 0.001  # seconds between two looks for the chart of an arena that was just made


class Premises:
    """One host's memory. `arena` is mapped from its descriptor `fd`, or from none where the mode never changes."""

    def __init__(self, arena: mmap.mmap, fd: int = -1) -> None:
        self.memory, self._fd = memoryview(arena), fd
        self._lock = threading.Lock()
        self._whole = 0, self.memory  # (serial of the mode, all memory that it uses)

    def hold(self, reached: Reached | None = None) -> Hold | None:
        """All of it, in the mode that counts; None while no worker has left a chart. Called by several threads.

        `reached` is the mode of a generation that begins, which is taken up if it is news.
        """
        with self._lock:
            chart = read_chart(self.memory)
            if chart is None:
                return None
            board = Board(self.memory, chart.lanes, chart.rows, len(chart.slices))
            news = reached is not None and reached.serial > board.pace_serial()
            if reached is not None and news and not _goes_back_to(chart, board, reached):
                self._turn(chart, board, reached)
            pace = board.pace()
            if pace is None or pace.first:
                return Hold(self.memory, chart)
            return Hold(self._mapped(pace), _charted(chart, pace))

    def close(self) -> None:
        """Let go of the memory, as far as nobody looks at it any more. May be called twice."""
        self._whole = 0, self.memory
        with contextlib.suppress(BufferError):
            self.memory.release()

    def _turn(self, chart: Chart, board: Board, reached: Reached) -> None:
        """Another mode counts from now on."""
        if (chart.depth if (old := board.pace()) is None else not parse(old.sync).exact):
            board.disown(reached.version)
        discard(self._fd, [span for name, span in chart.sections.items() if annex.passing(name)])
        if old is not None and old.size:
            discard(self._fd, [(old.begin, old.size)])
        mode, begin = parse(reached.sync), len(self.memory)
        sections = _sections(chart, reached.sync)
        pace = Pace(reached.serial, reached.sync, begin, sections.size, reached.version, reached.step)
        if sections.size:
            grow(self._fd, begin + sections.size)
            place, size = sections.spans["pushes"]
            pushes = self._mapped(pace)[begin + place : begin + place + size]
            Pushes(pushes, chart.lanes, mode.depth).go_on_from(reached.step)
        board.put_pace(pace)

    def _mapped(self, pace: Pace) -> memoryview:
        if not pace.size:
            return self.memory
        if self._whole[0] != pace.serial:
            self._whole = pace.serial, memoryview(mmap.mmap(self._fd, pace.begin + pace.size))
        return self._whole[1]


def await_hold(find: Callable[[], Hold | None], closing: Callable[[], bool]) -> Hold | None:
    """What `find` finds, once a worker of this host has left a chart; None when that is not wanted any more."""
    while not closing():
        if (hold := find()) is not None:
            return hold
        time.sleep(_POLL)
    return None


def _goes_back_to(chart: Chart, board: Board, reached: Reached) -> bool:
    """Is this the mode that counts here still, which the run goes back to because what was made since is lost?

    Then all that was pushed in it is here; only the number of the change is another one.
    """
    mode, now = parse(reached.sync), board.pace()
    if now is None:
        now = Pace(0, mode.name if chart.depth == (0 if mode.exact else mode.depth) else "")
    same = (now.sync, now.version, now.step) == (mode.name, reached.version, reached.step)
    if same:
        board.put_pace(now._replace(serial=reached.serial))
    return same


def _sections(chart: Chart, sync: str) -> Sections:
    sections = Sections()
    annex.add_sections(sections, chart.room(), parse(sync))
    return sections


def _charted(chart: Chart, pace: Pace) -> Chart:
    """The chart of an arena, with the sections of the mode that counts and without those of others."""
    mode = parse(pace.sync)
    lasting = {name: span for name, span in chart.sections.items() if not annex.passing(name)}
    spans = _sections(chart, pace.sync).spans.items()
    more = {name: (pace.begin + begin, size) for name, (begin, size) in spans}
    return msgspec.structs.replace(chart, sections={**lasting, **more}, depth=0 if mode.exact else mode.depth)
