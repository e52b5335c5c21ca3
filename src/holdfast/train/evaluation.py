"""Evaluation: the mean of what the user measures, over a whole data set, shared by the crew.

The batches of an evaluation are like units whose result is a few numbers instead of a gradient: numbered,
pure, computed by whoever drives their lane, and computed again by somebody else if that one dies. Their
results lie in a table in the arena and are added up in the order of their numbers, so every worker gets
the same result, whatever the crew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from holdfast.core.keys import STREAM_EVALUATE, key
from holdfast.data.batches import Batches, UnitRequest
from holdfast.data.randomness import seed_everything
from holdfast.dataplane.memory import board as cells
from holdfast.dataplane.memory.arena import Arena
from holdfast.dataplane.memory.results import NESTED, PAST, OperationResults
from holdfast.dataplane.memory.sections import NAMES_BYTES as NAMES
from holdfast.dataplane.memory.sections import NAMES_HEAD as _HEAD
from holdfast.dataplane.memory.sections import TABLE_ROWS as ROWS
from holdfast.dataplane.memory.sections import TABLE_WIDTH as WIDTH
from holdfast.errors import OutOfSync, UsageError

if TYPE_CHECKING:
    from holdfast.train.training import Training

__all__ = ["Table", "agree", "by_lead", "collect", "evaluate"]


class Table:
    """Results of the batches of one evaluation: (tag, samples, values...) a row."""

    def __init__(self, arena: Arena) -> None:
        raw = arena.section("evaluation")
        self._words, self._reals = raw.cast("q"), raw.cast("d")
        self._names = arena.section("evaluation-names")
        self._past = OperationResults(arena.section("evaluation-past"))

    def put(self, row: int, tag: int, count: int, values: Mapping[str, float]) -> None:
        """Store one result; the tag goes last."""
        names = json.dumps(sorted(values)).encode()
        if len(values) > WIDTH - 2 or len(names) > NAMES - _HEAD:
            raise UsageError(f"measure returned {len(values)} numbers. Return at most {WIDTH - 2}, with short names.")
        head = self._names[:_HEAD].cast("q")
        if head[1] != tag:
            self._names[_HEAD : _HEAD + len(names)] = names
            head[0], head[1] = len(names), tag
        elif self._stored() != names:
            others = ", ".join(json.loads(self._stored()))
            raise UsageError(
                f"measure returned {', '.join(sorted(values))} for one batch and {others} for another. "
                "Return the same names for every batch."
            )
        at = row * WIDTH
        self._reals[at + 1] = count
        for column, name in enumerate(sorted(values)):
            self._reals[at + 2 + column] = values[name]
        self._words[at] = tag

    def missing(self, rows: int, tag: int) -> list[int]:
        """Rows that have no result yet."""
        return [row for row, seen in enumerate(self._words[: rows * WIDTH : WIDTH].tolist()) if seen != tag]

    def mean(self, rows: int) -> dict[str, float]:
        """The weighted mean of every column, added up in the order of the rows."""
        names = json.loads(self._stored())
        counts = [self._reals[row * WIDTH + 1] for row in range(rows)]
        return {
            name: sum(self._reals[row * WIDTH + 2 + column] * counts[row] for row in range(rows)) / sum(counts)
            for column, name in enumerate(names)
        }

    def _stored(self) -> bytes:
        return bytes(self._names[_HEAD : _HEAD + self._names[:8].cast("q")[0]])

    def keep(self, op: int, result: Mapping[str, float]) -> None:
        """Keep an operation's result for scripts that come by it later."""
        data = json.dumps(result).encode()
        if not self._past.fits(data):
            raise UsageError(f"The names of {len(result)} measured numbers take too much room. Use shorter names.")
        self._past.put(op, data)

    def keeps(self, op: int) -> bool:
        """Is the result of an operation here?"""
        return self._past.has(op)

    def kept(self, op: int) -> dict[str, float]:
        """What an operation returned that was made before this worker came."""
        data = self._past.get(op)
        if data is None:
            raise OutOfSync(
                f"The result of operation {op // NESTED} is no longer kept (the newest {PAST} are). Put the loop over "
                "epochs into run.epochs(...), which a late worker enters at the crew's epoch."
            )
        result: dict[str, float] = json.loads(data)
        return result


Compute = Callable[[int], tuple[int, Mapping[str, float]]]  # row -> (samples, means over them)


class First(NamedTuple):
    """What is to be done before all else, once."""

    who: Callable[[], int]  #: the worker that does it, in the crew as it is: one that drives lanes
    act: Callable[[], None]


