"""The primary sync: what is carried between hosts in relaxed modes, and where it lies in the arena. No torch.

One host holds the state: the *primary*. Its owners take pushes and publish versions, as on one machine. The others
mirror what workers compute with:

    primary                                            every other host
    push slots, clocks    ◄── pushes of its lanes ──  push slots, clocks of its own lanes
    parameters, commit sets   ── slices, then clocks ──►  parameters, clocks of all lanes

A push counts from the store that moves its lane's clock at the primary, which is made after all of it is there; a share
of several lanes is one push, and travels once. What is under way when a generation ends is computed again, by whoever
drives the lane then. Clocks are sent after the parameters of the version they tell of, so nobody computes with older
ones than its mode allows.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import msgspec

from holdfast.core.sync.modes import TakenPush
from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.memory.board import StepFacts, Word
from holdfast.dataplane.memory.buffer_records import BufferRecords
from holdfast.dataplane.relaxed.pushes import Pushes, PushRecord, ToldClocks
from holdfast.errors import FrameError

__all__ = ["PrimarySync", "Published", "PushPart", "first_cut", "inherit", "recut"]

_told = msgspec.msgpack.Decoder(tuple[ToldClocks, tuple[float, Word, float, Word]])
_encode = msgspec.msgpack.Encoder().encode


class PushPart(NamedTuple):
    """Bytes [begin, end) of a section that belong to a push."""

    section: str
    begin: int
    end: int


class Published(NamedTuple):
    """What is published beside parameters, at one moment."""

    version: int
    clocks: bytes  #: of all lanes, and the facts of the version
    buffers: bytes


class PrimarySync:
    """One arena of a relaxed mode, or a mirror of one."""

    def __init__(self, view: ArenaView) -> None:
        manifest = view.manifest
        self.view, self.pushes = view, Pushes(view.section("pushes"), manifest.lanes)
        self._records = BufferRecords(manifest, view.section, "push-present")
        self._buffers, self._newest = view.section("buffers"), view.section("buffers-versions")

    # ------------------------------------------------------------ pushes

    def parts(self, push: TakenPush, version: int, most: int) -> Iterator[PushPart]:
        """All that a push consists of, but for its record, in parts of at most `most` bytes."""
        for name in self._sections(push, version):
            size = self.view.manifest.sections[name][1]
            for begin in range(0, size, most):
                yield PushPart(name, begin, min(begin + most, size))

    def part(self, part: PushPart) -> memoryview:
        """The bytes of a part, to be sent."""
        return self.view.section(part.section)[part.begin : part.end]

    def place_for_part(self, push: TakenPush, version: int, part: PushPart, lanes: Collection[int]) -> memoryview:
        """Where a part goes that comes from the host which drives these lanes."""
        self._check(push, lanes)
        size = self.view.manifest.sections.get(part.section, (0, -1))[1]
        if part.section not in self._sections(push, version) or not 0 <= part.begin < part.end <= size:
            raise FrameError(f"it brings bytes {part.begin} to {part.end} of {part.section!r} for lane {push.lane}")
        return self.part(part)

    def record(self, push: TakenPush) -> tuple[PushRecord, bytes]:
        """What a push says besides its gradient: its record; its flags and the buffers it changed."""
        body = self._records.pack(self._records.at(push.step, push.lane), push.lane)
        return self.pushes.record(push.lane), b"".join(body)

    def land_record(self, lane: int, record: PushRecord, data: memoryview, lanes: Collection[int]) -> None:
        """All of a push is here: let it count."""
        push = TakenPush(lane, record.step)
        for other in range(lane, lane + max(1, record.lanes)):
            self._check(TakenPush(other, record.step), lanes)
        if not record.lanes:
            raise FrameError(f"it brings push {record.step} of lane {lane} by itself, which lies with another lane's")
        if len(data) != self._records.size(data):
            raise FrameError(f"the record of lane {lane} has {len(data)} bytes")
        self._records.unpack(self._records.at(push.step, lane), lane, data)
        self.pushes.push(lane, record)

    def _sections(self, push: TakenPush, version: int) -> list[str]:
        """Where a push lies: its gradient; the parameters it was computed from, where stale pushes are compensated; and
        with local steps the state that the lane's next round begins with.
        """
        manifest = self.view.manifest
        own = f"push/{push.lane}/", f"read/{push.lane}/"
        inner = f"inner/{push.lane}/{(version + 1) % 2}"
        return [name for name in manifest.sections if name.startswith(own) or name == inner]

    def _check(self, push: TakenPush, lanes: Collection[int]) -> None:
        if push.lane not in lanes:
            raise FrameError(f"it pushes for lane {push.lane}, which is not its own")
        if push.step != self.pushes.pushed(push.lane):
            raise FrameError(
                f"it brings push {push.step} of lane {push.lane}, where {self.pushes.pushed(push.lane)} is due"
            )

    # ------------------------------------------------------------ parameters

    def copied(self, slice_: int) -> tuple[int, bytes] | None:
        """(version, bytes) of a slice, whole; None while its owner is at it."""
        board = self.view.board
        version = board.versions()[slice_]
        if slice_ in board.torn():
            return None
        data = bytes(self.view.run("parameters", slice_, slice_ + 1))
        return (version, data) if slice_ not in board.torn() and board.versions()[slice_] == version else None

    def land_slices(self, row: int, first: int, versions: list[int], data: memoryview) -> None:
        """Put slices in place, each as a whole; `row` is that of a worker at the primary."""
        last = first + len(versions)
        self.view.check_run(first, last)
        at, here = 0, self.view.board.versions()
        places = [self.view.run("parameters", slice_, slice_ + 1) for slice_ in range(first, last)]
        if sum(place.nbytes for place in places) != len(data):
            raise FrameError(f"slices {first} to {last - 1} have {len(data)} bytes")
        for slice_, version in zip(range(first, last), versions, strict=True):
            if version < here[slice_]:
                raise FrameError(f"slice {slice_} would go back from version {here[slice_]} to {version}")
        for slice_, version, place in zip(range(first, last), versions, places, strict=True):
            self.view.board.land_slice(row, slice_, version, _copying(place, data[at : at + place.nbytes]))
            at += place.nbytes

    # ------------------------------------------------------------ clocks

    def published(self) -> Published:
        """How far everything is here, where the state is."""
        board, pushes, size = self.view.board, self.pushes, self.view.manifest.buffers_size
        while True:
            version = pushes.shown(min(board.versions()))
            told = pushes.told(version)
            facts = board.step_facts(version)
            # The owner of the first slice may be merging those of the next version, and has said so of some.
            newest = array("q", [min(at, version) for at in self._newest.cast("q")]).tobytes()
            buffers = newest + bytes(self._buffers[version % 2 * size : (version % 2 + 1) * size])
            if told is not None and pushes.shown(min(board.versions())) == version:
                return Published(version, _encode([told, facts]), buffers)

    def mirror(self, clocks: bytes | bytearray | memoryview, data: memoryview, mine: Collection[int]) -> ToldClocks:
        """Show what another host has told; the clocks of `mine` are this host's to move. Raises MsgspecError.

        Buffers come with the first clocks of a version.
        """
        told, facts = _told.decode(clocks)
        size, head, lanes = self.view.manifest.buffers_size, len(self._newest), self.view.manifest.lanes
        if len(data) not in (0, head + size) or {len(told.pushed), len(told.applied), len(told.taken)} != {lanes}:
            raise FrameError(f"clocks of {len(told.pushed)} lanes with {len(data)} bytes of buffers")
        if told.version < (here := self.pushes.published or 0):
            raise FrameError(f"the clocks would go back from version {here} to {told.version}")
        if len(data):
            for copy in (0, 1):  # whichever of the two a worker takes
                self._buffers[copy * size : (copy + 1) * size] = data[head:]
            self._newest[:] = data[:head]
        self.view.board.put_step(told.version, StepFacts(*facts))
        self.pushes.mirror(told, mine)
        return told

    # ------------------------------------------------------------ replicas

    def cut(self, version: int) -> bytes:
        """What a replica of `version` needs besides sections, while nobody goes on from it."""
        while (cut := self.cut_now(version)) is None:
            time.sleep(0)  # a pass is about to begin
        return cut

    def cut_now(self, version: int) -> bytes | None:
        """The same; None while a pass is about to begin."""
        told = self.pushes.told(version)
        return None if told is None else _encode([told, self.view.board.step_facts(version)])

    @staticmethod
    def version_of(cut: bytes) -> int:
        """Which version a cut is of. Raises FrameError."""
        try:
            return _told.decode(cut)[0].version
        except msgspec.MsgspecError as error:
            raise FrameError(f"its clocks are none: {error}") from None


def first_cut(view: ArenaView, version: int, step: int) -> bytes:
    """What a replica needs besides sections where a mode begins with `version`, when the run has made so many steps."""
    return _encode([_first(version, step, view.manifest.lanes), view.board.step_facts(version)])


def recut(cut: bytes, step: int) -> bytes:
    """The same version, where another mode begins with it: no lane has done anything in that one."""
    told, facts = _told.decode(cut)
    return _encode([_first(told.version, step, len(told.pushed)), facts])


def _first(version: int, step: int, lanes: int) -> ToldClocks:
    none = [0] * lanes
    return ToldClocks(version, 0, 0, step, step, none, none, none)


def inherit(view: ArenaView, cut: bytes) -> None:
    """The sections of a replica are in place: this host holds the state from now on, and mirrors nothing.

    In exact there are no clocks.
    """
    told, facts = _told.decode(cut)
    if view.manifest.relaxed:
        PrimarySync(view).pushes.inherit(told)
    view.board.put_step(told.version, StepFacts(*facts))
    view.board.inherit(told.version)


def _copying(place: memoryview, data: memoryview) -> Callable[[], None]:
    def put() -> None:
        place[:] = data

    return put
