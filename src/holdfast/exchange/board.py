"""The board: the few numbers in shared memory by which workers of one host keep step.

It lies at the start of the arena, so that the launcher can read the rows without knowing the model:

    header | one row per worker | the samples of each row's unit | one record per lane | one record per slice

Every cell is eight aligned bytes and has one writer at a time (the row's worker, the lane's driver,
the slice's owner), so a cell is never torn. The data behind a cell (a slot's gradient, a slice's
parameters) is written before it and read after it (on ordering, see `doorbell`). No torch here.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.tree import Node

__all__ = ["Board", "Plan", "Row", "StepFacts", "Undo", "board_bytes", "read_plan", "read_rows", "read_samples"]

MAGIC = 0x484F4C44_46415354  # "HOLDFAST"
_HEADER, _ROW, _LANE, _SLICE = 32, 32, 8, 4  # words
SAMPLES = 64  #: of the unit at hand, as many of their numbers as a row shows
(H_MAGIC, H_LANES, H_ROWS, H_SLICES, H_OP, H_OP_FIRST0, H_OP_FIRST1, H_EPOCH, H_EPOCH_OP0, H_EPOCH_OP1,
 H_STEPS_PER_EPOCH, H_EPOCHS, H_BATCH, H_CLOSED_OP, H_OP_KIND0, H_OP_KIND1, H_STOP,
 H_STEP0, H_STEP1) = (*range(18), 21)
(R_WORKER, R_PID, R_ARRIVED, R_STEP, R_EPOCH, R_UNIT_STEP, R_UNIT_LANE, R_UNITS, R_UNIT_NS, R_WAIT_NS, R_BUSY_NS,
 R_SAMPLES, R_LOSS, R_UNDO, R_BEAT, R_OP, R_WAITING_FOR) = range(17)
L_STEP, L_SPAN, L_COUNT, L_LOSS, L_CLIP, L_CLIP_VALUE, L_SETTINGS = range(7)
S_VERSION, S_SUMMED, S_NORM = range(3)


def board_bytes(num_lanes: int, num_rows: int, num_slices: int) -> int:
    """How large the board is."""
    return 8 * (_HEADER + num_rows * (_ROW + SAMPLES) + num_lanes * _LANE + num_slices * _SLICE)


class Row(NamedTuple):
    """What one worker shows of itself. Read by the launcher a few times a second."""

    row: int
    worker: int
    pid: int
    step: int
    epoch: int
    unit_step: int
    unit_lane: int
    units: int
    unit_seconds: float
    wait_seconds: float
    busy_seconds: float
    samples: int
    loss: float
    beat: int
    waiting_for: int


class StepFacts(NamedTuple):
    """What a step gave besides parameters."""

    loss: float  #: mean over the whole batch
    samples: int  #: used since the run began, this step included
    grad_norm: float  #: before clipping; 0 where the step was not clipped by norm


class Undo(NamedTuple):
    """A slice as it was before its owner began to change it."""

    slice: int
    version: int


class Plan(NamedTuple):
    """What the run means to do, as far as it is known (0: unknown)."""

    steps_per_epoch: int
    epochs: int
    batch: int


def read_rows(memory: memoryview) -> list[Row]:
    """The rows of all workers that ever wrote one, from the arena's first bytes. Empty before seeding."""
    words, reals = memory.cast("B").cast("q"), memory.cast("B").cast("d")
    if len(words) < _HEADER or words[H_MAGIC] != MAGIC:
        return []
    rows = []
    for row in range(words[H_ROWS]):
        at = _HEADER + row * _ROW
        if words[at + R_PID] == 0:
            continue
        rows.append(
            Row(
                row, words[at + R_WORKER], words[at + R_PID], words[at + R_STEP], words[at + R_EPOCH],
                words[at + R_UNIT_STEP], words[at + R_UNIT_LANE], words[at + R_UNITS], words[at + R_UNIT_NS] / 1e9,
                words[at + R_WAIT_NS] / 1e9, words[at + R_BUSY_NS] / 1e9, words[at + R_SAMPLES], reals[at + R_LOSS],
                words[at + R_BEAT], words[at + R_WAITING_FOR],
            )
        )  # fmt: skip
    return rows


def read_samples(memory: memoryview, row: int) -> list[int]:
    """The samples of the unit that a row's worker is in (the first `SAMPLES` of them)."""
    words = memory.cast("B").cast("q")
    at = _HEADER + words[H_ROWS] * _ROW + row * SAMPLES
    ids: list[int] = words[at : at + SAMPLES].tolist()
    return ids[: ids.index(-1)] if -1 in ids else ids


def read_plan(memory: memoryview) -> Plan:
    """What the run means to do, from the arena's first bytes."""
    words = memory.cast("B").cast("q")
    if len(words) < _HEADER or words[H_MAGIC] != MAGIC:
        return Plan(0, 0, 0)
    return Plan(words[H_STEPS_PER_EPOCH], words[H_EPOCHS], words[H_BATCH])


