"""Packing: parts of an arena as frames for another host.

What is large stays where it is and is handed on as a view; what is small is copied. `changes` remembers what it has
packed, and packs it again only when it has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from holdfast.core.transfers import Facts, SumPiece, Transfer
from holdfast.dataplane.memory.arena_view import ArenaView, CellHead
from holdfast.dataplane.memory.board import RowWords
from holdfast.transport.frames import MAX_BODY, Kind, pack

__all__ = ["SPLIT", "Buffers", "Packer", "framed"]

Buffers = list[bytes | memoryview]
_encode = msgspec.msgpack.Encoder().encode
#: What may be larger than a frame: it holds buffers of the model, as many and as large as those are.
SPLIT = frozenset({Kind.FACTS, Kind.PUSHED, Kind.CLOCKS})


def framed(kind: Kind, generation: int, meta: bytes, body: bytes) -> Buffers:
    """One of these as a frame, after as many of its parts as do not fit into that."""
    out: Buffers = []
    rest, most = memoryview(body), MAX_BODY[Kind.PART]
    while len(rest) > MAX_BODY[kind]:
        part, rest = rest[:most], rest[most:]
        out += [pack(Kind.PART, generation, b"", len(part)), part]
    return [*out, pack(kind, generation, meta, len(rest)), *([rest] if rest else [])]


@dataclass(slots=True)
class Packer:
    """Packs for one other host."""

    view: ArenaView
    generation: int
    rows: Sequence[int]  #: whose words and settings are packed
    mine: Callable[[int], bool]  #: is this row of an evaluation's table ours to send
    there: set[int] = field(default_factory=set)  #: rows of the table that the other host has
    everywhere: bool = False  #: settings also of workers of other hosts
    _begun: set[int] = field(init=False)
    _table: int = 0  #: the evaluation that `there` is about
    _complete: int = 0  #: an evaluation of which all was packed
    _rows: tuple[tuple[int, ...], ...] = ()
    _cells: dict[int, CellHead] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._begun = set(self.view.table_rows())  # whoever computed them: the other host may have missed them

    def transfer(self, transfer: Transfer) -> Buffers:
        """Facts, a partial sum or a sum."""
        view = self.view
        if isinstance(transfer, Facts):
            return framed(Kind.FACTS, self.generation, _encode(transfer.step), b"".join(view.facts(transfer)))
        if isinstance(transfer, SumPiece):
            data = view.piece(transfer)
            meta = _encode([transfer.step, *transfer.node, transfer.first, transfer.last, transfer.again])
            return [pack(Kind.PIECE, self.generation, meta, data.nbytes), data]
        data = view.total(transfer)
        meta = _encode([transfer.step, transfer.first, view.norms(transfer)])
        return [pack(Kind.SUM, self.generation, meta, data.nbytes), data]

    def past(self, op: int, result: bytes) -> Buffers:
        """What an evaluation that is over has given."""
        return [pack(Kind.PAST, self.generation, _encode(op), len(result)), result]

    def where(self, rows: tuple[RowWords, ...]) -> Buffers:
        """Where workers stand, if that has changed. Lines and endings alone are not worth a frame."""
        far = tuple([words[:4] for words in rows])
        if far == self._rows:
            return []
        self._rows = far
        return [pack(Kind.ROWS, self.generation, _encode(rows))]

    def changes(self) -> Buffers:
        """Settings and results of an evaluation that have changed."""
        out: Buffers = []
        for cell, head in self.view.cells(self.rows, everywhere=self.everywhere).items():
            # One that is being written is packed when it has been: whoever writes it rings later in the same turn.
            if self._cells.get(cell) != head and (data := self.view.cell(cell, everywhere=self.everywhere)) is not None:
                out += [pack(Kind.SETTINGS, self.generation, _encode(cell), len(data)), data]
                self._cells[cell] = head
        return out + self._evaluation()

    def _evaluation(self) -> Buffers:
        view = self.view
        tag = view.table_tag()
        if tag in (0, self._complete):
            return []
        if tag != self._table:
            if self._table:
                self._begun.clear()
                self.there.clear()
            self._table = tag
        # A worker goes on when the table is full, and nobody uses it anew before all have gone on.
        over = view.board.op()[0] != tag - 1
        filled = view.table_rows(None if over or self._begun else max(0, view.board.op_kind()))
        if over:
            self._complete = tag
        rows = [row for row in filled if row not in self.there and (row in self._begun or self.mine(row))]
        self._begun.clear()
        if not rows:
            return []
        self.there.update(rows)
        body = b"".join([view.names(), *map(view.table_row, rows)])
        meta = _encode([len(view.names()), rows])
        return [pack(Kind.TABLE, self.generation, meta, len(body)), body]