def collect(training: Training, rows: int, compute: Compute, first: First | None = None) -> dict[str, float]:
    """The weighted mean of what `compute(row)` gives, the rows shared by the crew. One collective operation.

    With `first`, one worker does something before any row is computed.
    """
    if (rehearsal := training.turns.rehearsal) is not None:
        return rehearsal.measured(compute)
    if not training.begin_op(rows):
        training.reseed()
        return training.bound.evaluation.kept(training.op)
    binding, op = training.bound, training.op
    table, member, controls = binding.evaluation, binding.member, binding.controls
    tag, missing = op + 1, list(range(rows))

    def together() -> bool:
        return all(entered >= op for _, entered in binding.ops()) or table.keeps(op)

    def doer(row: int) -> int:
        if first is not None and len(missing) == rows:
            return first.who()
        return member.driver(row % training.num_lanes)

    def moved() -> bool:
        return table.missing(rows, tag) != missing or table.keeps(op)

    controls.ring()
    while not together():  # somebody may still be reading the last operation's results
        binding.board.put(cells.R_WAITING_FOR, min((m for m, entered in binding.ops() if entered < op), default=-1))
        _rest_or(controls, training.step, lambda: controls.wait(together))
        binding.board.put(cells.R_WAITING_FOR, -1)
    while (missing := table.missing(rows, tag)) and not table.keeps(op):  # who follows a crew gets it as a whole
        mine = [row for row in missing if member.drives(row % training.num_lanes)]
        if first is not None and len(missing) == rows:
            if first.who() == member.at.worker:
                first.act()
            else:
                mine = []
        if mine:
            table.put(mine[0], tag, *compute(mine[0]))
            binding.board.add(cells.R_BEAT, 1)
            if len(mine) == 1:
                controls.ring()
            _rest_or(controls, training.step, lambda: None)
        else:
            training.check_together(moved)
            binding.board.put(cells.R_WAITING_FOR, doer(missing[0]))
            _rest_or(controls, training.step, lambda: controls.wait(moved))
            binding.board.put(cells.R_WAITING_FOR, -1)
    training.reseed()
    if missing:
        return table.kept(op)
    result = table.mean(rows)
    table.keep(op, result)
    return result


def agree(training: Training, value: float) -> float:
    """One worker's number, the same for all: whoever drives lane 0 decides."""
    return collect(training, 1, lambda _: (1, {"value": value}))["value"]


def by_lead(training: Training, act: Callable[[], None]) -> None:
    """Have the lead do something while all others wait; if it dies meanwhile, the next lead does it all over again."""
    if training.turns.rehearsal is not None:  # it was done when the crew was here
        return

    def lead() -> int:
        at = training.bound.member.at
        return at.lead if at.lead in at.driver else at.driver[0]

    def begin() -> None:
        training.reload_buffers()
        act()

    # A row for each lane: what a worker has done is told to other hosts by a lane that it drives.
    collect(training, training.num_lanes, lambda _: (1, {"done": 1.0}), First(lead, begin))


def evaluate(
    training: Training, measure: Callable[..., Mapping[str, Any]], loader: DataLoader[Any], seed: int
) -> dict[str, float]:
    """The mean of what `measure(*batch)` returns, weighted by batch size. Called by every worker of the crew."""
    batches = Batches(loader, num_lanes=1, seed=seed)
    per_row = -(-batches.steps // ROWS)
    rows = -(-batches.steps // per_row)

    def request_at(at: int) -> UnitRequest:
        return batches.request(key(seed, STREAM_EVALUATE, at), 0, at, 0)

    def ahead(at: int) -> Iterator[UnitRequest]:
        """This batch, and those this worker will measure if nothing changes."""
        for later in range(at, batches.steps):
            row = later // per_row
            if row == at // per_row or training.bound.member.drives(row % training.num_lanes):
                yield request_at(later)

    def compute(row: int) -> tuple[int, Mapping[str, float]]:
        total: dict[str, float] = {}
        count = 0
        for at in range(row * per_row, min((row + 1) * per_row, batches.steps)):
            request = request_at(at)
            batch = batches.fetch(request, partial(ahead, at))
            training.reload_buffers()  # a model in training mode must not carry one batch over to the next
            seed_everything(key(seed, STREAM_EVALUATE, at, 1))
            with torch.no_grad():
                values = measure(*batch) if isinstance(batch, list | tuple) else measure(batch)
            for name, value in _means(values).items():
                total[name] = total.get(name, 0.0) + value * len(request)
            count += len(request)
        return count, {name: value / count for name, value in total.items()}

    try:
        result = collect(training, rows, compute)
        training.reload_buffers()
        return result
    finally:
        batches.close()


def _means(values: object) -> dict[str, float]:
    if not isinstance(values, Mapping) or not values:
        raise UsageError(
            f"measure returned {type(values).__name__} instead of a dict of means over its batch. Return for example "
            '{"loss": loss, "accuracy": (prediction == y).float().mean()}.'
        )
    return {str(name): float(value) for name, value in values.items()}


def _rest_or(controls: Any, step: int, otherwise: Callable[[], None]) -> None:
    controls.look()
    if controls.pausing:
        controls.rest(step)
    else:
        otherwise()
