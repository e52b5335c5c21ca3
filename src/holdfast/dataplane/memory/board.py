"""The board: the few numbers in shared memory by which workers of one host keep step.

It lies at the start of the arena, so that the launcher can read the rows without knowing the model:

    header | one row per worker | the samples of each row's unit | the backlog | one record per lane | one per slice

Every cell is eight aligned bytes and has one writer at a time (the row's worker, the lane's driver,
the slice's owner), so a cell is never torn. The data behind a cell (a slot's gradient, a slice's
parameters) is written before it and read after it (on ordering, see `doorbell`). No torch here.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, NamedTuple

import msgspec

from holdfast.core.shares import LostPart, Share
from holdfast.core.tree import Node
from holdfast.errors import FrameError

__all__ = [
    "Board", "Count", "ModeRecord", "RowWords", "ShareFacts", "StepFacts", "Undo", "Word", "board_bytes", "units",
]  # fmt: skip

#: A number from another host that is to become a word, here or elsewhere in the arena: it must fit into one.
Word = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
#: The same of a step, a version, or the number of something; next to that of a slice it must fit into a word, too.
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 38) - 1)]

MAGIC = 0x484F4C44_46415354  # "HOLDFAST"
HEADER, ROW, _LANE, _SLICE = 88, 32, 16, 4  # words
BACKLOG = 16  #: parts of steps that can wait to be made up for, for each lane
SAMPLES = 64  #: of the unit at hand, as many of their numbers as a row shows
(H_MAGIC, H_LANES, H_ROWS, H_SLICES, H_OP, H_OP_FIRST0, H_OP_FIRST1, H_EPOCH, H_EPOCH_OP0, H_EPOCH_OP1,
 H_STEPS_PER_EPOCH, H_EPOCHS, H_BATCH, H_CLOSED_OP, H_OP_KIND0, H_OP_KIND1, H_MIRROR) = range(17)
H_STEP0, H_STEP1 = 17, 21  # four words each
H_UNITS = 30  #: what a unit has been in this run: bits of `UNIT_LANE` and `UNIT_WORKER`
UNIT_LANE, UNIT_WORKER = 1, 2
H_LOOP, _LOOP = 32, 3  #: the newest operation that is a loop: its number, its first step, its kind
H_HELD = 31  #: from which step on nothing is summed or finished, plus one, while the state before it is copied
H_CURRENT, H_MANIFEST, H_MANIFEST_SIZE, H_RECORDED, H_WORK_STEP, H_WORK, H_STALENESS = *range(25, 30), 36, 40
STALENESS = 32  #: counts of pushes by their staleness (see `ages`)
H_PACE, H_PACE0, _PACE = 72, 73, 6  # how lanes keep step: a serial number, and two cells that take turns
H_AGES, H_OLDEST, H_COUNTED = 85, 86, 87  # sum and highest of all staleness; the version up to which it is counted
(R_WORKER, R_PID, R_ARRIVED, R_STEP, R_EPOCH, R_UNIT_STEP, R_UNIT_LANE, R_UNITS, R_UNIT_NS, R_WAIT_NS, R_BUSY_NS,
 R_SAMPLES, R_LOSS, R_UNDO, R_BEAT, R_OP, R_WAITING_FOR, R_EARLY, R_OWNED, R_APPLIED, R_WHY,
 R_STANDS, R_APPLIED_BYTES, R_APPLYING_NS, R_CLOSED, R_ENDED, R_LINE, R_ENDED_LINE) = range(28)
L_STEP, L_SPAN = range(2)
#: What a lane gave besides its gradient, twice: a faster host may be a step ahead, and steps take turns.
L_FACTS, L_COUNT, L_LOSS, L_CLIP, L_CLIP_VALUE, L_SHARE, L_TURNS = range(7)
_FACTS0, _FACTS = 2, 7
S_VERSION, S_SUMMED, S_NORM, S_GATHERED = range(4)


def board_bytes(num_lanes: int, num_rows: int, num_slices: int) -> int:
    """How large the board is."""
    backlog = 2 * (2 + 4 * BACKLOG * num_lanes)
    return 8 * (HEADER + num_rows * (ROW + SAMPLES) + backlog + num_lanes * _LANE + num_slices * _SLICE)


def units(words: memoryview) -> str:
    """What a unit has been in this run: a lane of a step, a worker's share of it, or each for a while."""
    return " and ".join(name for name, kind in (("lane", UNIT_LANE), ("worker", UNIT_WORKER)) if words[H_UNITS] & kind)


