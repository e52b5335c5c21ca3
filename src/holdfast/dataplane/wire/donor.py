"""The donor: gives a new host the state in the background, while the crew goes on stepping.

    crew's host (`Donor`)                                  new host (`follow`)
    copy of the state at version u  ──────────────────────►  verified, put in place
    sums and facts of step u, u + 1, ...  ────────────────►  applied by its own workers, step after step

The donor copies the state at one version, and from that step on writes down what every step consisted of, as soon as
that is decided: the sums, and what the lanes gave besides. It sends both as fast as the network takes it. The workers
of the new host finish step after step from it, like members that drive no lane, and catch up with a crew that has to
compute as well. Nobody waits for them. What is written down are facts that no change of the crew can alter, so
generations come and go meanwhile.

So that nothing is missed, sums of step t + 1 are not made or landed on the donor's host before those of step t are
written down (`Board.recorded`): a copy in memory, once a step. Who is too slow for the crew is given up, and gets the
state inside a generation instead (`state_transfer`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from holdfast.config.limits import TRANSFER
from holdfast.core.transfers import Facts, SliceSums, runs
from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.memory.board import H_MAGIC, MAGIC
from holdfast.dataplane.wire.packing import Buffers, Packer
from holdfast.dataplane.wire.receiver import Receiver
from holdfast.dataplane.wire.state_transfer import Fetched, fetch, send_state
from holdfast.transport.stream import Stream

__all__ = ["Donor", "FellBehind", "LostTrack", "follow"]

_RUN = 2 << 20  # bytes of slices in one frame


class FellBehind(OSError):
    """The other host takes less than the crew makes."""

    def __init__(self, waiting: int, most: int) -> None:
        super().__init__(
            f"{waiting / 2**20:.0f} MiB of finished steps wait for the new host, and {most / 2**20:.0f} MiB may: it or "
            "its network is slower than the crew"
        )


class LostTrack(OSError):
    """The donor's own host has come past a step without its sums: it got the state elsewhere, or needed none."""

    def __init__(self, step: int) -> None:
        super().__init__(f"the donor's own host came past step {step} without its sums")


