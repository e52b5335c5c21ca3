"""Sections: the one table of what lies in shared memory. No torch.

Each family of sections is declared here once: how large its sections are, what their numbers are, who writes them, in
which modes they exist, how long what they hold counts, and what marks it as whole. The arena's layout, what hosts send
each other, what becomes of memory when the mode changes, and checkpoints read this table, so a new family is in all
of them at once.

Most sections lie in the arena. What a relaxed mode needs besides lies there, too, if the run was started in that mode;
when the mode changes while the run is going, the new mode's sections lie behind the arena, in the same descriptor, and
memory of the mode before it is given back. How they are laid out follows from the mode and a few numbers (`ModeRoom`),
so the holder of the memory can do it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.sync.modes import Mode
from holdfast.dataplane.memory.arena import Sections
from holdfast.dataplane.memory.board import board_bytes
from holdfast.dataplane.memory.results import PAST_BYTES
from holdfast.dataplane.relaxed.inner_state import SINCE
from holdfast.dataplane.relaxed.pushes import pushes_bytes

if TYPE_CHECKING:
    from holdfast.dataplane.memory.space import Space

__all__ = [
    "CELL", "CELL_HEAD", "NAMES_BYTES", "NAMES_HEAD", "TABLE", "TABLE_ROWS", "TABLE_WIDTH", "Family", "Life",
    "Measures", "ModeRoom", "family", "lay_out", "lay_out_mode", "measure", "of_life", "passing",
]  # fmt: skip

#: Bytes of one settings cell (`train.loop.optimizer_settings`), and of its head: tag, length, how often it was written.
CELL, CELL_HEAD = 16 * 1024, 24
#: Rows of an evaluation's table (`train.evaluation`) and words in one; bytes of its names, and of their head.
TABLE_ROWS, TABLE_WIDTH = 4096, 32
NAMES_BYTES, NAMES_HEAD = 8192, 16


class Life(Enum):
    """How long what a section holds counts, and who needs it."""

    MODEL = "state that every worker computes with"
    SCRIPT = "what a worker that comes late needs to be where the others are"
    OWNERS = "state that only the owners of slices use"
    OUTER = "state that only the owners use, with local steps"
    ROUNDS = "what lanes keep between two rounds of local steps"
    TURN = "of the newest step: what a worker that comes late into its turn sees"
    STEP = "nothing that outlives a step, or that is not made again"

    @property
    def durable(self) -> bool:
        """Is it part of the run's state, which no loss may take away?"""
        return self is not Life.STEP


class ModeRoom(NamedTuple):
    """What the size of a mode's sections depends on, besides the mode. All numbers are bytes, but for counts."""

    lanes: int
    flats: Mapping[str, int]  #: dtype -> trainable parameters of it
    entries: int  #: trainable parameters
    reads: bool = False  #: also the parameters that a push was computed from are kept
    state: int = 0  #: what a lane's optimizer keeps, with local steps
    outer: Mapping[str, int] = {}  #: sections of the owners' optimizer, with local steps


class Measures(NamedTuple):
    """What the size of all sections depends on. All numbers are bytes, but for counts."""

    room: ModeRoom
    rows: int  #: of the board
    slices: int
    buffers: int  #: of the models
    buffers_size: int  #: of one copy of all of them
    state: Mapping[str, int]  #: sections of the optimizer's state
    undo: int  #: what a worker copies before it changes a slice
    fixed: Sequence[int] = ()  #: each tensor that is prepared and not trained
    kept: int = 0  #: both copies of what the script keeps


class Family(NamedTuple):
    """Sections of one kind. A name has parts in capitals, where its sections differ."""

    name: str
    life: Life
    sizes: Callable[[Measures], Mapping[str, int]]  #: its sections and their bytes
    numbers: str  #: what they are: a dtype, or a part of the section's name that is one; empty: the optimizer's own
    writer: str
    whole: str  #: what marks it as whole
    mode: str = ""  #: in which modes it exists: all, or "relaxed", "compensated", "rounds"

    @property
    def head(self) -> str:
        """With what the names of its sections begin."""
        return self.name.partition("/")[0]


def _one(name: str, size: Callable[[Measures], int]) -> Callable[[Measures], Mapping[str, int]]:
    return lambda measures: {name: size(measures)}


