"""Learning rates and other settings of the optimizer: kept the same on every worker, early or late.

A scheduler is stepped by the user's loop, once per *unit*; it must move once per *step*, as it would on
one machine. So a call inside a unit only notes that the scheduler was called; it moves when the step is
complete. A call outside (at the end of an epoch) moves it at once.

A worker that joins late has not made the calls of the steps it missed. Therefore each worker writes
into its row's *settings* cells in the arena: before it shows a unit, what its settings are and which
schedulers were called in that step; and before it begins a collective operation, its settings then. Whoever
needs the settings with which step `t` begins takes the newest cell from before and makes the noted calls.
There are three cells per row: the newest always replaces the oldest, so what it follows stays readable. Nothing is
pickled: the cells are msgpack of plain numbers.

What workers of other hosts leave lies apart. They may be further on, past the end of a loop in which this host still
stands, and would write over the only place at which a worker can enter here.
"""

from __future__ import annotations

import types
import warnings
import zlib
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy
import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from holdfast.dataplane.memory.arena import Arena
from holdfast.dataplane.memory.results import NESTED
from holdfast.dataplane.memory.sections import CELL as _CELL
from holdfast.dataplane.memory.sections import CELL_HEAD as _HEAD
from holdfast.dataplane.reduce.several_optimizers import each
from holdfast.errors import NotExact
from holdfast.train.loop.scheduler_order import in_order
from holdfast.train.loop.variables.differences import Left, Table

__all__ = ["LatePlace", "Settings", "find_schedulers"]

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_encoder = msgspec.msgpack.Encoder()
_TENSORS = ("params", "param_names")  # what a parameter group holds besides its settings