class Donor:
    """Donors one new host. Made by the host that the new one asked; `run` sends until `close`, or until it is given up.

    Resources: owns the stream, and holds back its own host's sums while it lives; `close` ends both.
    """

    def __init__(
        self, view: ArenaView, stream: Stream, generation: int, ring: Callable[[], None], most: int | None = None
    ) -> None:
        self._view, self._stream, self._ring = view, stream, ring
        self._generation = generation
        size = sum(view.manifest.sizes())
        state = sum(view.manifest.sections[name][1] for name in view.manifest.state())
        self._most = most or max(64 << 20, state + 6 * size)
        self._current = -1  # the newest generation for which this host has fetched the state itself
        self._op = view.board.op()[0]  # up to which the state holds what evaluations gave
        self._seen = (-1, False)  # the newest operation at the last look, and whether it had given something
        self._log: deque[bytes] = deque()
        self._waiting = 0
        self._moved = threading.Condition()
        self._closed = False
        self._why: Exception | None = None
        self._thread = threading.Thread(target=self._record, name="donor-record", daemon=True)

    def run(self) -> None:
        """Send until the new host is let go. Raises OSError when it is gone, FellBehind when it is too slow.

        Whatever else goes wrong is raised as well.
        """
        self._thread.start()
        try:
            while (chunk := self._next()) is not None:
                self._stream.send(chunk)
            if self._why is not None:
                raise self._why
        finally:
            self.close()
            self._thread.join()

    def close(self) -> None:
        """Let the new host go. May be called twice, and by any thread."""
        with self._moved:
            self._closed = True
            self._moved.notify_all()
        self._stream.close()

    # ------------------------------------------------------------ the log

    def _next(self) -> bytes | None:
        with self._moved:
            self._moved.wait_for(lambda: self._log or self._closed or self._why)
            if self._closed or not self._log:
                return None
            chunk = self._log.popleft()
            self._waiting -= len(chunk)
            return chunk

    def _write(self, *buffers: bytes | memoryview) -> None:
        for buffer in buffers:
            chunk = bytes(buffer)
            with self._moved:
                self._log.append(chunk)
                self._waiting += len(chunk)
                self._moved.notify_all()

    # ------------------------------------------------------------ recording

    def _record(self) -> None:
        try:
            step = self._copy_state()
            rows = range(self._view.manifest.rows)
            packer = Packer(self._view, self._generation, rows, lambda row: True, everywhere=True)
            while step is not None and self._decided(step, packer):
                current = self._view.board.current()
                kept = [bytes(part) for transfer in self._step(step) for part in packer.transfer(transfer)]
                whole = set(self._view.board.summed()) == {step + 1}
                if not whole or self._view.board.current() != current or current != self._current:
                    raise LostTrack(step)  # what lies here as sums are not those of this step
                self._write(*kept)
                step += 1
                self._view.board.put_recorded(step)
                self._ring()
                if self._waiting > self._most:
                    raise FellBehind(self._waiting, self._most)
        except Exception as error:  # whatever it is: the new host waits for what is written here
            with self._moved:
                self._why = error
                self._moved.notify_all()
        finally:
            self._view.board.put_recorded(None)
            self._ring()

    def _copy_state(self) -> int | None:
        """Put the state, as it is at one version, into the log; returns the version."""
        board = self._view.board
        while not self._closed:
            versions = board.versions()
            if board.words[H_MAGIC] != MAGIC or len(set(versions)) > 1:
                time.sleep(TRANSFER.donor_poll)
                continue
            # From here on this host comes at most one step further, and then the copy is made in peace.
            board.put_recorded(versions[0])
            self._ring()  # where the state went on while it was copied, sums of one more step may be made
            kept: list[bytes] = []
            send_state(self._view, partial(_keep, kept), self._generation, lambda: self._closed)
            if board.versions() == versions:
                self._current = board.current()
                self._write(*kept)
                return versions[0]
        return None

    def _decided(self, step: int, packer: Packer) -> bool:
        """Wait until all sums and facts of a step are here. False: nobody wants to know any more."""
        board = self._view.board
        while not self._closed:
            self._write(*packer.where(tuple(map(self._view.row, packer.rows))), *packer.changes(), *self._past(packer))
            if min(board.versions()) > step or board.decided(step):
                return True
            with self._moved:
                self._moved.wait(TRANSFER.donor_poll)
        return False

    def _past(self, packer: Packer) -> Buffers:
        """What evaluations have given since the last look."""
        newest, past, out = self._view.board.op()[0], self._view.past, list[bytes | memoryview]()
        seen = newest, past.has(newest)
        if seen == self._seen:
            return out
        self._seen = seen
        for op in past.since(self._op):
            if (result := past.get(op)) is not None:
                out += packer.past(op, result)
                self._op = op
        return out

    def _step(self, step: int) -> Iterator[Facts | SliceSums]:
        yield Facts(step, tuple(self._view.board.known(step)))
        manifest = self._view.manifest
        for first, last in runs(range(len(manifest.slices)), manifest.spaces(), manifest.sizes(), _RUN):
            yield SliceSums(step, first, last)


def follow(
    view: ArenaView, stream: Stream, generation: int, *, ring: Callable[[], None], closing: Callable[[], bool],
    came: Callable[[Fetched], None], rows: frozenset[int],
) -> None:  # fmt: skip
    """Follow a donor: put the state in place, then every step in its turn. Raises OSError, EOFError or FrameError.

    `rows` are those of this host's workers.
    """
    came(fetch(view, stream, generation))
    ring()
    Receiver(view, stream, generation, ring, closing, set(), partial(_await_turn, view, closing, rows), rows).run()


def _keep(kept: list[bytes], *buffers: bytes) -> None:
    kept.extend(buffers)


def _await_turn(view: ArenaView, closing: Callable[[], bool], rows: frozenset[int], step: int) -> None:
    """Nobody waits for the workers here, so sums of `step` wait until theirs have left the step before."""
    board = view.board
    while (min(board.versions()) < step or board.read_before(rows, step)) and not closing():
        time.sleep(TRANSFER.donor_poll)
