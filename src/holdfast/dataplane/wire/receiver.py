"""A receiver: puts what one other host sends into this host's arena, and marks it on the board.

One thread for every other host. Large bodies are received straight into their place; the mark goes after them. What is
here already, or not wanted any more, is received into a spare place and forgotten.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from holdfast.config.limits import TRANSFER
from holdfast.core.tree import Node
from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.memory.board import Count, RowWords
from holdfast.dataplane.wire.packing import SPLIT
from holdfast.dataplane.wire.primary_inbound import Inbound
from holdfast.errors import FrameError
from holdfast.transport.frames import Header, Kind
from holdfast.transport.stream import Stream, next_frame

__all__ = ["Receiver"]

_pieces = msgspec.msgpack.Decoder(tuple[Count, Count, Count, Count, Count, bool])
_totals = msgspec.msgpack.Decoder(tuple[Count, Count, list[float]])
_rows = msgspec.msgpack.Decoder(list[RowWords])
_numbers = msgspec.msgpack.Decoder(Count)
_table = msgspec.msgpack.Decoder(tuple[Count, list[Count]])


@dataclass(slots=True)
class Receiver:
    """What comes from one other host in one generation."""

    view: ArenaView
    stream: Stream
    generation: int
    ring: Callable[[], None]  #: wakes the workers of this host
    closing: Callable[[], bool]
    there: set[int]  #: rows of the table that the other host has (shared with its packer)
    turn: Callable[[int], None]  #: waits until sums and facts of a step may be landed
    mine: frozenset[int] = frozenset()  #: rows of this host, which others know nothing about
    relaxed: Inbound | None = None  #: takes what belongs to relaxed modes, if this host has it so
    _spare: bytearray = field(default_factory=bytearray)
    _parts: bytearray = field(default_factory=bytearray)  #: what has come of the next frame's body

    def run(self) -> None:
        """Land until the generation ends. Raises OSError, EOFError or FrameError."""
        while not self.closing():
            header, meta = next_frame(self.stream, generation=self.generation)
            try:
                matters = self._land(header, meta)
            except msgspec.MsgspecError as error:
                raise self._refused(f"its meta is not what a {header.kind.name} has: {error}") from None
            except FrameError as error:
                raise self._refused(error.what) from None
            if matters:
                self.ring()

    def _refused(self, what: str) -> FrameError:
        return FrameError(f"{what} (it came from {self.stream.peer})")

    def _land(self, header: Header, meta: bytearray) -> bool:
        """Land a frame. False: nobody here can do anything with it before more has come."""
        if header.kind is Kind.PART:
            self._gather(header)
            return False
        if self._parts and header.kind not in SPLIT:
            raise FrameError(f"a {header.kind.name} comes after parts, and has none")
        if header.kind is Kind.PIECE:
            step, lane, span, first, last, again = _pieces.decode(meta)
            node = Node(lane, span)
            while self.view.in_use(node, step) and not self.closing():
                time.sleep(TRANSFER.sums_poll)
            place = self.view.place_for_piece(step, node, first, last, again)
            self._body(header, place)
            if place is not None:
                self.view.pieces.put(node, step, first, last)
            return self.view.covers(step, first, last)
        if header.kind is Kind.SUM:
            step, first, norms = _totals.decode(meta)
            self.turn(step)
            place = self.view.place_for_total(step, first, first + len(norms))
            self._body(header, place)
            if place is not None:
                self.view.land_total(step, first, norms)
            return all(at > step for at in self.view.board.summed())
        if header.kind is Kind.FACTS:
            step, body = _numbers.decode(meta), self._body(header, None)
            self.turn(step - 1)
            self.view.land_facts(step, body)
            work = self.view.board.work(step)
            return work is None or len(self.view.board.known(step)) >= len(work)
        elif header.kind is Kind.ROWS:
            self._body(header, None)
            for words in _rows.decode(meta):
                self._row(words)
        elif header.kind is Kind.SETTINGS:
            self.view.land_told_cell(_numbers.decode(meta), self._body(header, None))
        elif header.kind is Kind.PAST:
            self.view.land_past(_numbers.decode(meta), self._body(header, None))
        elif header.kind is Kind.TABLE:
            size, rows = _table.decode(meta)
            body = self._body(header, None)
            if rows:
                self.view.land_table(body[:size], rows, body[size:])
                self.there.update(rows)
        elif self.relaxed is not None:
            return self.relaxed.land(header, meta, self._body)
        else:
            raise FrameError(f"a {header.kind.name} has no place among hosts")
        return True

    def _row(self, words: RowWords) -> None:
        if not 0 <= words.row < self.view.manifest.rows:
            raise FrameError(f"it names row {words.row} of {self.view.manifest.rows}")
        if words.row not in self.mine:
            self.view.board.land_row(*words)

    def _gather(self, header: Header) -> None:
        """Receive bytes behind what has come of the next frame's body."""
        had, most = len(self._parts), self.view.most_facts()
        if had + header.body > most:
            raise FrameError(f"parts of {had + header.body} bytes, where {most} are the most there can be")
        self._parts.extend(bytes(header.body))
        if header.body:
            self.stream.recv_into(memoryview(self._parts)[had:])

    def _body(self, header: Header, place: memoryview | None) -> memoryview:
        """Receive the body into its place, or into the spare one."""
        if self._parts:
            self._gather(header)
            parts, self._parts = self._parts, bytearray()
            return memoryview(parts)
        if place is None:
            if len(self._spare) < header.body:
                self._spare = bytearray(header.body)
            place = memoryview(self._spare)[: header.body]
        elif place.nbytes != header.body:
            raise FrameError(f"a {header.kind.name} of {header.body} bytes, where {place.nbytes} are due")
        if header.body:
            self.stream.recv_into(place)
        return place
