"""State parts: a state on its way over a control connection, in pieces that other messages pass between. No torch.

A head says what is coming, parts bring the bytes of sections, an end says that all are through. Each part has a
checksum; one that has only zeros is sent without them.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from holdfast.checkpoint.capture import BOARD, CLOCKS, Progress, State, Taken
from holdfast.config.limits import AGENT
from holdfast.dataplane.memory.manifest import Manifest
from holdfast.dataplane.memory.snapshot import Snapshot
from holdfast.errors import FrameError
from holdfast.hosts.orders import StateEnd, StateHead, StatePart

__all__ = ["StateParts", "cut_state", "cut_taken", "send_parts", "state_of_parts", "taken_of"]

_Head = TypeVar("_Head")


class _TakenHead(NamedTuple):
    """What the head of a state says that was taken there."""

    manifest: Manifest
    version: int
    at: Progress
    held: float
    waited: float


class _StateHead(NamedTuple):
    """What the head of a state says that is to be put in place there."""

    ended: bool
    where: str


def cut_taken(number: int, taken: Taken) -> Iterator[StateHead | StatePart | StateEnd]:
    """The parts of a state that was taken here."""
    snapshot = taken.snapshot
    head = _TakenHead(taken.manifest, snapshot.version, taken.at, snapshot.held, snapshot.waited)
    sections = {**snapshot.sections, BOARD: memoryview(snapshot.words), CLOCKS: memoryview(snapshot.clocks)}
    yield from _cut(number, msgspec.msgpack.encode(head), sections)


def cut_state(state: State) -> Iterator[StateHead | StatePart | StateEnd]:
    """The parts of a state that is to be put in place elsewhere."""
    head = _StateHead(state.ended, state.where)
    sections = {**state.sections, BOARD: state.words, CLOCKS: memoryview(state.clocks)}
    yield from _cut(0, msgspec.msgpack.encode(head), sections)


def _cut(number: int, head: bytes, sections: Mapping[str, memoryview]) -> Iterator[StateHead | StatePart | StateEnd]:
    size = AGENT.state_piece
    zeros = bytes(size)
    yield StateHead(number, head, {name: section.nbytes for name, section in sections.items()})
    for name, section in sections.items():
        for at in range(0, section.nbytes, size):
            data = bytes(section[at : at + size])
            there = b"" if data == zeros[: len(data)] else data
            yield StatePart(number, name, at, len(data), there, zlib.crc32(there))
    yield StateEnd(number)


def send_parts(
    parts: Iterator[StateHead | StatePart | StateEnd], send: Callable[[StateHead | StatePart | StateEnd], bool],
    backlog: Callable[[], int], stopped: Callable[[], bool],
) -> None:  # fmt: skip
    """Send them, never much before the other side takes them: other messages wait for what is on its way."""
    for part in parts:
        while backlog() > AGENT.state_backlog:
            if stopped():
                return
            time.sleep(AGENT.state_poll)
        if stopped() or not send(part):
            return


class StateParts:
    """The parts of one state as they come in.

    Args:
        number: of what was asked for.
        room: where a section of so many bytes goes.
    """

    def __init__(self, number: int, room: Callable[[str, int], memoryview]) -> None:
        self.number, self._room = number, room
        self.head = b""
        self.sections: dict[str, memoryview] = {}
        self.whole = False  #: all that the head has announced is here
        self._missing = 0  # bytes

    def take(self, part: StateHead | StatePart | StateEnd) -> bool:
        """Take one; says whether it was the last. Raises FrameError."""
        match part:
            case StateHead(_, head, sizes):
                if min(sizes.values(), default=0) < 0 or sum(sizes.values()) > AGENT.state_bytes:
                    raise FrameError(f"it announces a state of {sum(sizes.values())} bytes")
                self.head, self._missing = head, sum(sizes.values())
                try:
                    self.sections = {name: self._room(name, size) for name, size in sizes.items()}
                except (OSError, MemoryError) as error:
                    raise FrameError(f"there is no room here for a state of {sum(sizes.values())} bytes") from error
            case StatePart(_, name, at, size, data, checksum):
                place = self.sections.get(name, memoryview(b""))
                if not 0 <= at < at + size <= place.nbytes or len(data) not in (0, size):
                    raise FrameError(f"it brings bytes {at} to {at + size} of {name!r}, which has {place.nbytes}")
                if zlib.crc32(data) != checksum:
                    raise FrameError(f"the checksum of {name!r} from byte {at} on is wrong")
                place[at : at + size] = data or bytes(size)
                self._missing -= size
            case StateEnd():
                self.whole = bool(self.head) and self._missing == 0
                return True
        return False


def taken_of(parts: StateParts) -> Taken:
    """What was taken elsewhere. Raises FrameError."""
    head = _head(parts, _TakenHead)
    words, clocks, sections = _told_apart(parts)
    return Taken(head.manifest, Snapshot(head.version, words, clocks, sections, head.held, head.waited), head.at)


def state_of_parts(parts: StateParts) -> State:
    """What is to be put in place here. Raises FrameError."""
    head = _head(parts, _StateHead)
    words, clocks, sections = _told_apart(parts)
    return State(sections, memoryview(words), clocks, head.ended, head.where)


def _head(parts: StateParts, kind: type[_Head]) -> _Head:
    try:
        return msgspec.msgpack.decode(parts.head, type=kind)
    except msgspec.MsgspecError as error:
        raise FrameError(f"the head of a state makes no sense: {error}") from None


def _told_apart(parts: StateParts) -> tuple[bytes, bytes, dict[str, memoryview]]:
    """The board's words, the clocks, and the sections."""
    sections = dict(parts.sections)
    try:
        return bytes(sections.pop(BOARD)), bytes(sections.pop(CLOCKS)), sections
    except KeyError as error:
        raise FrameError(f"a state without {error}") from None
