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
from holdfast.checkpoint.capture import Taken
from holdfast.checkpoint.content import Content
from holdfast.config.checkpoint_interval import Interval
from holdfast.config.limits import CHECKPOINT
from holdfast.dataplane.memory.snapshot import SnapshotRoom
from holdfast.errors import CheckpointError, UsageError

__all__ = ["Checkpointer", "DescribeState", "Place", "StateSource"]


class Place(NamedTuple):
    """Where checkpoints go, and how many stay."""

    root: Path
    keep: int
    url: str = ""  #: where each is copied to besides


class StateSource(Protocol):
    """A host that holds the run's state. Called in the checkpointer's thread."""

    def step(self) -> int:
        """How far it is, as far as is known; -1: it has no state."""

    def take(self, room: SnapshotRoom, stopped: Callable[[], bool], *, still: bool) -> Taken | None:
        """Copy the state, into room that is used again. None: it was `stopped`, or there is no state any more.

        Where all is `still`, no step will follow.
        """


class DescribeState(Protocol):
    """Says of a state what its bytes do not: `content` with facts, script, configuration, and what the run decided."""

    def __call__(self, taken: Taken) -> Content | None:
        """None: the run is not where it was when the state was copied."""


class Checkpointer:
    """Takes checkpoints of one run.

    Args:
        interval: between two of them.
        place: where they go.
        source: finds a host that holds the state; None while there is none.
        describe: makes a checkpoint of a copy of the state.
        tell: told what is to be known, and whether it is to be said aloud. Called in the thread.

    Resources: `close` ends the thread, after the checkpoint at hand.
    """

    def __init__(
        self, interval: Interval, place: Place, *, source: Callable[[], StateSource | None], describe: DescribeState,
        tell: Callable[[str, bool], None],
    ) -> None:  # fmt: skip
        self._interval, self._place, self._source = interval, place, source
        self._describe, self._tell = describe, tell
        self._room = SnapshotRoom()
        self._closing, self._wake, self._through = threading.Event(), threading.Event(), threading.Event()
        self._asked = self._still = False
        self._last_step, self._last_time = -1, time.monotonic()
        self._trouble = ""  # what went wrong last, while it goes on
        self.newest: Path | None = None  #: that was written
        self._thread = threading.Thread(target=self._run, name="holdfast-checkpoint", daemon=True)
        self._thread.start()

    def request(self, seconds: float, *, still: bool = False) -> bool:
        """Take one now, whatever the interval. Waits so long for it, and says whether it is there.

        Where all is `still`, the script has ended everywhere.
        """
        before, self._still = self.newest, still
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
            source = self._source()
            step = source.step() if source is not None else -1
            if source is not None and step >= 0 and (asked or self._due(step)):
                try:
                    self._save(source)
                except Exception as error:  # a bug of ours must not end a run that could go on
                    self._fail(f"A checkpoint could not be taken ({type(error).__name__}: {error}). This is a bug.")
            if asked:
                self._through.set()
            self._wake.wait(CHECKPOINT.poll)
            self._wake.clear()

    def _due(self, step: int) -> bool:
        self._last_step = min(self._last_step, step) if self._last_step >= 0 else step
        return self._interval.due(time.monotonic() - self._last_time, step - self._last_step)

    def _save(self, source: StateSource) -> None:
        until, still = time.monotonic() + CHECKPOINT.patience, self._still

        def stopped() -> bool:
            """Nobody is to wait for a version that does not come any more."""
            return self._closing.is_set() or time.monotonic() > until or self._still != still

        taken = source.take(self._room, stopped, still=still)
        if taken is None:
            return
        self._last_time = time.monotonic()
        snapshot, at = taken.snapshot, taken.at
        self._last_step = at.step
        made = self._describe(taken)
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
