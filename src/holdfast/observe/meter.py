"""How fast a run is, from what its rows showed over the last seconds. Pure: rows and time in, a view out."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, isfinite

from holdfast.config.limits import SCREEN
from holdfast.core.sync.modes import why
from holdfast.dataplane.memory.board_snapshot import BoardPlan, BoardRow
from holdfast.dataplane.relaxed.ages import NONE, Ages

__all__ = ["Meter", "RunView"]

_LOSSES = 8


@dataclass(frozen=True, slots=True)
class RunView:
    """A run at one moment. What is not known (yet) is 0, NaN-free and empty."""

    step: int = 0
    total_steps: int = 0
    epoch: int = 0
    epochs: int = 0
    losses: tuple[float, ...] = ()  #: oldest first, the newest is the loss
    samples: int = 0
    samples_per_second: float = 0.0
    waits: Mapping[int, float] = field(default_factory=dict)  #: worker -> share of its time it waited
    speeds: Mapping[int, float] = field(default_factory=dict)  #: worker -> samples per second
    steps: Mapping[int, int] = field(default_factory=dict)  #: worker -> step it is at
    eta: float | None = None
    idle: frozenset[int] = frozenset()  #: who owns slices and has computed no unit: servers, whose work is to wait
    owned: Mapping[int, int] = field(default_factory=dict)  #: worker or server -> slices it owns
    ages: Ages = NONE  #: how stale the pushes were that were applied
    units: str = ""  #: what a unit has been in this run
    paces: Mapping[int, float] = field(default_factory=dict)  #: worker or server -> updates of slices per second
    rates: Mapping[int, float] = field(default_factory=dict)  #: worker or server -> bytes it applies in a second
    waiting: Mapping[int, tuple[int, str]] = field(default_factory=dict)  #: who waits -> for whom; why, if known
    held_up: Mapping[int, tuple[int, float]] = field(default_factory=dict)  #: who waits a lot -> for whom, what share
    training: int = 1  #: of the script's

    @property
    def loss(self) -> float | None:
        """The newest loss."""
        return self.losses[-1] if self.losses else None


@dataclass(slots=True)
class _Look:
    now: float
    step: int
    rows: dict[int, BoardRow]


@dataclass(slots=True)
class Meter:
    """Remembers the looks of the last seconds."""

    view: RunView = RunView()
    _looks: deque[_Look] = field(default_factory=deque)
    _samples: dict[int, int] = field(default_factory=dict)  #: worker -> samples it showed, also of the lost
    _losses: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_LOSSES))
    _hosts: dict[int, tuple[Sequence[BoardRow], BoardPlan]] = field(
        default_factory=dict
    )  #: what each of them showed last
    _past: Ages = NONE  #: of pushes that were applied on hosts that are gone
    _held_up: dict[int, tuple[int, float]] = field(default_factory=dict)  #: worker -> for whom it waited, what share

    def looked(self, host: int, rows: Sequence[BoardRow], plan: BoardPlan, now: float) -> RunView:
        """Take in one look at one host's board, beside what the others showed last; the new view."""
        before = self._hosts.get(host)
        if before is not None and before[1].ages.pushes > plan.ages.pushes:  # its memory is closed: they were applied
            plan = plan._replace(ages=before[1].ages)
        if rows or before is not None:
            self._hosts[host] = rows, plan
        everybody = [row for shown, _ in self._hosts.values() for row in shown]
        if not everybody:
            return self.view
        plans = [plan for _, plan in self._hosts.values()]
        ages = self._past
        for each in plans:
            ages = ages.plus(each.ages)
        return self.update(everybody, max(plans, key=lambda one: one[:3])._replace(ages=ages), now)

    def gone(self, host: int) -> None:
        """This host shows nothing any more."""
        _, plan = self._hosts.pop(host, ((), None))
        if plan is not None:
            self._past = self._past.plus(plan.ages)

    def update(self, rows: Sequence[BoardRow], plan: BoardPlan, now: float) -> RunView:
        """Take in one look at the board; the new view."""
        here = {row.worker: row for row in rows}
        for worker, row in here.items():
            self._samples[worker] = max(self._samples.get(worker, 0), row.samples)
        step = max((row.step for row in rows), default=self.view.step)
        self._note_waiting(here, now - self._looks[-1].now if self._looks else 0.0)
        self._looks.append(_Look(now, step, here))
        while len(self._looks) > 2 and now - self._looks[1].now >= SCREEN.rate_window:
            self._looks.popleft()
        self._note_loss(rows, step, plan)
        first = self._looks[0]
        seconds = now - first.now
        total = plan.steps_per_epoch * plan.epochs
        speeds = {worker: _rate(row, first.rows.get(worker), seconds) for worker, row in here.items()}
        steps_per_second = (step - first.step) / seconds if seconds > 0 else 0.0
        self.view = RunView(
            step=step, total_steps=total, epochs=plan.epochs,
            epoch=max((row.epoch for row in rows), default=self.view.epoch),
            losses=tuple(loss for _, loss in self._losses),
            samples=sum(self._samples.values()),
            samples_per_second=sum(speeds.values()), speeds=speeds,
            waits={worker: _wait(row, first.rows.get(worker)) for worker, row in sorted(here.items())},
            steps={worker: row.step for worker, row in here.items()},
            ages=plan.ages, units=plan.units, training=self.view.training,
            owned={worker: row.owned for worker, row in here.items()},
            waiting={worker: (row.waiting_for, why(row.why)) for worker, row in here.items() if row.waiting_for >= 0},
            held_up={worker: late for worker, late in self._held_up.items() if late[1] >= SCREEN.wait_noticed},
            idle=frozenset(worker for worker, row in here.items() if row.owned and not row.units),
            paces={worker: _pace(row, first.rows.get(worker), seconds) for worker, row in here.items()},
            rates={worker: _applied(row, first.rows.get(worker)) for worker, row in here.items()},
            eta=(total - step) / steps_per_second if total > step and steps_per_second > 0 else None,
        )
        return self.view

    def _note_waiting(self, here: Mapping[int, BoardRow], seconds: float) -> None:
        """A moment's wait is forgotten soon; one that goes on, or comes again and again, is not."""
        kept = exp(-seconds / SCREEN.wait_memory)
        self._held_up = {
            worker: (row.waiting_for, before[1] * kept + 1 - kept)
            if row.waiting_for >= 0
            else (before[0], before[1] * kept)
            for worker, row in here.items()
            for before in [self._held_up.get(worker, (-1, 0.0))]
        }

    def _note_loss(self, rows: Sequence[BoardRow], step: int, plan: BoardPlan) -> None:
        """One loss per stretch of steps, so that the sparkline spans the run and not a moment."""
        newest = max(rows, key=lambda row: row.step, default=None)
        if newest is None or step == 0 or not isfinite(newest.loss):
            return
        stretch = max(1, plan.steps_per_epoch * plan.epochs // _LOSSES)
        if self._losses and step - self._losses[-1][0] < stretch:
            self._losses[-1] = (self._losses[-1][0], newest.loss)
        else:
            self._losses.append((step, newest.loss))


def _rate(row: BoardRow, before: BoardRow | None, seconds: float) -> float:
    if before is None or seconds <= 0:
        return 0.0
    return max(0, row.samples - before.samples) / seconds


def _pace(row: BoardRow, before: BoardRow | None, seconds: float) -> float:
    return max(0, row.applied - before.applied) / seconds if before is not None and seconds > 0 else 0.0


def _applied(row: BoardRow, before: BoardRow | None) -> float:
    done, seconds = row.applied_bytes, row.applying_seconds
    if before is not None:
        done, seconds = done - before.applied_bytes, seconds - before.applying_seconds
    return max(0, done) / seconds if seconds > 0 else 0.0


def _wait(row: BoardRow, before: BoardRow | None) -> float:
    waited, busy = row.wait_seconds, row.busy_seconds
    if before is not None:
        waited, busy = waited - before.wait_seconds, busy - before.busy_seconds
    return waited / (waited + busy) if waited + busy > 0 else 0.0