class Board:
    """The board as one worker sees it. `row` is where this worker writes."""

    def __init__(self, memory: memoryview, num_lanes: int, num_rows: int, num_slices: int) -> None:
        self.num_lanes, self.num_rows, self.num_slices = num_lanes, num_rows, num_slices
        raw = memory.cast("B")[: board_bytes(num_lanes, num_rows, num_slices)]
        self.words, self.reals = raw.cast("q"), raw.cast("d")
        self._rows = _HEADER
        self._samples = self._rows + num_rows * _ROW
        self._lanes = self._samples + num_rows * SAMPLES
        self._slices = self._lanes + num_lanes * _LANE
        slices = self.words[self._slices :]
        self._versions = slices[S_VERSION::_SLICE] if num_slices else slices
        self._summed = slices[S_SUMMED::_SLICE] if num_slices else slices
        lanes = self.words[self._lanes : self._slices]
        self._lane_steps, self._lane_spans = lanes[L_STEP::_LANE], lanes[L_SPAN::_LANE]
        self.row = 0

    def format(self) -> None:
        """Make an empty board; the magic goes last, so nobody reads a half-made one."""
        for word in range(1, len(self.words)):
            self.words[word] = 0
        self.words[H_LANES], self.words[H_ROWS], self.words[H_SLICES] = self.num_lanes, self.num_rows, self.num_slices
        self.words[H_OP] = self.words[H_EPOCH] = self.words[H_CLOSED_OP] = -1
        for row in range(self.num_rows):
            self.words[self._rows + row * _ROW + R_ARRIVED] = -1
        for lane in range(self.num_lanes):
            self.words[self._lanes + lane * _LANE + L_STEP] = -1
        self.words[H_MAGIC] = MAGIC

    # ------------------------------------------------------------ my row

    def claim(self, row: int, worker: int, pid: int) -> None:
        """Take over a row. What the last holder left of an undo stays: it is not ours to clear."""
        self.row = row
        at = self._rows + row * _ROW
        for word in range(_ROW):
            if word != R_UNDO:
                self.words[at + word] = 0
        self.words[at + R_WORKER] = worker
        for word in (R_ARRIVED, R_UNIT_STEP, R_UNIT_LANE, R_OP, R_WAITING_FOR):
            self.words[at + word] = -1
        self.words[at + R_PID] = pid

    def put(self, column: int, value: int) -> None:
        """Write one number of my row."""
        self.words[self._rows + self.row * _ROW + column] = value

    def add(self, column: int, value: int) -> None:
        """Add to one number of my row."""
        self.words[self._rows + self.row * _ROW + column] += value

    def put_samples(self, ids: Sequence[int]) -> None:
        """Show which samples my unit uses, so that its death can be told with them."""
        at = self._samples + self.row * SAMPLES
        shown = array("q", ids[:SAMPLES])
        self.words[at : at + len(shown)] = memoryview(shown)
        if len(shown) < SAMPLES:
            self.words[at + len(shown)] = -1

    def put_loss(self, value: float) -> None:
        """Show the loss of my newest step."""
        self.reals[self._rows + self.row * _ROW + R_LOSS] = value

    def cell(self, row: int, column: int) -> int:
        """One number of any row."""
        return self.words[self._rows + row * _ROW + column]

    def begin_undo(self, slice_: int, version: int) -> None:
        """From now on my undo section holds `slice_` as it was at `version`. One store says all of it."""
        self.put(R_UNDO, (version + 1) << 24 | slice_ + 1)

    def undo(self, row: int) -> Undo | None:
        """What the undo section of a row holds, if anything."""
        word = self.cell(row, R_UNDO)
        return Undo((word & 0xFFFFFF) - 1, (word >> 24) - 1) if word else None

    def clear_undo(self, row: int) -> None:
        """The slice this row was changing is whole."""
        self.words[self._rows + row * _ROW + R_UNDO] = 0

    # ------------------------------------------------------------ lanes

    def nodes(self, step: int) -> list[Node]:
        """The complete partial sums published for `step`."""
        return [
            Node(lane, span)
            for lane, (at, span) in enumerate(zip(self._lane_steps.tolist(), self._lane_spans.tolist(), strict=True))
            if at == step and span > 0
        ]

    def open_slot(self, lane: int) -> None:
        """From now on the slot of `lane` holds nothing that may be used."""
        self.words[self._lanes + lane * _LANE + L_SPAN] = 0

    def close_slot(self, lane: int, step: int, span: int) -> None:
        """The slot of `lane` now holds the sum of `span` lanes for `step`. The span goes last."""
        at = self._lanes + lane * _LANE
        self.words[at + L_STEP] = step
        self.words[at + L_SPAN] = span

    def put_result(self, lane: int, count: int, loss: float, clip_norm: float, clip_value: float) -> None:
        """What a unit gave besides its gradient."""
        at = self._lanes + lane * _LANE
        self.words[at + L_COUNT] = count
        self.reals[at + L_LOSS], self.reals[at + L_CLIP] = loss, clip_norm
        self.reals[at + L_CLIP_VALUE] = clip_value

    def result(self, lane: int) -> tuple[int, float, float, float]:
        """(count, loss, clip norm, clip value) of the lane's newest unit."""
        at = self._lanes + lane * _LANE
        reals = self.reals
        return self.words[at + L_COUNT], reals[at + L_LOSS], reals[at + L_CLIP], reals[at + L_CLIP_VALUE]

    # ------------------------------------------------------------ slices

    def put_settings(self, lane: int, fingerprint: int) -> None:
        """Show with which settings a lane's unit was made; all lanes of a step must show the same."""
        self.words[self._lanes + lane * _LANE + L_SETTINGS] = fingerprint

    def settings(self, lane: int) -> int:
        """What `put_settings` showed."""
        return self.words[self._lanes + lane * _LANE + L_SETTINGS]

    def put_step(self, version: int, facts: StepFacts) -> None:
        """What the step that leads to `version` gave. Two cells take turns, like the versions they belong to."""
        at = H_STEP0 if version % 2 == 0 else H_STEP1
        self.reals[at], self.words[at + 1], self.reals[at + 2] = facts

    def step_facts(self, version: int) -> StepFacts:
        """What the step that led to `version` gave; valid until this worker arrives at the step after it."""
        at = H_STEP0 if version % 2 == 0 else H_STEP1
        return StepFacts(self.reals[at], self.words[at + 1], self.reals[at + 2])

    def versions(self) -> list[int]:
        """Slice -> version."""
        return self._versions.tolist()

    def summed(self) -> list[int]:
        """Slice -> version of its gradient sum (steps with clipping)."""
        return self._summed.tolist()

    def publish(self, slice_: int, version: int) -> None:
        """The one store that makes a slice's new version real."""
        self.words[self._slices + slice_ * _SLICE + S_VERSION] = version

    def publish_norm(self, slice_: int, version: int, norm: float) -> None:
        """The slice's gradient sum is complete; its norm goes first."""
        at = self._slices + slice_ * _SLICE
        self.reals[at + S_NORM] = norm
        self.words[at + S_SUMMED] = version

    def norms(self) -> list[float]:
        """Slice -> norm of its gradient sum."""
        return [float(norm) for norm in self.reals[self._slices + S_NORM :: _SLICE].tolist()[: self.num_slices]]

    # ------------------------------------------------------------ where the script stands

    def op(self) -> tuple[int, int]:
        """(number of the newest collective operation, step at which it began); -1 before the first."""
        op = self.words[H_OP]
        return op, self.words[H_OP_FIRST0 + op % 2] if op >= 0 else 0

    def op_kind(self) -> int:
        """What kind of operation the newest one is (a number its makers agree on)."""
        return self.words[H_OP_KIND0 + self.words[H_OP] % 2]

    def begin_op(self, op: int, first_step: int, kind: int) -> None:
        """Operation `op` begins. Two cells take turns, so a kill between the stores harms nothing."""
        self.words[H_OP_FIRST0 + op % 2] = first_step
        self.words[H_OP_KIND0 + op % 2] = kind
        self.words[H_OP] = op

    def stop_at(self, step: int) -> int:
        """The step before which the run ends: `step`, unless somebody named one already."""
        if self.words[H_STOP] == 0:
            self.words[H_STOP] = step
        return self.words[H_STOP]

    def close_op(self, op: int) -> None:
        """Operation `op` has ended before its time: a worker that joins now need not enter it."""
        self.words[H_CLOSED_OP] = op

    def op_closed(self, op: int) -> bool:
        """Was this operation ended before its time?"""
        return self.words[H_CLOSED_OP] >= op

    def epoch(self) -> tuple[int, int]:
        """(epoch, first operation of it); (-1, 0) before the first."""
        epoch = self.words[H_EPOCH]
        return epoch, self.words[H_EPOCH_OP0 + epoch % 2] if epoch >= 0 else 0

    def begin_epoch(self, epoch: int, first_op: int) -> None:
        """Epoch `epoch` begins."""
        self.words[H_EPOCH_OP0 + epoch % 2] = first_op
        self.words[H_EPOCH] = epoch

    def put_plan(self, steps_per_epoch: int, epochs: int, batch: int) -> None:
        """What the run means to do, for progress lines."""
        self.words[H_STEPS_PER_EPOCH], self.words[H_EPOCHS], self.words[H_BATCH] = steps_per_epoch, epochs, batch