def _flats(name: str) -> Callable[[Measures], Mapping[str, int]]:
    return lambda measures: {f"{name}/{dtype}": size for dtype, size in measures.room.flats.items()}


def _lanes(name: str) -> Callable[[Measures], Mapping[str, int]]:
    return lambda measures: {
        f"{name}/{lane}/{dtype}": size for dtype, size in measures.room.flats.items()
        for lane in range(measures.room.lanes)
    }  # fmt: skip


def _state(head: str) -> Callable[[Measures], Mapping[str, int]]:
    return lambda measures: {n: size for n, size in measures.state.items() if n.partition("/")[0] == head}


def _outer(measures: Measures) -> Mapping[str, int]:
    return {f"outer/{name}": size for name, size in measures.room.outer.items() if name != "undo"}


def _outer_undo(measures: Measures) -> Mapping[str, int]:
    return {f"outer/{name}": size for name, size in measures.room.outer.items() if name == "undo"}


def _inner(measures: Measures) -> Mapping[str, int]:
    return {f"inner/{lane}/{turn}": measures.room.state for lane in range(measures.room.lanes) for turn in range(2)}


def _fixed(measures: Measures) -> Mapping[str, int]:
    return {f"fixed/{index}": size for index, size in enumerate(measures.fixed)}


def _kept(measures: Measures) -> Mapping[str, int]:
    return {"kept": measures.kept} if measures.kept else {}


def _buffer_copies(measures: Measures) -> int:
    return measures.buffers_size * (2 + 2 * measures.room.lanes)


_OWNER, _DRIVER = "the slice's owner", "the lane's driver"
_VERSION, _SPAN, _TAG = "the slice's version on the board", "the lane's span on the board", "a tag that is written last"
#: In the order in which they lie in the arena, but for the manifest, which is laid out last.
TABLE: tuple[Family, ...] = (
    Family("board", Life.STEP, _one("board", lambda m: board_bytes(m.room.lanes, m.rows, m.slices)), "int64",
           "one writer a cell; its words that are state travel by themselves (`Board.state_words`)", "each cell"),
    Family("parameters/DTYPE", Life.MODEL, _flats("parameters"), "DTYPE", _OWNER, _VERSION),
    Family("state/KEY/DTYPE", Life.OWNERS, _state("state"), "", _OWNER, _VERSION),
    Family("scalar/KEY/DTYPE", Life.OWNERS, _state("scalar"), "", _OWNER, _VERSION),
    Family("ready", Life.OWNERS, _state("ready"), "uint8", _OWNER, _VERSION),
    Family("undo", Life.STEP, _one("undo", lambda m: m.undo * m.rows), "uint8", "the row's worker", "the undo word"),
    Family("slot/LANE/DTYPE", Life.STEP, _lanes("slot"), "DTYPE", _DRIVER, _SPAN),
    Family("sum/DTYPE", Life.TURN, _flats("sum"), "DTYPE", _OWNER, "the version of the slice's sum on the board"),
    Family("host/DTYPE", Life.STEP, _flats("host"), "DTYPE", _OWNER, "the version that is merged, on the board"),
    Family("present", Life.TURN, _one("present", lambda m: 2 * m.room.lanes * m.room.entries), "uint8", _DRIVER, _SPAN),
    Family("pieces", Life.STEP, _one("pieces", lambda m: 8 * m.room.lanes * m.slices), "int64", "the receiver",
           "each word"),
    Family("buffers", Life.MODEL, _one("buffers", _buffer_copies), "uint8",
           "the owner of the first slice; a lane's record: its driver", "that slice's version; the lane's facts"),
    Family("buffers-changed", Life.STEP,
           _one("buffers-changed", lambda m: 2 * max(1, m.buffers) * m.room.lanes), "uint8", _DRIVER,
           "the lane's facts"),
    Family("buffers-versions", Life.MODEL, _one("buffers-versions", lambda m: 8 * max(1, m.buffers)), "int64",
           "the owner of the first slice", "that slice's version"),
    Family("pushes", Life.STEP, _one("pushes", lambda m: pushes_bytes(m.room.lanes)), "int64",
           "drivers; the owner of the first slice", "the count of commit sets", mode="relaxed"),
    Family("push/LANE/DTYPE", Life.STEP, _lanes("push"), "DTYPE", _DRIVER, "the lane's clock", mode="relaxed"),
    Family("read/LANE/DTYPE", Life.STEP, _lanes("read"), "DTYPE", _DRIVER, "the lane's clock", mode="compensated"),
    Family("push-present", Life.STEP,
           _one("push-present", lambda m: m.room.lanes * max(1, m.room.entries)), "uint8", _DRIVER, "the lane's clock",
           mode="relaxed"),
    Family("outer/KEY", Life.OUTER, _outer, "", _OWNER, _VERSION, mode="rounds"),
    Family("outer/undo", Life.STEP, _outer_undo, "uint8", "the row's worker", "the undo word", mode="rounds"),
    Family(SINCE, Life.ROUNDS, _one(SINCE, lambda m: 8), "int64", "the holder of the memory", "the mode's record",
           mode="rounds"),
    Family("inner/LANE/TURN", Life.ROUNDS, _inner, "uint8", _DRIVER, "the lane's clock", mode="rounds"),
    Family("settings", Life.SCRIPT, _one("settings", lambda m: 3 * CELL * m.rows), "uint8", "the row's worker", _TAG),
    Family("settings-elsewhere", Life.STEP, _one("settings-elsewhere", lambda m: 3 * CELL * m.rows), "uint8",
           "the receiver: what workers of other hosts leave, in mode `exact`", _TAG),
    Family("evaluation", Life.SCRIPT, _one("evaluation", lambda m: TABLE_ROWS * TABLE_WIDTH * 8), "uint8",
           "the worker that computed the batch", _TAG),
    Family("evaluation-names", Life.SCRIPT, _one("evaluation-names", lambda m: NAMES_BYTES), "uint8",
           "any worker, the same", _TAG),
    Family("evaluation-past", Life.SCRIPT, _one("evaluation-past", lambda m: PAST_BYTES), "uint8",
           "any worker, the same", _TAG),
    Family("fixed/INDEX", Life.SCRIPT, _fixed, "", "the first worker, once", "the magic of the board"),
    Family("kept", Life.TURN, _kept, "uint8", "one worker of the host, into the older of two copies", _TAG),
    Family("manifest", Life.STEP, lambda m: {}, "uint8", "every worker, the same", "its place on the board"),
)  # fmt: skip