class StepFacts(NamedTuple):
    """What a step gave besides parameters."""

    loss: float  #: mean over the whole batch
    samples: int  #: used since the run began, this step included
    grad_norm: float  #: before clipping; 0 where the step was not clipped by norm
    extra: int = 0  #: versions so far beyond one a step, since lanes keep step exactly


class ShareFacts(NamedTuple):
    """What of a step a worker's unit was, in a plain loop."""

    share: Share
    begin: int  #: turns [begin, end) of the pass
    end: int
    weighted: bool  #: was its gradient multiplied by its number of samples?


class RowWords(NamedTuple):
    """Where a worker of another host stands."""

    row: Word
    worker: Word
    arrived: Word  #: newest step it arrived at
    op: Word  #: newest operation it entered
    line: Word  #: of the script, at which it entered that, or ended its newest step
    ended: Word  #: how it has ended its newest versions (`core.endings`)
    ended_line: Word  #: of the script, at which it ended the newest of them


class Undo(NamedTuple):
    """A slice as it was before its owner began to change it."""

    slice: int
    version: int


class ModeRecord(NamedTuple):
    """How lanes keep step, and since when. The first one, of serial 0, is what the run was started with."""

    serial: int
    sync: str  #: the mode's name
    begin: int = 0  #: where the mode sections begins that the mode has in the shared memory (see `sections`)
    size: int = 0  #: of that; 0: it has none
    version: int = 0  #: of the parameters when it began
    step: int = 0  #: of the run, then

    @property
    def first(self) -> bool:
        """Is it what the run was started with, or one of its kind, and not `exact`? The arena has what it needs."""
        return not self.size and self.sync != "exact"


