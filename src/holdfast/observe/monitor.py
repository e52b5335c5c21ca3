"""The monitor of a host: look at its board and at /proc, and tell what they saw.

The judgement is `watch`'s, the arithmetic `meter`'s; here is only the looking. A hung worker is asked
for its stacks (SIGUSR2, answered by `faulthandler` even inside a C call), and the report is saved
before anybody is killed.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.config.limits import CONTROL, CrewConfig
from holdfast.control.membership.roster import titled
from holdfast.control.protocol.events import Event, Measured, WorkerFrozen, WorkerHung, WorkerLost
from holdfast.dataplane.memory.board_snapshot import BoardPlan, BoardRow, read_plan, read_rows, read_samples
from holdfast.observe import stacks
from holdfast.observe.watch import Seen, Suspect, Watch
from holdfast.transport import processes

__all__ = ["BoardMonitor", "StackFile"]


class StackFile(Protocol):
    """Where output of the workers is found and reports are put: the run's directory, or an agent's own."""

    @property
    def logs(self) -> Path:
        """Where output of the processes goes."""

    def write(self, name: str, text: str) -> bool:
        """Write a file whole."""


class BoardMonitor:
    """See `control.protocol.ports.Monitor`. What every look shows is given to `show`, for whoever shows the run."""

    def __init__(
        self, crew: CrewConfig, files: StackFile, send_signal: Callable[[int, int], None],
        show: Callable[[Sequence[BoardRow], BoardPlan, float], object],
    ) -> None:
        self.rows: dict[int, BoardRow] = {}
        self._watch = Watch(crew)
        self._files, self._send_signal, self._show = files, send_signal, show
        self._arena: memoryview | None = None
        self._looked: float | None = None
        self._measured = 0.0
        self._servers: Set[int] = frozenset()

    def opened(self, arena: memoryview) -> None:
        """The arena is there."""
        self._arena = arena

    def closed(self) -> None:
        """The arena goes away."""
        if self._arena is not None:
            self._arena.release()
            self._arena = None

    async def look(
        self, pids: Mapping[int, int], quiet: Set[int], now: float, servers: Set[int] = frozenset()
    ) -> Sequence[Event]:
        """Frozen and hung workers, and the speeds measured since the last time."""
        elapsed = 0.0 if self._looked is None else now - self._looked
        self._looked, self._servers = now, servers
        rows, plan = self._read()
        # A row outlives its worker until the next one takes it: the pid tells whose it is.
        self.rows = {row.worker: row for row in rows if pids.get(row.worker) == row.pid}
        self._show(list(self.rows.values()), plan, now)
        seen = [
            Seen(worker, processes.stat(pid).state in ("T", "t"), self.rows.get(worker))
            for worker, pid in pids.items() if worker not in quiet
        ]
        events: list[Event] = [await self._event(suspect) for suspect in self._watch.look(seen, elapsed)]
        if self.rows and now - self._measured >= 0.5:
            self._measured = now
            seconds = {worker: row.unit_seconds for worker, row in self.rows.items() if row.unit_seconds > 0}
            applied = {
                worker: (row.applied_bytes, row.applying_seconds)
                for worker, row in self.rows.items() if row.applied_bytes
            }  # fmt: skip
            events.append(Measured(max(row.step for row in self.rows.values()), seconds, applied))
        return events

    def lost(self, event: WorkerLost) -> WorkerLost:
        """Add what the dead worker's row shows: its step, its unit and that unit's samples."""
        row = next((row for row in self._read()[0] if row.worker == event.worker), None)
        if row is None:
            return event
        unit = (row.unit_step, row.unit_lane) if row.unit_lane >= 0 else None
        return msgspec.structs.replace(event, step=row.step, unit=unit, samples=self._samples(row) if unit else [])

    def _samples(self, row: BoardRow) -> list[int]:
        """The samples of the unit that a row's worker is in, or was in when it died."""
        return read_samples(self._arena, row.row) if self._arena is not None else []

    def _read(self) -> tuple[list[BoardRow], BoardPlan]:
        if self._arena is None:
            return [], BoardPlan(0, 0, 0)
        return read_rows(self._arena), read_plan(self._arena)

    async def _event(self, suspect: Suspect) -> Event:
        if suspect.frozen:
            return WorkerFrozen(suspect.worker, suspect.seconds)
        dump = await self._stacks(suspect.worker)
        where = stacks.innermost(dump)
        self._files.write(f"hang-{suspect.worker}.txt", self._report(suspect, where, dump))
        row = self.rows.get(suspect.worker)
        samples = self._samples(row) if suspect.unit and row is not None else []
        return WorkerHung(suspect.worker, suspect.seconds, where, suspect.unit, samples)

    async def _stacks(self, worker: int) -> str:
        path = self._files.logs / f"worker-{worker}.stack"
        before = _size(path)
        self._send_signal(worker, signal.SIGUSR2)
        size, waited = before, 0.0
        while waited < CONTROL.stacks:
            await asyncio.sleep(CONTROL.stacks_poll)
            waited += CONTROL.stacks_poll
            size, last = _size(path), size
            if size > before and size == last:  # it has come, and is complete
                break
        try:
            return path.read_bytes()[before:].decode(errors="replace")
        except OSError:
            return ""

    def _report(self, suspect: Suspect, where: str, dump: str) -> str:
        place = f"in unit (step {suspect.unit[0]}, lane {suspect.unit[1]})" if suspect.unit else "outside any unit"
        lines = [
            f"{self._title(suspect.worker).capitalize()} made no progress for {suspect.seconds:.1f} s {place}.",
            f"It stands at {where}.",
            f"A unit may take {self._watch.unit_limit():.1f} s; the slowest so far took {self._watch.slowest:.3f} s.",
            *(
                f"{self._title(worker).capitalize()} is at step {row.step}"
                + (f" and waits for {self._title(row.waiting_for)}." if row.waiting_for >= 0 else ".")
                for worker, row in sorted(self.rows.items()) if worker != suspect.worker
            ),
            "", "Its stacks:", "", dump or "(it did not answer)",
        ]  # fmt: skip
        return "\n".join(lines) + "\n"

    def _title(self, worker: int) -> str:
        return titled([worker], self._servers)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
