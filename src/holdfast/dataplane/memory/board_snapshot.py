"""A snapshot of a board from outside: what the launcher or an agent reads from an arena's first bytes.

They hold the memory but know neither model nor layout; the board's header says how large it is. No torch here.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.dataplane.memory.board import (
    H_BATCH,
    H_EPOCHS,
    H_LANES,
    H_MAGIC,
    H_ROWS,
    H_SLICES,
    H_STEPS_PER_EPOCH,
    HEADER,
    MAGIC,
    R_APPLIED,
    R_APPLIED_BYTES,
    R_APPLYING_NS,
    R_BEAT,
    R_BUSY_NS,
    R_EPOCH,
    R_LOSS,
    R_OWNED,
    R_PID,
    R_SAMPLES,
    R_STEP,
    R_UNIT_LANE,
    R_UNIT_NS,
    R_UNIT_STEP,
    R_UNITS,
    R_WAIT_NS,
    R_WAITING_FOR,
    R_WHY,
    R_WORKER,
    ROW,
    SAMPLES,
    Board,
    units,
)
from holdfast.dataplane.relaxed import ages
from holdfast.dataplane.relaxed.ages import NONE, Ages

__all__ = [
    "BoardPlan", "BoardRow", "given", "level", "of_shares", "read_plan", "read_rows", "read_samples",
]  # fmt: skip


class BoardRow(NamedTuple):
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
    owned: int = 0  #: slices
    applied: int = 0  #: updates of slices, since it began
    why: int = 0  #: it waits: a word of `core.sync.modes.Held`; 0 where that gives no reason
    applied_bytes: int = 0  #: of the slices that it updated, since it began
    applying_seconds: float = 0.0  #: that it took for that


class BoardPlan(NamedTuple):
    """What the run means to do, as far as it is known (0: unknown)."""

    steps_per_epoch: int
    epochs: int
    batch: int
    ages: Ages = NONE  #: how stale the pushes were that were applied on this host
    units: str = ""  #: what a unit has been in this run (`Board.units`)


def read_rows(memory: memoryview) -> list[BoardRow]:
    """The rows of all workers that ever wrote one, from the arena's first bytes. Empty before seeding."""
    words, reals = memory.cast("B").cast("q"), memory.cast("B").cast("d")
    if len(words) < HEADER or words[H_MAGIC] != MAGIC:
        return []
    rows = []
    for row in range(words[H_ROWS]):
        at = HEADER + row * ROW
        if words[at + R_PID] == 0:
            continue
        rows.append(
            BoardRow(
                row, words[at + R_WORKER], words[at + R_PID], words[at + R_STEP], words[at + R_EPOCH],
                words[at + R_UNIT_STEP], words[at + R_UNIT_LANE], words[at + R_UNITS], words[at + R_UNIT_NS] / 1e9,
                words[at + R_WAIT_NS] / 1e9, words[at + R_BUSY_NS] / 1e9, words[at + R_SAMPLES], reals[at + R_LOSS],
                words[at + R_BEAT], words[at + R_WAITING_FOR], words[at + R_OWNED], words[at + R_APPLIED],
                words[at + R_WHY], words[at + R_APPLIED_BYTES], words[at + R_APPLYING_NS] / 1e9,
            )
        )  # fmt: skip
    return rows


def read_samples(memory: memoryview, row: int) -> list[int]:
    """The samples of the unit that a row's worker is in (the first `SAMPLES` of them)."""
    words = memory.cast("B").cast("q")
    at = HEADER + words[H_ROWS] * ROW + row * SAMPLES
    ids: list[int] = words[at : at + SAMPLES].tolist()
    return ids[: ids.index(-1)] if -1 in ids else ids


def read_plan(memory: memoryview) -> BoardPlan:
    """What the run means to do, from the arena's first bytes."""
    words = memory.cast("B").cast("q")
    if len(words) < HEADER or words[H_MAGIC] != MAGIC:
        return BoardPlan(0, 0, 0)
    return BoardPlan(words[H_STEPS_PER_EPOCH], words[H_EPOCHS], words[H_BATCH], ages.read(words), units(words))


def level(memory: memoryview) -> int:
    """How far the state in an arena has come: -1 without one, else `Board.level`."""
    board = _board(memory)
    return board.level() if board is not None else -1


def given(memory: memoryview) -> list[int]:
    """The first lanes of the shares that workers here have given for the step that begins with the arena's level."""
    board = _board(memory)
    return board.given(board.level()) if board is not None else []


def of_shares(memory: memoryview) -> bool:
    """Has the script had a plain loop, in which steps are made of shares?"""
    board = _board(memory)
    return board is not None and board.of_shares


def _board(memory: memoryview) -> Board | None:
    words = memory.cast("B").cast("q")
    if len(words) < HEADER or words[H_MAGIC] != MAGIC:
        return None
    return Board(memory, words[H_LANES], words[H_ROWS], words[H_SLICES])