class Board:
    """The board as one worker sees it. `row` is where this worker writes."""

    def __init__(self, memory: memoryview, num_lanes: int, num_rows: int, num_slices: int) -> None:
        self.num_lanes, self.num_rows, self.num_slices = num_lanes, num_rows, num_slices
        raw = memory.cast("B")[: board_bytes(num_lanes, num_rows, num_slices)]
        self.words, self.reals = raw.cast("q"), raw.cast("d")
        self._rows = HEADER
        self._samples = self._rows + num_rows * ROW
        self._backlog = self._samples + num_rows * SAMPLES
        self._backlog_size = 2 + 4 * BACKLOG * num_lanes
        self._lanes = self._backlog + 2 * self._backlog_size
        self._slices = self._lanes + num_lanes * _LANE
        slices = self.words[self._slices :]
        self._versions = slices[S_VERSION::_SLICE] if num_slices else slices
        self._summed = slices[S_SUMMED::_SLICE] if num_slices else slices
        self._arrivals = self.words[self._rows : self._samples][R_ARRIVED::ROW]
        self._closings = self.words[self._rows : self._samples][R_CLOSED::ROW]
        self._undos = self.words[self._rows : self._samples][R_UNDO::ROW]
        lanes = self.words[self._lanes : self._slices]
        self._lane_steps, self._lane_spans = lanes[L_STEP::_LANE], lanes[L_SPAN::_LANE]
        self._known = [lanes[_FACTS0 + turn * _FACTS + L_FACTS :: _LANE] for turn in (0, 1)]
        self._gathered = slices[S_GATHERED::_SLICE] if num_slices else slices
        self._norms = self.reals[self._slices + S_NORM :: _SLICE] if num_slices else self.reals[:0]
        self.row = 0

    def format(self) -> None:
        """Make an empty board; the magic goes last, so nobody reads a half-made one."""
        for word in range(1, len(self.words)):
            self.words[word] = 0
        self.words[H_LANES], self.words[H_ROWS], self.words[H_SLICES] = self.num_lanes, self.num_rows, self.num_slices
        self.words[H_OP] = self.words[H_EPOCH] = self.words[H_CLOSED_OP] = self.words[H_LOOP] = -1
        for row in range(self.num_rows):
            self.words[self._rows + row * ROW + R_ARRIVED] = self.words[self._rows + row * ROW + R_CLOSED] = -1
        for lane in range(self.num_lanes):
            self.words[self._lanes + lane * _LANE + L_STEP] = -1
        self.words[H_MAGIC] = MAGIC

    # ------------------------------------------------------------ my row

    def claim(self, row: int, worker: int, pid: int) -> None:
        """Take over a row. What the last holder left of an undo stays: it is not ours to clear."""
        self.row = row
        at = self._rows + row * ROW
        for word in range(ROW):
            if word != R_UNDO:
                self.words[at + word] = 0
        self.words[at + R_WORKER] = worker
        self.reals[at + R_LOSS] = math.nan  # in relaxed modes, there is none in the first loop
        for word in (R_ARRIVED, R_CLOSED, R_UNIT_STEP, R_UNIT_LANE, R_OP, R_WAITING_FOR):
            self.words[at + word] = -1
        self.words[at + R_PID] = pid

    def put(self, column: int, value: int) -> None:
        """Write one number of my row."""
        self.words[self._rows + self.row * ROW + column] = value

    def add(self, column: int, value: int) -> None:
        """Add to one number of my row."""
        self.words[self._rows + self.row * ROW + column] += value

    def put_samples(self, ids: Sequence[int]) -> None:
        """Show which samples my unit uses, so that its death can be told with them."""
        at = self._samples + self.row * SAMPLES
        shown = array("q", ids[:SAMPLES])
        self.words[at : at + len(shown)] = memoryview(shown)
        if len(shown) < SAMPLES:
            self.words[at + len(shown)] = -1

    def put_loss(self, value: float) -> None:
        """Show the loss of my newest step."""
        self.reals[self._rows + self.row * ROW + R_LOSS] = value

    def cell(self, row: int, column: int) -> int:
        """One number of any row."""
        return self.words[self._rows + row * ROW + column]

    def begin_undo(self, slice_: int, version: int) -> None:
        """From now on my undo section holds `slice_` as it was at `version`. One store says all of it."""
        self.put(R_UNDO, (version + 1) << 24 | slice_ + 1)

    def undo(self, row: int) -> Undo | None:
        """What the undo section of a row holds, if anything."""
        word = self.cell(row, R_UNDO)
        return Undo((word & 0xFFFFFF) - 1, (word >> 24) - 1) if word else None

    def torn(self) -> set[int]:
        """The slices that somebody is changing, or was when it died."""
        return {(word & 0xFFFFFF) - 1 for word in self._undos.tolist() if word}

    def clear_undo(self, row: int) -> None:
        """The slice this row was changing is whole."""
        self.words[self._rows + row * ROW + R_UNDO] = 0

    def marks(self) -> bytes:
        """All that a step's next action hangs on. While it is the same nothing has moved, and it is cheap to have."""
        gates = self.words[H_RECORDED : H_HELD + 1]
        return b"".join((self.words[self._lanes :], gates, self._arrivals.tobytes(), self._closings.tobytes()))

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

    def put_result(self, lane: int, step: int, count: int, loss: float, clip_norm: float, clip_value: float) -> None:
        """What a unit gave besides its gradient."""
        at = self._facts(lane, step)
        self.words[at + L_COUNT] = count
        self.reals[at + L_LOSS], self.reals[at + L_CLIP] = loss, clip_norm
        self.reals[at + L_CLIP_VALUE] = clip_value
        self.words[at + L_SHARE] = 0

    def result(self, lane: int, step: int) -> tuple[int, float, float, float]:
        """(count, loss, clip norm, clip value) of the lane's unit of `step`."""
        at = self._facts(lane, step)
        reals = self.reals
        return self.words[at + L_COUNT], reals[at + L_LOSS], reals[at + L_CLIP], reals[at + L_CLIP_VALUE]

    def put_share(self, step: int, facts: ShareFacts) -> None:
        """What the unit was, whose result was put last: a share, which is shown as its first lane."""
        share, at = facts.share, self._facts(facts.share.first, step)
        self.words[at + L_TURNS] = facts.begin << 32 | facts.end
        self.words[at + L_SHARE] = share.begin << 40 | share.end << 20 | share.last << 2 | facts.weighted << 1 | 1

    def share(self, lane: int, step: int) -> ShareFacts | None:
        """What the unit was that is shown as this lane; None where it was one lane."""
        at = self._facts(lane, step)
        word, turns = self.words[at + L_SHARE], self.words[at + L_TURNS]
        if not word & 1:
            return None
        share = Share(lane, word >> 2 & 0x3FFFF, word >> 40, word >> 20 & 0xFFFFF)
        return ShareFacts(share, turns >> 32, turns & 0xFFFFFFFF, bool(word & 2))

    def given(self, step: int) -> list[int]:
        """The first lanes of the shares of `step` that workers of this host have given, in a plain loop."""
        known = set(self.known(step))
        return [lane for lane, _ in self.nodes(step) if lane in known and self.share(lane, step) is not None]

    def forget_shares(self, step: int, but: Collection[int]) -> None:
        """What other lanes gave for `step`, and the one after it, is of shares that do not come whole, or count."""
        for lane in range(self.num_lanes):
            if lane not in but and self.share(lane, step) is not None:
                self.words[self._facts(lane, step) + L_FACTS] = 0
                self.open_slot(lane)
            if self.share(lane, step + 1) is not None:
                self.words[self._facts(lane, step + 1) + L_FACTS] = 0

    def put_backlog(self, version: int, parts: Sequence[LostPart]) -> None:
        """What is left over of the steps before `version`: over the older of two copies."""
        newest = self._newest_backlog(version - 1)
        at = self._backlog + (self._backlog_size if newest == self._backlog else 0)
        self.words[at + 1] = len(parts)
        for number, part in enumerate(parts):
            for word, value in enumerate(part):
                self.words[at + 2 + 4 * number + word] = value
        self.words[at] = version

    def backlog(self, version: int) -> tuple[LostPart, ...]:
        """What was left over when `version` began."""
        at = self._newest_backlog(version)
        words = self.words[at + 2 : at + 2 + 4 * self.words[at + 1]].tolist()
        return tuple(LostPart(*words[begin : begin + 4]) for begin in range(0, len(words), 4))

    def _newest_backlog(self, version: int) -> int:
        """Where the copy lies that counts for a version."""
        places = (self._backlog, self._backlog + self._backlog_size)
        return max((at for at in places if self.words[at] <= version), key=lambda at: self.words[at], default=places[0])

    def close_facts(self, lane: int, step: int) -> None:
        """All that the lane's unit of `step` gave besides its gradient is here."""
        self.words[self._facts(lane, step) + L_FACTS] = step + 1

    def known(self, step: int) -> list[int]:
        """The lanes whose facts of `step` are here."""
        return [lane for lane, at in enumerate(self._known[step % 2].tolist()) if at == step + 1]

    def facts_words(self, lane: int, step: int) -> memoryview:
        """The facts of a lane as they are carried to other hosts: the mark that they are whole goes first."""
        at = self._facts(lane, step)
        return self.words[at : at + _FACTS]

    def _facts(self, lane: int, step: int) -> int:
        return self._lanes + lane * _LANE + _FACTS0 + step % 2 * _FACTS

    # ------------------------------------------------------------ slices

    def put_step(self, version: int, facts: StepFacts) -> None:
        """What the step that leads to `version` gave. Two cells take turns, like the versions they belong to."""
        at = H_STEP0 if version % 2 == 0 else H_STEP1
        self.reals[at], self.words[at + 1], self.reals[at + 2], self.words[at + 3] = facts

    def step_facts(self, version: int) -> StepFacts:
        """What the step that led to `version` gave; valid until this worker arrives at the step after it."""
        at = H_STEP0 if version % 2 == 0 else H_STEP1
        return StepFacts(self.reals[at], self.words[at + 1], self.reals[at + 2], self.words[at + 3])

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

    def norms(self, first: int = 0, last: int | None = None) -> list[float]:
        """Slice -> norm of its gradient sum; with numbers, of slices [first, last) only."""
        return [float(norm) for norm in self._norms[first:last].tolist()]

    def gathered(self) -> list[int]:
        """Slice -> version of this host's merged partial sum (several hosts)."""
        return self._gathered.tolist()

    def early(self, rows: Sequence[int], step: int) -> Node | None:
        """The node of which some slices lie ready in the `host` section before its last unit has ended."""
        for row in rows:
            word = self.cell(row, R_EARLY)
            if word >> 32 == step + 1:
                return Node(word >> 16 & 0xFFFF, word & 0xFFFF)
        return None

    def publish_gathered(self, slice_: int, version: int) -> None:
        """What this host's workers have of the slice lies merged in the `host` section."""
        self.words[self._slices + slice_ * _SLICE + S_GATHERED] = version

    def forget_sums(self, *, gathered_only: bool) -> None:
        """What was merged for other hosts, and what was summed for the step at hand, does not count any more."""
        for slice_ in range(self.num_slices):
            at = self._slices + slice_ * _SLICE
            self.words[at + S_GATHERED] = 0
            if not gathered_only:
                self.words[at + S_SUMMED] = min(self.words[at + S_SUMMED], self.words[at + S_VERSION])

    # ------------------------------------------------------------ several hosts

    def describe(self, manifest: int, size: int) -> None:
        """Say how the arena is laid out to those who do not know the model: the same words from every worker."""
        self.words[H_LANES], self.words[H_ROWS], self.words[H_SLICES] = self.num_lanes, self.num_rows, self.num_slices
        self.words[H_MANIFEST_SIZE] = size
        self.words[H_MANIFEST] = manifest

    def distrust_rows(self, mine: Sequence[int]) -> None:
        """Forget what the rows of other hosts' workers say: they say it again in every generation."""
        for row in range(self.num_rows):
            if row not in mine:
                at = self._rows + row * ROW
                self.words[at + R_ARRIVED] = self.words[at + R_OP] = -1

    def land_row(
        self, row: int, worker: int, arrived: int, op: int, line: int, ended: int, ended_line: int
    ) -> None:
        """What the row of another host's worker says: last how far it is."""
        at = self._rows + row * ROW
        self.words[at + R_LINE], self.words[at + R_ENDED], self.words[at + R_ENDED_LINE] = line, ended, ended_line
        self.words[at + R_WORKER], self.words[at + R_OP], self.words[at + R_ARRIVED] = worker, op, arrived

    def state_words(self) -> bytes:
        """What the board holds of the state, for a host that fetches it: where the script stands, and the versions."""
        backlog = self.words[self._backlog : self._lanes]
        stands = bytes(self.words[H_OP:H_CURRENT]) + bytes(self.words[H_LOOP : H_LOOP + _LOOP])
        return stands + bytes(backlog) + self._versions.tobytes()

    def land_state(self, data: memoryview, *, mirror: bool = False) -> int:
        """The state of another host is here, at one version: say so. The magic goes last. Returns the version.

        A `mirror` shows what another host holds, as far as workers compute with it. Its slices may be at several.
        """
        if len(data) % 8:
            raise FrameError(f"it brings {len(data)} bytes of a board, which has words of 8")
        words = memoryview(bytes(data)).cast("q")
        stands = H_CURRENT - H_OP
        backlog = stands + _LOOP, stands + _LOOP + self._lanes - self._backlog
        versions = words[backlog[1] :].tolist()
        if len(versions) != self.num_slices or (len(set(versions)) != 1 and not mirror):
            raise FrameError(f"it brings {len(versions)} slices at {len(set(versions))} versions")
        most = BACKLOG * self.num_lanes
        if any(not 0 <= words[backlog[0] + turn * self._backlog_size + 1] <= most for turn in (0, 1)):
            raise FrameError(f"it brings a backlog of more than {most} parts")
        self.words[H_OP:H_CURRENT], self.words[H_LOOP : H_LOOP + _LOOP] = words[:stands], words[stands : backlog[0]]
        self.words[self._backlog : self._lanes] = words[backlog[0] : backlog[1]]
        self.words[H_MIRROR] = mirror
        for slice_, version in enumerate(versions):
            at = self._slices + slice_ * _SLICE
            self.words[at + S_SUMMED], self.words[at + S_GATHERED] = version, version
            self.words[at + S_VERSION] = version
        for row in range(self.num_rows):
            self.clear_undo(row)  # what was torn here was overwritten
        self.words[H_MAGIC] = MAGIC
        return int(min(versions))

    def put_current(self, generation: int) -> None:
        """What this host has fetched for a generation is ready: its workers wait for this."""
        self.words[H_CURRENT] = generation

    def land_slice(self, row: int, slice_: int, version: int, put: Callable[[], None]) -> None:
        """Have a slice of another host's put in place: who looks meanwhile sees that it is torn.

        `row` is one that no worker of this host writes to.
        """
        at = self._rows + row * ROW + R_UNDO
        self.words[at] = (version + 1) << 24 | slice_ + 1
        put()
        self.publish(slice_, version)
        self.words[at] = 0

    def inherit(self, version: int) -> None:
        """What was a mirror holds the state at this version from now on."""
        for slice_ in range(self.num_slices):
            at = self._slices + slice_ * _SLICE
            self.words[at + S_SUMMED], self.words[at + S_VERSION] = version, version
        for row in range(self.num_rows):
            self.clear_undo(row)
        self.words[H_MIRROR] = 0

    def read_before(self, rows: Collection[int], step: int) -> bool:
        """May the script of one of these rows still read the gradient of the step before this one?"""
        return any(0 <= self.cell(row, R_CLOSED) == step - 1 and self.cell(row, R_ARRIVED) < step for row in rows)

    def disown(self, version: int) -> None:
        """What is here is of no use but at this version: how far lanes are is not known any more."""
        if set(self.versions()) != {version}:
            self.words[H_MIRROR] = 1

    def current(self) -> int:
        """The newest generation for which this host has fetched the state from another one."""
        return self.words[H_CURRENT]

    def level(self) -> int:
        """The version that this host's state stands at, or can reach alone. Valid while nobody writes.

        It can reach the next one alone when the step at hand is decided here, or when it has begun to finish it, which
        it does not before. A mirror holds nothing of its own.
        """
        if self.words[H_MIRROR]:
            return -1
        versions = self.versions()
        step = min(versions)
        return step + 1 if max(versions) > step or self.decided(step) else step

    def decided(self, step: int) -> bool:
        """Are all sums of the step at hand here, and what all its lanes gave besides?"""
        work = self.work(step)
        return work is not None and all(at > step for at in self.summed()) and set(work) <= set(self.known(step))

    def put_recorded(self, step: int | None) -> None:
        """Sums of the steps before `step` are written down for a host that follows; None: there is no such host."""
        self.words[H_RECORDED] = 0 if step is None else step + 1

    def recorded(self, step: int) -> bool:
        """May sums of `step` take the place of those of the step before it?"""
        return not 0 < self.words[H_RECORDED] <= step and not self.held(step)

    def hold(self, step: int | None) -> None:
        """Let the state that `step` begins with stand still: that step is neither summed nor finished. None: go on."""
        self.words[H_HELD] = 0 if step is None else step + 1

    def held(self, step: int) -> bool:
        """Does the state that `step` begins with stand still, or one before it?"""
        return 0 < self.words[H_HELD] <= step + 1

    def put_work(self, step: int, lanes: Sequence[int]) -> None:
        """Show which lanes have work in `step`; never of an older one, which a slower worker may be about to leave."""
        if self.words[H_WORK_STEP] < step + 1:
            mask = sum(1 << lane for lane in lanes)
            for word in range(H_STALENESS - H_WORK):
                part = mask >> 64 * word & (1 << 64) - 1
                self.words[H_WORK + word] = part - (1 << 64) if part >> 63 else part
            self.words[H_WORK_STEP] = step + 1

    def forget_work(self, step: int) -> None:
        """What was shown of `step` does not count any more; while nobody can complete it."""
        if self.words[H_WORK_STEP] == step + 1:
            self.words[H_WORK_STEP] = 0

    def note_units(self, kind: int) -> None:
        """A unit is, or was, of this kind."""
        self.words[H_UNITS] |= kind

    @property
    def of_shares(self) -> bool:
        """Has a unit been a worker's whole share of a step?"""
        return bool(self.words[H_UNITS] & UNIT_WORKER)

    def work(self, step: int) -> list[int] | None:
        """The lanes that have work in `step`; None where nobody has shown them."""
        if self.words[H_WORK_STEP] != step + 1:
            return None
        mask = self.work_bits(step)
        return [lane for lane in range(self.num_lanes) if mask >> lane & 1]

    def work_bits(self, step: int) -> int:
        """The same, a bit for each lane; none where nobody has shown them."""
        if self.words[H_WORK_STEP] != step + 1:
            return 0
        return int.from_bytes(self.words[H_WORK:H_STALENESS], "little")

    # ------------------------------------------------------------ where the script stands

    def op(self) -> tuple[int, int]:
        """(number of the newest collective operation, step at which it began); -1 before the first."""
        word = self.words[H_OP]
        return word >> 1, self.words[H_OP_FIRST0 + word % 2] if word >= 0 else 0

    def op_kind(self) -> int:
        """What kind of operation the newest one is (a number its makers agree on)."""
        return self.words[H_OP_KIND0 + self.words[H_OP] % 2]

    def begin_op(self, op: int, first_step: int, kind: int) -> None:
        """Operation `op` begins. Two cells take turns, so a kill between the stores harms nothing."""
        cell = 1 - self.words[H_OP] % 2
        self.words[H_OP_FIRST0 + cell] = first_step
        self.words[H_OP_KIND0 + cell] = kind
        self.words[H_OP] = op << 1 | cell
        if kind <= 0:
            self.words[H_LOOP], self.words[H_LOOP + 1], self.words[H_LOOP + 2] = op, first_step, kind

    def rewind_op(self) -> int:
        """Forget the operations after the newest loop: another script follows. Returns that loop's number, or -1."""
        op, first_step, kind = self.words[H_LOOP : H_LOOP + _LOOP]
        if op >= 0:
            self.begin_op(op, first_step, kind)
        return op

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

    # ------------------------------------------------------------ how lanes keep step

    def pace(self) -> ModeRecord | None:
        """How lanes keep step now; None: as they did when the run began."""
        while True:
            serial = self.words[H_PACE]
            at = H_PACE0 + serial % 2 * _PACE
            first, second, *numbers = self.words[at : at + _PACE].tolist()
            if self.words[H_PACE] == serial:  # else the cell may be of a later one by now
                name = b"".join(word.to_bytes(8, "little") for word in (first, second)).rstrip(b"\0").decode()
                return ModeRecord(serial, name, *numbers) if serial else None

    def pace_serial(self) -> int:
        """How often the way of keeping step has changed."""
        return self.words[H_PACE]

    def put_pace(self, pace: ModeRecord) -> None:
        """Lanes keep step in this way from now on. Done by one worker, while all others stand still."""
        name = pace.sync.encode().ljust(16, b"\0")
        at = H_PACE0 + pace.serial % 2 * _PACE
        self.words[at], self.words[at + 1] = (int.from_bytes(name[part : part + 8], "little") for part in (0, 8))
        for place, number in enumerate(pace[2:], 2):
            self.words[at + place] = number
        self.words[H_PACE] = pace.serial

    def epochs_planned(self) -> int:
        """How many epochs the run means to do."""
        return int(self.words[H_EPOCHS])

    def put_plan(self, steps_per_epoch: int, epochs: int, batch: int) -> None:
        """What the run means to do, for progress lines."""
        self.words[H_STEPS_PER_EPOCH], self.words[H_EPOCHS], self.words[H_BATCH] = steps_per_epoch, epochs, batch