class Settings:
    """The optimizer's settings and its schedulers on this worker."""

    def __init__(self, optimizer: torch.optim.Optimizer, schedulers: Sequence[Any]) -> None:
        self._optimizer, self._schedulers = optimizer, list(schedulers)
        self._pending: list[list[float]] = []  # [scheduler, metrics...] called in the step at hand
        self._called_in_unit: list[list[float]] = []
        self._in_unit = self._unit_filled = self._in_turn = False
        self._measured: dict[str, int] = {}  # schedulers that were stepped with numbers, and what these hash to
        self._written: bytes | None = None
        self._unmoved: tuple[list[dict[str, Any]], list[dict[str, Any]]] | None = None
        self._tag_written, self._cell = 0, 0
        self._short = False  # it was said that variables have no room
        self._cells: memoryview | None = None  # of this host
        self._elsewhere: memoryview | None = None  # of the others
        self._heads: list[memoryview] = []  # of all cells: those of this host, and behind them those of others
        self._groups: tuple[list[dict[str, Any]], list[Any]] = ([], [])  # as told last: as they are, and plain
        self._row = 0
        self._entered: _Cell | None = None
        self._scheduled = _scheduled(optimizer)
        for index, scheduler in enumerate(self._schedulers):
            _take_over(scheduler, index, self)

    # ------------------------------------------------------------ what the user's loop does

    def begin_unit(self, *, turn: bool = False) -> None:
        """Calls from now on belong to a step. In a `turn` they have no place in its units."""
        self._in_unit, self._unit_filled, self._in_turn = True, False, turn
        self._called_in_unit.clear()

    def filled(self) -> None:
        """`optimizer.step()` was called in this unit."""
        self._unit_filled = True

    def end_units(self) -> None:
        """The step is complete: make the noted calls."""
        self._in_unit = False
        for index, *metrics in self._pending:
            scheduler = self._schedulers[int(index)]
            scheduler._holdfast_step(*metrics)
        self._pending = []

    def leave_units(self) -> None:
        """The loop over the loader has ended: calls take effect at once again, those of a unit given up never."""
        self._in_unit = False
        self._pending = []

    def called(self, index: int, metrics: tuple[Any, ...]) -> None:
        """The user called a scheduler."""
        if not self._in_unit:
            if metrics:
                name = type(self._schedulers[index]).__name__
                number = repr(_plain(metrics)).encode()
                self._measured[name] = zlib.crc32(number, self._measured.get(name, index))
            self._schedulers[index]._holdfast_step(*metrics)
            return
        if metrics and isinstance(self._schedulers[index], ReduceLROnPlateau):
            raise NotExact(
                "ReduceLROnPlateau was stepped inside a unit with a number that only this lane knows",
                "Step it once per epoch with a value from run.evaluate(...).",
            )
        name = type(self._schedulers[index]).__name__
        if self._in_turn:
            raise NotExact(
                f"{name} was stepped inside of the loop over the units of a step, and would move once a unit",
                "Step it once a turn, after optimizer.step().",
            )
        if any(index == noted[0] for noted in self._called_in_unit):
            raise NotExact(f"{name} was stepped twice in one unit", "Step it once per batch.")
        if not self._unit_filled:
            raise NotExact(
                f"{name} was stepped before optimizer.step() in a unit, and would act on the step before it is made",
                "Call optimizer.step() first, as torch asks for since 1.1.",
            )
        call = [index, *map(float, metrics)]
        self._called_in_unit.append(call)
        before = next((noted for noted in self._pending if noted[0] == index), None)
        if before is None:
            self._pending.append(call)
        elif before != call:
            raise NotExact(
                f"{name} was stepped with {before[1:]} in one unit and with {call[1:]} in another of the same step",
                "Step it with what is the same for the whole step, such as run.step, not with a count of batches.",
            )

    def take_measured(self) -> Mapping[str, int]:
        """Schedulers that were stepped with numbers since this was last asked, and what these hash to."""
        found, self._measured = self._measured, {}
        return found

    def check_newcomer(self) -> None:
        """Refuse a first scheduler that was made after we looked for them: its calls would count per unit."""
        if not self._scheduled and _scheduled(self._optimizer):
            raise NotExact(
                "an LR scheduler was made after the first loop over the loader had begun",
                "Make it before that loop, or hand it to run.prepare(...).",
            )

    def close(self) -> None:
        """Give the schedulers back."""
        for scheduler in self._schedulers:
            for name in _OURS:
                scheduler.__dict__.pop(name, None)

    def hyper(self) -> list[dict[str, Any]]:
        """The settings of each parameter group now; a rate that is a tensor as a copy, for it is changed in place."""
        return [
            {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in group.items() if k not in _TENSORS}
            for group in self._optimizer.param_groups
        ]

    # ------------------------------------------------------------ cells

    def attach(self, arena: Arena, row: int) -> None:
        """Use the cells of this row from now on."""
        self._cells, self._elsewhere, self._row = arena.section("settings"), arena.section("settings-elsewhere"), row
        sections = self._cells, self._elsewhere
        self._heads = [one[at : at + _HEAD].cast("q") for one in sections for at in range(0, len(one), _CELL)]
        self._written, self._tag_written = None, 0

    def enter(self, step: int, op: int) -> None:
        """The script is about to begin operation `op` at `step`: leave the settings it begins with."""
        now = self._plain()
        self._write(_tag(step, _entry(op)), now[0], now, step)

    def enter_epoch(self, step: int, op: int) -> int:
        """An epoch begins, whose first operation is `op`. Returns the tag of that place."""
        self.enter(step, op)
        return _tag(step, _before(op))

    def enter_turn(
        self, step: int, op: int, version: int, variables: Table, same: Mapping[str, str] = _NOTHING, *,
        phase: int = 0, at: int = -1,
    ) -> int:  # fmt: skip
        """Turn `at` of operation `op`, a loop, begins with `version`: leave the settings it begins with.

        `variables` are what the script has changed around its loop, `same` what must be so in all workers. In a later
        `phase` of the turn, leave the settings that the phase begins with. Returns the tag of that place.
        """
        return self._write_place(step, _entry(op // NESTED, phase), op, version, variables, same, at)

    def leave_turns(self, step: int, op: int, version: int) -> int:
        """The loop `op` is over when `version` is there: leave the settings it ends with. Returns its tag."""
        return self._write_place(step, _exit(op // NESTED), op, version)

    def variables(self) -> dict[int, list[Table]]:
        """Step of a turn -> what workers have left of their scripts' variables at its top."""
        found: dict[int, dict[int, Table]] = {}
        for cell in range(self._num_cells):
            if (told := self._read(cell)) is not None and told.variables:
                # What came with the state may also have come from its worker.
                found.setdefault(told.tag >> 32, {}).setdefault(cell % self._num_own, told.table())
        return {step: list(several.values()) for step, several in found.items()}

    def of_others(self, step: int) -> list[Table]:
        """What the workers of other rows have left at the top of the turn of this step, where that is still here."""
        found: dict[int, Table] = {}
        for cell, head in enumerate(self._heads):
            row = cell % self._num_own // 3
            told = self._read(cell) if head[0] >> 32 == step and row != self._row else None
            if told is not None and told.tag >> 32 == step and told.variables:
                found.setdefault(row, told.table())
        return list(found.values())

    def told(self, step: int, here: Collection[int]) -> dict[int, dict[str, str]]:
        """Row -> what its worker has told at the top of the turn of `step`, where that is still here.

        The workers of the rows in `here` are on this host.
        """
        found = {}
        for cell in range(self._num_cells):
            told, row = self._read(cell), cell % self._num_own // 3
            if told is None or told.place is None or told.tag >> 32 != step or not told.same:
                continue
            if cell < self._num_own or row not in here:
                found[row] = told.same
        return found

    def digest(self) -> int:
        """Of the settings and of the schedulers, as they are now."""
        return zlib.crc32(_encoder.encode(self._plain()))

    def _write_place(
        self, step: int, entry: int, op: int, version: int, variables: Table = _NOTHING,
        same: Mapping[str, str] = _NOTHING, at: int = -1,
    ) -> int:  # fmt: skip
        now = self._plain()
        self._write(_tag(step, entry), now[0], now, step, ((op, version, entry, at), dict(same), dict(variables)))
        return _tag(step, entry)

    def enter_late(self, op: int, version: int, among: Collection[int] | None = None) -> LatePlace:
        """Take over the settings of the newest turn that was begun of a loop by steps, or that the loop ended with.

        With `among`, only places with these tags count. One that was taken over before still counts, though others may
        have written over it.
        """
        read = [self._read(cell) for cell in range(self._num_cells) if self._is_of(self._tag_of(cell), op)]
        if self._entered is not None and self._is_of(self._entered.tag, op):
            read.append(self._entered)
        places = [cell for cell in read if cell is not None and (among is None or cell.tag in among)]
        for found in sorted(places, key=lambda cell: cell.tag, reverse=True):
            if found.place is not None and found.place[1] <= version:
                self._take(found)
                self._entered = found
                left, (newest, began, _, at) = found.tag & _ENTRIES == _exit(op), found.place
                phase = 0 if left else (found.tag & _ENTRIES) - _entry(op)
                return LatePlace(found.tag >> 32, newest, began, at, found.tag, left, phase)
        return LatePlace(-1, -1, -1, -1, 0, False, 0)

    @staticmethod
    def _is_of(tag: int, op: int) -> bool:
        """Is it that of a place in this loop?"""
        return _entry(op) <= tag & _ENTRIES <= _exit(op)

    def enter_phase_late(self) -> None:
        """Take over once more what was found at the place that was entered late: its own phase begins."""
        if self._entered is not None:
            self._take(self._entered)

    def write(self, step: int, applied: list[dict[str, Any]], least: int) -> None:
        """Before a unit of `step` is shown: leave its settings for whoever comes later.

        `applied` are those the step is made with, taken at `optimizer.step()`. A worker that comes later begins at step
        `least` at the soonest.
        """
        if self._written is not None and not self._pending and (applied, self.hyper()) == self._unmoved:
            return  # no call and no other settings since: what was written still holds
        made, now = [_plain(group) for group in applied], self._plain()
        self._write(_tag(step + 1), made, now, least)
        self._unmoved = (applied, self.hyper()) if not self._pending else None

    def applied(self, step: int) -> list[dict[str, Any]]:
        """The settings that `step` is made with, from a worker that computed a unit of it."""
        found = self._newest(_tag(step + 1))
        if found is None:
            return self.hyper()
        now = self.hyper()
        return [_like(mine, values) for mine, values in zip(now, found.applied, strict=True)]

    def _write(
        self, tag: int, made: list[Any], now: list[Any], least: int, place: tuple[Any, ...] = (None, {}, {})
    ) -> None:
        """`place` is one in a loop, ((operation, version, entry, turn), same, variables): found whatever is set there.

        Variables that have no room are left out.
        """
        if self._cells is None:
            return
        data = _encoder.encode([made, now, self._pending, *place])
        if (data == self._written and not self._pending) or (tag, data) == (self._tag_written, self._written):
            return  # nothing moved: the cell that is there says the same
        *same, variables = place
        while len(data) > _CELL - _HEAD and variables:
            variables = dict([*variables.items()][: len(variables) // 2])
            data = _encoder.encode([made, now, self._pending, *same, variables])
        if len(variables) < len(place[-1]):
            self._say_short(place[-1], len(variables))
        if len(data) > _CELL - _HEAD:
            raise NotExact(
                f"the settings of optimizer and schedulers take {len(data)} bytes, more than {_CELL - _HEAD}",
                "Use fewer parameter groups or a simpler scheduler.",
            )
        mine = range(3 * self._row, 3 * self._row + 3)
        if tag != self._tag_written:
            # What begins with `least` is kept, however far this worker is beyond it.
            kept = max((cell for cell in mine if self._head(cell)[0] < _tag(least + 1)), key=self._tag_of, default=-1)
            self._cell = min((cell for cell in mine if cell != kept), key=self._tag_of)
        at = self._cell * _CELL
        head = self._heads[self._cell]
        head[0] = 0
        head[2] += 1
        self._cells[at + _HEAD : at + _HEAD + len(data)] = data
        head[1] = len(data)
        head[0] = tag
        self._written, self._tag_written = data, tag

    def _say_short(self, variables: Table, room: int) -> None:
        if not self._short:
            self._short = True
            first = ", ".join([*variables][room:][:3])
            warnings.warn(
                f"Settings of optimizer and schedulers leave room for {room} of the {len(variables)} simple values "
                f"that this script changes while it loops; nobody will see whether a worker that comes late lacks "
                f"{first} or what comes after. Hand over with run.keep what turns depend on.", stacklevel=2,
            )  # fmt: skip

    def restore(self, step: int, op: int | None = None) -> None:
        """Take over the settings that hold when `step` begins: those of the newest cell before it.

        With `op`, also what was left on entering that operation counts; without, calls made between two
        operations are still to be made by this worker's own script.
        """
        found = self._newest(_tag(step, 0 if op is None else _entry(op)))
        if found is not None:
            self._take(found)

    def _take(self, found: _Cell) -> None:
        groups, states = found.now
        for group, values in zip(self._optimizer.param_groups, groups, strict=True):
            group.update(_like({k: v for k, v in group.items() if k not in _TENSORS}, values))
        for scheduler, values in zip(self._schedulers, states, strict=True):
            scheduler.__dict__.update(_like(_state(scheduler), values))
        self._pending, self._written = found.pending, None
        self.others_stepped()
        self.end_units()

    def others_stepped(self) -> None:
        """Others have called `optimizer.step()`; torch would warn at a scheduler's step that it was not."""
        self._optimizer._opt_called = True  # type: ignore[attr-defined]

    @property
    def _num_own(self) -> int:
        return len(self._heads) // 2

    @property
    def _num_cells(self) -> int:
        """Those of this host, and behind them those of others."""
        return len(self._heads)

    def _place(self, cell: int) -> memoryview:
        assert self._cells is not None
        assert self._elsewhere is not None
        section, at = (self._cells, self._elsewhere)[cell // self._num_own], cell % self._num_own * _CELL
        return section[at : at + _CELL]

    def _newest(self, latest: int) -> _Cell | None:
        """What the newest cell says whose tag is at most `latest`."""
        while True:
            best, where = 0, -1
            for cell in range(self._num_cells):
                tag = self._tag_of(cell)
                if best < tag <= latest:
                    best, where = tag, cell
            if where < 0:
                return None
            if (found := self._read(where)) is not None:
                return found  # else somebody has written there meanwhile: look again

    def _read(self, cell: int) -> _Cell | None:
        """What a cell says; None where it is empty, or somebody writes there."""
        before = self._head(cell)
        tag, length, _ = before
        data = bytes(self._place(cell)[_HEAD : _HEAD + length])
        return _Cell(tag, *msgspec.msgpack.decode(data)) if tag and self._head(cell) == before else None

    def _tag_of(self, cell: int) -> int:
        return self._heads[cell][0]

    def _head(self, cell: int) -> tuple[int, int, int]:
        """(tag, length, how often it was written) of a cell."""
        head = self._heads[cell]
        return head[0], head[1], head[2]

    def _plain(self) -> list[Any]:
        groups = self.hyper()
        if groups != self._groups[0]:
            self._groups = groups, [_plain(group) for group in groups]
        return [self._groups[1], [_plain(_state(s)) for s in self._schedulers]]


def find_schedulers(optimizer: torch.optim.Optimizer, given: Sequence[Any]) -> list[Any]:
    """The schedulers of this optimizer: those handed over, and those that hooked it without being handed over.

    A scheduler leaves no list of itself on the optimizer, only a wrapper around `step` that its
    constructor made, so it is looked for among the objects that refer to the optimizer.
    """
    import gc

    several, others = each(optimizer), list[Any]()
    if any("step" in one.__dict__ for one in several) or _scheduled(optimizer):
        for holder in gc.get_objects():
            # By type, not isinstance: that would wake lazy attributes of strangers' objects.
            if issubclass(type(holder), LRScheduler) and holder.optimizer in several and holder not in given:
                others.append(holder)
    return _outermost([*given, *in_order(others)])


def _scheduled(optimizer: torch.optim.Optimizer) -> bool:
    return any("initial_lr" in group for group in optimizer.param_groups)


def _outermost(schedulers: list[Any]) -> list[Any]:
    """Without those that another one drives (SequentialLR, ChainedScheduler): their owner steps them."""
    inner = {id(child) for s in schedulers for child in getattr(s, "_schedulers", ())}
    return [s for s in schedulers if id(s) not in inner]


def _take_over(scheduler: Any, index: int, settings: Settings) -> None:
    """Make `scheduler.step` note its calls; `Settings.close` puts it back."""
    scheduler._holdfast_step = types.MethodType(type(scheduler).step, scheduler)

    def step(self: Any, *args: Any, **kwargs: Any) -> None:
        """Once per unit in the loop; moves once per step."""
        settings.called(index, (*args, *kwargs.values()))

    def state_dict(self: Any) -> dict[str, Any]:
        """The scheduler's own state: torch takes all attributes, and ours are none of it."""
        return {k: v for k, v in type(self).state_dict(self).items() if k not in _OURS}

    scheduler.step = types.MethodType(step, scheduler)
    scheduler.state_dict = types.MethodType(state_dict, scheduler)


class LatePlace(NamedTuple):
    """Where in a loop by steps a late worker goes on."""

    step: int  #: of the newest turn that was begun; -1: none was
    op: int  #: the newest operation then, in the loop
    version: int  #: then; of a loop that is over, that it ended with
    at: int  #: turn of the loop, where steps do not tell
    tag: int
    left: bool  #: the loop is over
    phase: int  #: of the turn, with which what was found there begins


class _Cell(NamedTuple):
    """What one cell says."""

    tag: int
    applied: Any  #: the settings that the step before was made with
    now: Any  #: (settings, schedulers)
    pending: Any  #: calls of schedulers that are still to be made
    #: (newest operation, version from which on it counts, entry, turn), in a loop
    place: tuple[int, int, int, int] | None
    same: dict[str, str]  #: what must be so in all workers
    variables: dict[str, tuple[str, int]]  #: what the script has changed around its loop

    def table(self) -> Table:
        """These."""
        return {name: Left(*left) for name, left in self.variables.items()}


_ENTRIES = 0xFFFFFFFF
_PLACES = 1 << 10  #: of one operation


def _entry(op: int, phase: int = 0) -> int:
    """What holds when operation `op` is entered; in a loop by steps, each phase of each of its turns."""
    return _PLACES * op + 1 + min(phase, _PLACES - 4)


def _exit(op: int) -> int:
    """What holds when a loop by steps is over."""
    return _PLACES * op + _PLACES - 2


def _before(op: int) -> int:
    """What holds when an epoch begins whose first operation this is."""
    return _PLACES * op - 1


def _tag(step: int, entry: int = 0) -> int:
    """Cells in the order in which they come about: the units before `step`, then entries at `step` by operation."""
    return step << 32 | entry


_OURS = ("step", "state_dict", "_holdfast_step")


def _state(scheduler: Any) -> dict[str, Any]:
    """What moves in a scheduler: its plain attributes, and those of the schedulers it drives."""
    return {k: v for k, v in scheduler.__dict__.items() if k not in (*_OURS, "optimizer") and _is_plain(v)}


def _is_plain(value: Any) -> bool:
    if value is None or isinstance(value, bool | int | float | str | numpy.generic):
        return True
    if isinstance(value, list | tuple):
        return all(_is_plain(v) or isinstance(v, LRScheduler) for v in value)
    return isinstance(value, dict) and all(_is_plain(v) for v in value.values())


def _plain(value: Any) -> Any:
    if isinstance(value, LRScheduler):
        return _plain(_state(value))
    if isinstance(value, torch.Tensor):
        return float(value)
    if isinstance(value, numpy.generic):
        return value.item()
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def _like(old: Any, new: Any) -> Any:
    """The new value with the old one's types: msgpack knows neither tuples nor Counters nor tensors."""
    if isinstance(old, LRScheduler):
        old.__dict__.update(_like(_state(old), new))
        return old
    if isinstance(old, torch.Tensor):
        return torch.full_like(old, new)
    if isinstance(old, dict):
        return type(old)({k: _like(old[k], v) if k in old else v for k, v in new.items()})
    if isinstance(old, tuple) and isinstance(new, list):
        return tuple(_like(o, n) for o, n in zip(old, new, strict=True)) if len(old) == len(new) else tuple(new)
    if isinstance(old, list) and isinstance(new, list):
        return [_like(o, n) for o, n in zip(old, new, strict=True)] if len(old) == len(new) else new
    return new