_WHOLE_NAMES = {one.name: one for one in TABLE}
_HEADS = {one.head: one for one in TABLE if "/" in one.name and one.name not in ("outer/undo", SINCE)}


def family(section: str) -> Family:
    """The family of a section. Raises KeyError for one that is not in the table."""
    return _WHOLE_NAMES.get(section) or _HEADS[section.partition("/")[0]]


def of_life(sections: Iterable[str], *lives: Life) -> list[str]:
    """Those of these sections that live so long, in their order."""
    return [name for name in sections if family(name).life in lives]


def passing(section: str) -> bool:
    """Does this section belong to a mode, so that nothing in it outlives that?"""
    return bool(family(section).mode)


def measure(
    space: Space, room: ModeRoom, rows: int, *, state: Mapping[str, int], undo: int, fixed: Sequence[int] = (),
    kept: int = 0,
) -> Measures:  # fmt: skip
    """What sizes depend on, for the models and the optimizer of a run."""
    slices = len(space.layout.slices)
    return Measures(room, rows, slices, len(space.buffers), space.placed()[1], state, undo, fixed, kept)


def lay_out(measures: Measures, mode: Mode) -> Sections:
    """The arena of a run that is started in this mode, all but its manifest."""
    return _laid(measures, {"", *_modes(measures.room, mode)})


def lay_out_mode(room: ModeRoom, mode: Mode) -> Sections:
    """What a mode needs besides the sections that all modes share."""
    return _laid(Measures(room, 0, 0, 0, 0, {}, 0), _modes(room, mode))


def _laid(measures: Measures, modes: Collection[str]) -> Sections:
    sections = Sections()
    for one in TABLE:
        if one.mode in modes:
            for name, size in one.sizes(measures).items():
                sections.add(name, size)
    return sections


def _modes(room: ModeRoom, mode: Mode) -> set[str]:
    if mode.exact:
        return set()
    return {"relaxed"} | ({"rounds"} if mode.rounds else {"compensated"} if room.reads else set())
