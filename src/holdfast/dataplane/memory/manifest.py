"""The manifest: where things lie in the arena, for those who move its bytes but do not know the model.

Every worker lays the arena out from model and optimizer. The peer session, which carries parts of it to other hosts,
imports no torch and runs no user code; it reads the manifest that the first workers leave in a section of the arena
itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from holdfast.dataplane.memory.arena import Arena, Sections
from holdfast.dataplane.memory.board import H_MANIFEST, H_MANIFEST_SIZE, Board
from holdfast.dataplane.memory.sections import Life, ModeRoom, of_life
from holdfast.dataplane.relaxed.inner_state import SINCE, state_bytes

if TYPE_CHECKING:
    from holdfast.dataplane.memory.space import (
        Space,  # it needs torch, and a process that reads a manifest may be without it
    )

__all__ = ["Manifest", "ModelEntry", "add_section", "read_manifest", "write_manifest"]


class ModelEntry(NamedTuple):
    """A tensor of the models' state_dicts, and where it lies."""

    name: str
    dtype: str
    shape: list[int]
    section: str
    begin: int  #: in bytes; of a buffer, within one copy of all of them


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """Where things lie. All numbers are bytes, but for counts."""

    lanes: int
    rows: int
    entries: int  #: trainable parameters
    slices: list[tuple[str, int, int]]  #: (dtype, begin, end in the flat space of that dtype)
    buffers: list[tuple[int, int]]  #: (begin, size) within one copy of the buffers
    buffers_size: int  #: of one copy
    sections: dict[str, tuple[int, int]]  #: (begin, size)
    relaxed: bool = False  #: is there room for a push of each lane, as lanes need not keep step
    reads: bool = False  #: are the parameters kept that pushes were computed from, in relaxed modes
    outer: dict[str, int] = {}  #: sections of the owners' optimizer with local steps, and their bytes
    kinds: dict[str, str] = {}  #: section of the optimizer's state -> of what type its numbers are
    pieces: list[tuple[str, int, int]] = []  #: (dtype, begin, end in numbers): what the optimizer has a state of
    model: list[ModelEntry] = []  #: what the models are made of, in the order of their state_dicts

    def room(self) -> ModeRoom:
        """What decides how much memory another mode takes."""
        flats = {
            name.removeprefix("parameters/"): size
            for name, (_, size) in self.sections.items() if name.startswith("parameters/")
        }  # fmt: skip
        return ModeRoom(
            self.lanes, flats, self.entries, self.reads, state_bytes(self.owners()), self.outer
        )

    @property
    def rounds(self) -> bool:
        """Do lanes train by themselves between two pushes?"""
        return SINCE in self.sections

    def owners(self) -> dict[str, int]:
        """The sections that only the owners of slices use, and their bytes."""
        return {name: self.sections[name][1] for name in of_life(self.sections, Life.OWNERS)}

    def spaces(self) -> tuple[str, ...]:
        """Slice -> the flat space it lies in."""
        return tuple(space for space, _, _ in self.slices)

    def sizes(self) -> tuple[int, ...]:
        """Slice -> bytes."""
        return tuple(end - begin for _, begin, end in self.slices)

    def state(self) -> list[str]:
        """The sections that make up the state, in order; of one that is mirrored, those that workers compute with.

        In relaxed modes one host has what only owners use, and turns are not shared.
        """
        more = () if self.relaxed else (Life.OWNERS, Life.TURN)
        return of_life(self.sections, Life.MODEL, Life.SCRIPT, *more)

    def whole(self) -> list[str]:
        """The sections of a state that is mirrored, with what only its owners use: all that a replica holds."""
        return of_life(self.sections, Life.MODEL, Life.OWNERS, Life.OUTER, Life.ROUNDS)


def add_section(
    sections: Sections, space: Space, room: ModeRoom, rows: int, *, relaxed: bool = False,
    kinds: Mapping[str, str] | None = None,
) -> bytes:  # fmt: skip
    """Lay out the manifest itself, as the last section; returns its bytes."""
    layout = space.layout
    slices = [(s.dtype, s.start * s.itemsize, s.stop * s.itemsize) for s in layout.slices]
    pieces = [(s.dtype, part.start, part.stop) for s in layout.slices for part in s.pieces]
    data = msgspec.msgpack.encode(
        Manifest(
            room.lanes, rows, room.entries, slices, space.buffer_spans(), space.placed()[1], dict(sections.spans),
            relaxed, room.reads, dict(room.outer), dict(kinds or {}), pieces, space.model_entries(),
        )
    )
    sections.add("manifest", len(data))
    return data


def write_manifest(arena: Arena, board: Board, data: bytes) -> None:
    """Leave the manifest in the arena. Every worker writes the same bytes."""
    arena.section("manifest")[:] = data
    board.describe(*arena.sections.spans["manifest"])


def read_manifest(memory: memoryview) -> Manifest | None:
    """The manifest of an arena; None while no worker has left one."""
    words = memory.cast("B")[: 8 * (H_MANIFEST_SIZE + 1)].cast("q")
    begin, size = words[H_MANIFEST], words[H_MANIFEST_SIZE]
    if begin == 0:
        return None
    return msgspec.msgpack.decode(memory[begin : begin + size], type=Manifest)
