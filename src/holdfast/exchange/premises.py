"""The premises: a host's shared memory as whoever holds it sees it, the arena and the annex of the mode that counts.

A generation says how lanes keep step in it. A host for which that is news takes it up here, before any of its workers
hears of the generation: they are quiet, and nothing is under way. The new mode's annex is laid out, what the old one
left is given back, and the board says what counts. Parameters and versions are the same in all modes, and so is the
optimizer's state, but after local steps: then the owners go on with the mean of all lanes (`inner`). Nobody can be
killed in the middle of it but the host as a whole. No torch here.
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
from holdfast.exchange import board as cells
from holdfast.exchange.board import Board, Pace
from holdfast.exchange.chart import Chart, read_chart
from holdfast.exchange.hold import Hold
from holdfast.exchange.inner import Inner
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
            return self._now(chart, board.pace())

    def close(self) -> None:
        """Let go of the memory, as far as nobody looks at it any more. May be called twice."""
        self._whole = 0, self.memory
        with contextlib.suppress(BufferError):
            self.memory.release()

    def _now(self, chart: Chart, pace: Pace | None) -> Hold:
        return Hold(self.memory, chart) if pace is None else Hold(self._mapped(pace), _charted(chart, pace))

    def _turn(self, chart: Chart, board: Board, reached: Reached) -> None:
        """Another mode counts from now on."""
        old = board.pace()
        mode, before = parse(reached.sync), self._now(chart, old)
        begin, size = (old.begin, old.size) if old is not None else (0, 0)
        if before.chart.paced:
            board.disown(reached.version)
        if goes_on := before.chart.rounds and mode.rounds:  # with rounds of another length: all lies where it did
            _wipe(before.section("pushes"))
        else:
            if before.chart.rounds:
                _end_rounds(before)
            discard(self._fd, [span for name, span in chart.sections.items() if annex.passing(name)])
            if size:
                discard(self._fd, [(begin, size)])
            begin, size = len(self.memory), _sections(chart, reached.sync).size
            grow(self._fd, begin + size)
        pace = Pace(reached.serial, reached.sync, begin, size, reached.version, reached.step)
        after = self._now(chart, pace)
        if not mode.exact:
            Pushes(after.section("pushes"), chart.lanes).go_on_from(reached.step)
        if mode.rounds and not goes_on:
            Inner(after.section, chart.owners()).begin(reached.version)
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


def _wipe(section: memoryview) -> None:
    section[:] = bytes(len(section))


def _end_rounds(hold: Hold) -> None:
    """Local steps are over: have the owners go on with the mean of all lanes, if the state is here."""
    board, chart = hold.board, hold.chart
    if board.words[cells.H_MAGIC] == cells.MAGIC and not board.words[cells.H_MIRROR]:
        inner = Inner(hold.section, chart.owners())
        inner.end(min(board.versions(), default=0), chart.lanes, chart.kinds, chart.pieces)


def _goes_back_to(chart: Chart, board: Board, reached: Reached) -> bool:
    """Is this the mode that counts here still, which the run goes back to because what was made since is lost?

    Then all that was pushed in it is here; only the number of the change is another one.
    """
    mode, now = parse(reached.sync), board.pace()
    if now is None:
        now = Pace(0, mode.name if chart.paced != mode.exact else "")
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
    if pace.first:
        return chart
    lasting = {name: span for name, span in chart.sections.items() if not annex.passing(name)}
    spans = _sections(chart, pace.sync).spans.items()
    more = {name: (pace.begin + begin, size) for name, (begin, size) in spans}
    return msgspec.structs.replace(chart, sections={**lasting, **more}, paced=not mode.exact)
