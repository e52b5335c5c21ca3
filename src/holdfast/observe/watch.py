"""When a worker counts as frozen or hung. Pure: observations and elapsed time in, suspects out.

* *Frozen*: the system has stopped the process (SIGSTOP, a debugger).
* *Hung*: it runs, waits for nobody of the crew, and nothing on its row of the board has moved. In a
  unit the limit follows from the units seen so far; outside of one (start-up, evaluation, saving a
  file) we know less and are more patient.

A worker that waits for another one is a victim and is never a suspect. Time is what *we* watched:
when the launcher itself was stopped, nobody ages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.config.limits import CONTROL, CrewConfig
from holdfast.dataplane.memory.board_snapshot import BoardRow

__all__ = ["Seen", "Suspect", "Watch", "told_limits"]


def told_limits(crew: CrewConfig) -> str:
    """The limits of a worker's silence, as the story tells them once."""
    return (
        f"limits: a worker that is stopped for {crew.frozen_limit:g} s and 5 times the slowest unit so far is "
        f"replaced; one that stays in a unit for {crew.hang_limit:g} s and {crew.hang_factor:g} times the slowest unit "
        f"so far, or stands still outside a unit for {crew.idle_limit:g} s, counts as hung"
    )


class Seen(NamedTuple):
    """One look at one worker. `row` is None until it has one."""

    worker: int
    stopped: bool
    row: BoardRow | None


class Suspect(NamedTuple):
    """A worker beyond a limit. `unit` is the (step, lane) it is in, if any."""

    worker: int
    frozen: bool
    seconds: float
    unit: tuple[int, int] | None


@dataclass(slots=True)
class _WorkerRecord:
    mark: tuple[object, ...] = ()
    stopped: float = 0.0
    still: float = 0.0
    told: bool = False


@dataclass(slots=True)
class Watch:
    """Remembers how long each worker has been as it is."""

    crew: CrewConfig
    slowest: float = 0.0  #: seconds of the slowest unit seen
    _records: dict[int, _WorkerRecord] = field(default_factory=dict)

    def unit_limit(self) -> float:
        """How long a unit may take now."""
        return max(self.crew.hang_limit, self.crew.hang_factor * self.slowest)

    def frozen_limit(self) -> float:
        """How long a worker may stay stopped now: a pause no longer than a few units costs less than a change."""
        return max(self.crew.frozen_limit, 5 * self.slowest)

    def look(self, seen: Iterable[Seen], elapsed: float) -> list[Suspect]:
        """Take in one look, `elapsed` seconds after the last; each suspect is named once."""
        elapsed = min(elapsed, CONTROL.watched_at_once)
        suspects, records = [], {}
        for one in seen:
            record = records[one.worker] = self._records.get(one.worker) or _WorkerRecord()
            if one.row is not None:
                self.slowest = max(self.slowest, one.row.unit_seconds)
            suspect = self._judge(one, record, elapsed)
            if suspect is not None and not record.told:
                record.told = True
                suspects.append(suspect)
        self._records = records
        return suspects

    def _judge(self, one: Seen, record: _WorkerRecord, elapsed: float) -> Suspect | None:
        row = one.row
        unit = (row.unit_step, row.unit_lane) if row is not None and row.unit_lane >= 0 else None
        if one.stopped:
            record.stopped += elapsed
            over = record.stopped > self.frozen_limit()
            return Suspect(one.worker, True, record.stopped, unit) if over else None
        if record.stopped:
            record.stopped, record.told = 0.0, False
        if row is None:
            return None
        mark = (row.step, row.unit_step, row.unit_lane, row.units, row.samples, row.beat)
        if mark != record.mark or row.waiting_for >= 0:
            record.mark, record.still, record.told = mark, 0.0, False
            return None
        record.still += elapsed
        limit = self.crew.idle_limit if unit is None else self.unit_limit()
        return Suspect(one.worker, False, record.still, unit) if record.still > limit else None
