"""The checkpointer: takes a checkpoint of a going run every now and then, in a thread of its own.

The crew stands still only while its state is copied in memory (`dataplane.memory.snapshot`); writing, reading back and
removing what is old is done while it trains on. A disk that is full or failing does not end the run: it is said once,
tried again after a while, and said when it works again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from holdfast.checkpoint import writer
from holdfast.checkpoint.capture import Progress, progress
from holdfast.checkpoint.content import Content
from holdfast.config.checkpoint_interval import Interval
from holdfast.config.limits import CHECKPOINT
from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.memory.board import H_MAGIC, H_MIRROR, MAGIC
from holdfast.dataplane.memory.board_snapshot import level
from holdfast.dataplane.memory.snapshot import Snapshot, SnapshotRoom, take
from holdfast.dataplane.wire.primary_sync import PrimarySync
from holdfast.errors import CheckpointError, UsageError

__all__ = ["Checkpointer", "Describe", "Place"]


class Place(NamedTuple):
    """Where checkpoints go, and how many stay."""

    root: Path
    keep: int
    url: str = ""  #: where each is copied to besides


class Describe(Protocol):
    """Says of a state what its bytes do not: `content` with facts, script, configuration, and what the run decided."""

    def __call__(self, view: ArenaView, snapshot: Snapshot, at: Progress) -> Content | None:
        """None: the run is not where it was when the state was copied."""


class Checkpointer:
    """Takes checkpoints of one run.

    Args:
        interval: between two of them.
        place: where they go.
        view: finds this host's memory; None while there is none.
        ring: wakes the workers of this host.
        describe: makes a checkpoint of a copy of the state.
        tell: told what is to be known, and whether it is to be said aloud. Called in the thread.

    Resources: `close` ends the thread, after the checkpoint at hand.
    """

    def __init__(
        self, interval: Interval, place: Place, *, view: Callable[[], ArenaView | None], ring: Callable[[], None],
        describe: Describe, tell: Callable[[str, bool], None],
    ) -> None:  # fmt: skip
        self._interval, self._place, self._view, self._ring = interval, place, view, ring
        self._describe, self._tell = describe, tell
        self._room = SnapshotRoom()
        self._closing, self._wake, self._through = threading.Event(), threading.Event(), threading.Event()
        self._asked = False
        self._last_step, self._last_time = -1, time.monotonic()
        self._trouble = ""  # what went wrong last, while it goes on
        self.newest: Path | None = None  #: that was written
        self._thread = threading.Thread(target=self._run, name="holdfast-checkpoint", daemon=True)
        self._thread.start()

    def request(self, seconds: float) -> bool:
        """Take one now, whatever the interval. Waits so long for it, and says whether it is there."""
        before = self.newest
        self._through.clear()
        self._asked = True
        self._wake.set()
        self._through.wait(seconds)
        return self.newest != before

    def close(self) -> None:
        """End it. May be called twice."""
        self._closing.set()
        self._wake.set()
        self._thread.join()

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        while not self._closing.is_set():
            asked, self._asked = self._asked, False
            view = self._view()
            if view is not None and self._has_state(view) and (asked or self._due(view)):
                try:
                    self._save(view)
                except Exception as error:  # a bug of ours must not end a run that could go on
                    self._fail(f"A checkpoint could not be taken ({type(error).__name__}: {error}). This is a bug.")
            if asked:
                self._through.set()
            self._wake.wait(CHECKPOINT.poll)
            self._wake.clear()

    def _has_state(self, view: ArenaView) -> bool:
        if view.board.words[H_MAGIC] == MAGIC and view.board.words[H_MIRROR]:
            self._fail("No checkpoints are taken: in this mode another machine holds the state.")
        return level(view.memory) >= 0

    def _due(self, view: ArenaView) -> bool:
        step = progress(view, min(view.board.versions(), default=0)).step
        self._last_step = min(self._last_step, step) if self._last_step >= 0 else step
        return self._interval.due(time.monotonic() - self._last_time, step - self._last_step)

    def _save(self, view: ArenaView) -> None:
        until = time.monotonic() + CHECKPOINT.patience
        clocks = PrimarySync(view).cut_now if view.manifest.relaxed else _none
        snapshot = take(
            view, self._room, self._ring, lambda: self._closing.is_set() or time.monotonic() > until, clocks
        )
        self._last_time = time.monotonic()
        if snapshot is None:
            return
        at = progress(view, snapshot.version)
        self._last_step = at.step
        made = self._describe(view, snapshot, at)
        if made is None:
            return
        try:
            written = writer.write(self._place.root, made, keep=self._place.keep)
        except CheckpointError as error:
            self._fail(str(error))
            return
        self.newest = written.path
        if self._trouble:
            self._trouble = ""
            self._tell(f"checkpoints are written again: step {at.step}", True)
        wrote = f"checkpoint of step {at.step}: {written.bytes / 2**20:.1f} MiB in {written.seconds:.2f} s"
        held, waited = 1000 * snapshot.held, 1000 * snapshot.waited
        self._tell(f"{wrote}, the state stood still for {held:.0f} ms, of which the crew waited {waited:.0f}", False)
        for note in written.notes:
            self._tell(note, True)
        if self._place.url:
            self._copy(written.path)

    def _copy(self, path: Path) -> None:
        from holdfast.checkpoint import remote  # what it stands on is an extra

        try:
            sent = remote.upload(path, self._place.url, keep=self._place.keep)
        except (CheckpointError, UsageError) as error:
            self._fail(str(error))
        else:
            self._tell(f"a copy of {path.name} is at {sent.url}", False)

    def _fail(self, why: str) -> None:
        if why != self._trouble:
            self._tell(f"warning: {why} Training goes on.", True)
        self._trouble = why


def _none(version: int) -> bytes:
    """In mode `exact` there are no clocks."""
    return b""
