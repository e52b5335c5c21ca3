"""The arena view: an arena as the peer session handles it, where bytes are taken from and put to. No torch.

Everything that goes to other hosts or comes from them is one of a few things, each with its place (`manifest`), and
each is marked on the board after its bytes are there, as a worker of this host would do.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import NamedTuple

from holdfast.core.transfers import Facts, SliceSums, SumPiece
from holdfast.core.tree import Node, bits, cover
from holdfast.dataplane.memory import board as cells
from holdfast.dataplane.memory.board import Board, RowWords
from holdfast.dataplane.memory.board_snapshot import level
from holdfast.dataplane.memory.buffer_records import BufferRecords
from holdfast.dataplane.memory.manifest import Manifest
from holdfast.dataplane.memory.pieces import Pieces
from holdfast.dataplane.memory.results import OperationResults
from holdfast.dataplane.memory.sections import CELL, CELL_HEAD, NAMES_HEAD, TABLE_WIDTH
from holdfast.errors import FrameError

__all__ = ["ArenaView", "CellHead"]


class CellHead(NamedTuple):
    """What a settings cell begins with."""

    tag: int  #: 0: it is empty, or somebody writes there
    length: int
    writes: int  #: how often it was written


def _cell_head(place: memoryview) -> CellHead:
    return CellHead(*place[:CELL_HEAD].cast("q"))


class ArenaView:
    """One arena."""

    def __init__(self, memory: memoryview, manifest: Manifest) -> None:
        self.memory, self.manifest = memory, manifest
        self.board = Board(memory, manifest.lanes, manifest.rows, len(manifest.slices))
        self.pieces = Pieces(self.section("pieces"), manifest.lanes, len(manifest.slices))
        self._records = BufferRecords(manifest, self.section, "present")
        self._settings, self._elsewhere = self.section("settings"), self.section("settings-elsewhere")
        self._table = self.section("evaluation")
        self._tags = self._table.cast("q")[::TABLE_WIDTH]
        self._names = self.section("evaluation-names")
        self.past = OperationResults(self.section("evaluation-past"))

    def section(self, name: str) -> memoryview:
        """The bytes of a section."""
        begin, size = self.manifest.sections[name]
        return self.memory[begin : begin + size]

    def run(self, section: str, first: int, last: int) -> memoryview:
        """The bytes of slices [first, last) in a flat space: `slot/3`, `sum` or `host`."""
        space, begin, _ = self.manifest.slices[first]
        other, _, end = self.manifest.slices[last - 1]
        if space != other or not begin < end:
            raise FrameError(f"slices {first} to {last - 1} are no run of one space")
        return self.section(f"{section}/{space}")[begin:end]

    def check_run(self, first: int, last: int) -> None:
        """Refuse numbers of slices that cannot be."""
        if not 0 <= first < last <= len(self.manifest.slices):
            raise FrameError(f"it names slices {first} to {last - 1} of {len(self.manifest.slices)}")

    # ------------------------------------------------------------ pieces and totals

    def piece(self, transfer: SumPiece) -> memoryview:
        """The bytes of a partial sum, to be sent."""
        return self.run("host" if transfer.merged else f"slot/{transfer.node.lane}", transfer.first, transfer.last)

    def total(self, transfer: SliceSums) -> memoryview:
        """The bytes of a sum, to be sent."""
        return self.run("sum", transfer.first, transfer.last)

    def norms(self, transfer: SliceSums) -> list[float]:
        """The norms that go with it."""
        return self.board.norms(transfer.first, transfer.last)

    def in_use(self, node: Node, step: int) -> bool:
        """Does this host still need what its own workers have put where a partial sum of `step` is to go?

        In a plain loop a step may consist of shares that were cut in an older generation, and the next one of others: a
        lane that is this host's now is then another one's. Who sends of that has sent all of this step before.
        """
        lane, oldest = node.lane, min(self.board.versions())
        return any(own.lane == lane for at in range(oldest, min(step, oldest + 2)) for own in self.board.nodes(at))

    def place_for_piece(self, step: int, node: Node, first: int, last: int, again: bool) -> memoryview | None:
        """Where a partial sum that comes in goes; None where it is here already, unless it comes `again`, corrected."""
        self.check_run(first, last)
        if not 0 <= node.lane < node.lane + node.span <= self.manifest.lanes:
            raise FrameError(f"it names lanes {node.lane} to {node.lane + node.span - 1} of {self.manifest.lanes}")
        if step < min(self.board.versions()):
            return None
        if not again and all(self.pieces.holds(node, step, slice_) for slice_ in range(first, last)):
            return None
        return self.run(f"slot/{node.lane}", first, last)

    def covers(self, step: int, first: int, last: int) -> bool:
        """Are partial sums of all lanes here for one of these slices, as far as is known?"""
        nodes = self.board.nodes(step)
        wanted, but = self.board.work_bits(step) & ~cover(nodes), bits(node.lane for node in nodes)
        return any(not self.pieces.missing(step, slice_, wanted, but) for slice_ in range(first, last))

    def place_for_total(self, step: int, first: int, last: int) -> memoryview | None:
        """Where a sum that comes in goes; None where it is here already, or not wanted any more."""
        self.check_run(first, last)
        summed, versions = self.board.summed(), self.board.versions()
        if any(summed[s] > step or versions[s] != step for s in range(first, last)):
            return None
        return self.run("sum", first, last)

    def land_total(self, step: int, first: int, norms: Sequence[float]) -> None:
        """The bytes of a sum are there."""
        for index, norm in enumerate(norms):
            self.board.publish_norm(first + index, step + 1, norm)

    # ------------------------------------------------------------ facts

    def facts(self, transfer: Facts) -> list[bytes]:
        """What lanes gave besides gradients: for each its words, its flags and the buffers it changed."""
        out: list[bytes] = []
        for lane in transfer.lanes:
            record = self._records.at(transfer.step, lane)
            words = bytes(self.board.facts_words(lane, transfer.step))
            out += [lane.to_bytes(8, "little"), words, *self._records.pack(record, record)]
        return out

    def most_facts(self) -> int:
        """So many bytes the facts of all lanes can have, and whatever else comes with buffers."""
        manifest = self.manifest
        lane = (
            8 + self.board.facts_words(0, 0).nbytes + manifest.entries + len(manifest.buffers) + manifest.buffers_size
        )
        return manifest.lanes * lane + manifest.sections.get("buffers-versions", (0, 0))[1]

    def land_facts(self, step: int, data: memoryview) -> None:
        """Put in place what `facts` made on another host: nothing of it, unless all of it is as it must be.

        The mark of a lane goes last.
        """
        for lane, at in self._read_facts(step, data):
            words = self.board.facts_words(lane, step)
            if words[0] >= step + 1:
                continue  # they are here, and somebody may be reading them
            record = self._records.at(step, lane)
            self._records.unpack(record, record, data[at + words.nbytes :])
            values = memoryview(bytes(data[at : at + words.nbytes])).cast("q")
            words[1:] = values[1:]
            words[0] = values[0]

    def _read_facts(self, step: int, data: memoryview) -> list[tuple[int, int]]:
        """(lane, where what it says begins), after a look at all of it."""
        found, at = [], 0
        while at < len(data):
            lane = int.from_bytes(data[at : at + 8], "little")
            if lane >= self.manifest.lanes:
                raise FrameError(f"it names lane {lane} of {self.manifest.lanes}")
            at += 8
            found.append((lane, at))
            words = self.board.facts_words(lane, step).nbytes
            mark = int.from_bytes(data[at : at + 8], "little", signed=True)
            if len(data) >= at + 8 and mark != step + 1:
                raise FrameError(f"facts of step {step} are marked as those of step {mark - 1}")
            at += words + self._records.size(data[at + words :])
        if at != len(data):
            raise FrameError(f"its facts have {len(data)} bytes, where {at} are due")
        return found

    # ------------------------------------------------------------ rows, settings, the table

    def row(self, row: int) -> RowWords:
        """Where the worker of this row stands. First how far it is: what is read after it is at least as new."""
        cell = partial(self.board.cell, row)
        worker, arrived, op = cell(cells.R_WORKER), cell(cells.R_ARRIVED), cell(cells.R_OP)
        return RowWords(
            row, worker, arrived, op, cell(cells.R_LINE), cell(cells.R_ENDED), cell(cells.R_ENDED_LINE)
        )

    def cells(self, rows: Sequence[int], *, everywhere: bool = False) -> dict[int, CellHead]:
        """Cell -> its head, for the settings cells of these rows that hold something.

        They are those that workers of this host have left, or with `everywhere` those of all hosts.
        """
        heads = {cell: self._cell(cell, everywhere)[1] for row in rows for cell in range(3 * row, 3 * row + 3)}
        return {cell: head for cell, head in heads.items() if head.tag}

    def cell(self, cell: int, *, everywhere: bool = False) -> bytes | None:
        """One settings cell, as far as it is filled; None while somebody writes there."""
        place, head = self._cell(cell, everywhere)
        data = bytes(place[: CELL_HEAD + head.length])
        return data if head.tag and head == _cell_head(place) else None

    def land_cell(self, cell: int, data: memoryview) -> None:
        """Put a settings cell of a state that comes here in place, unless one as new is there."""
        self._put_cell(self._settings, cell, data, self._cell_tag(self._settings, cell) + 1)

    def land_told_cell(self, cell: int, data: memoryview) -> None:
        """Put in place what a worker of another host has left, unless something newer is there.

        Where lanes keep step, apart from what workers of this host leave, and from what came with the state: that is
        where a late worker of this host begins, which may stand behind those of others.
        """
        place = self._settings if self.manifest.relaxed else self._elsewhere
        self._put_cell(place, cell, data, self._cell_tag(place, cell))

    def _put_cell(self, section: memoryview, cell: int, data: memoryview, least: int) -> None:
        """Put a cell in place, if its tag is at least this one."""
        at = cell * CELL
        if not 0 <= at < len(section) or not CELL_HEAD <= len(data) <= CELL:
            raise FrameError(f"it names settings cell {cell} with {len(data)} bytes")
        tag = data[:8].cast("q")[0]
        if tag < max(1, least) or section[at : at + len(data)] == data:
            return
        head = section[at : at + 8].cast("q")
        head[0] = 0
        section[at + 8 : at + len(data)] = data[8:]
        head[0] = tag

    def _cell_tag(self, section: memoryview, cell: int) -> int:
        at = cell * CELL
        return section[at : at + 8].cast("q")[0] if 0 <= at < len(section) else 0

    def _cell(self, cell: int, everywhere: bool) -> tuple[memoryview, CellHead]:
        """Where a cell lies, and its head; the newest one, where it may lie in two places."""
        at = cell * CELL
        places = [part[at : at + CELL] for part in (self._settings, self._elsewhere)[: 1 + everywhere]]
        return max(((place, _cell_head(place)) for place in places), key=lambda found: found[1].tag)

    def table_tag(self) -> int:
        """Which evaluation the table holds, 0 for none."""
        return self._names[8:16].cast("q")[0]

    def table_rows(self, rows: int | None = None) -> list[int]:
        """The rows of the table that are filled for its evaluation."""
        tag = self.table_tag()
        return [row for row, seen in enumerate(self._tags[:rows].tolist()) if tag and seen == tag]

    def table_row(self, row: int) -> bytes:
        """One row."""
        return bytes(self._table[8 * TABLE_WIDTH * row : 8 * TABLE_WIDTH * (row + 1)])

    def names(self) -> bytes:
        """What the columns are called, with their head."""
        return bytes(self._names[: NAMES_HEAD + self._names[:8].cast("q")[0]])

    def land_table(self, names: memoryview, rows: Sequence[int], data: memoryview) -> None:
        """Put rows of the table in place; the names first, the tag of a row last."""
        size = 8 * TABLE_WIDTH
        if len(names) < NAMES_HEAD or len(names) > len(self._names) or len(data) != size * len(rows):
            raise FrameError(f"it holds {len(data)} bytes for {len(rows)} rows of a table")
        if any(not 0 <= row < len(self._tags) for row in rows):
            raise FrameError(f"it names rows {min(rows)} to {max(rows)} of a table of {len(self._tags)}")
        tag = names[8:16].cast("q")[0]
        if self.table_tag() < tag:
            self._names[NAMES_HEAD : len(names)] = names[NAMES_HEAD:]
            self._names[:8] = names[:8]
            self._names[8:16] = names[8:16]
        elif self.table_tag() > tag:
            return
        for index, row in enumerate(rows):
            at = size * row
            self._table[at + 8 : at + size] = data[size * index + 8 : size * (index + 1)]
            self._table[at : at + 8] = data[size * index : size * index + 8]

    def land_past(self, op: int, data: memoryview) -> None:
        """Keep what an operation has given elsewhere."""
        if op < 0 or not self.past.fits(data):
            raise FrameError(f"it brings {len(data)} bytes as the result of operation {op}")
        self.past.put(op, data)

    # ------------------------------------------------------------ a generation begins

    def begin(self, lanes: frozenset[int], given: frozenset[int] | None = None) -> None:
        """Make ready for a generation in which these lanes are this host's; nobody writes meanwhile.

        With `given`, the step at hand is one of a plain loop, and of what was given here the shares that begin with
        these lanes count. One of an older plan may begin with the same lane as one that another host holds.

        Everybody says and sends again what matters. What was merged was merged of other lanes. Where the step at hand
        is decided here, or begun to be finished, this host needs nobody for it, and keeps all it has. Else sums are
        made anew: that all of them are here means that every home has made its own only within one generation. And a
        partial sum with a lane of another host is let go, so that what comes from there never meets it.
        """
        board = self.board
        self.pieces.clear()
        decided = level(self.memory) > min(board.versions(), default=0)
        board.forget_sums(gathered_only=decided)
        if decided:
            return
        self.forget_shares(given or ())
        for node in board.nodes(min(board.versions(), default=0)):
            if not lanes.issuperset(range(node.lane, node.lane + node.span)):
                board.open_slot(node.lane)

    def forget_shares(self, given: Collection[int]) -> None:
        """Forget what was given for the step at hand in a plain loop, but for shares here that begin with these lanes.

        Not where the step at hand is decided here: then it consists of what is here.
        """
        step = min(self.board.versions(), default=0)
        if level(self.memory) <= step:
            self.board.forget_shares(step, given)
