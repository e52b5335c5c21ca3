"""Outbound: what goes from one host to another in relaxed modes (see `primary_sync`).

Three kinds of legs, for a sender that takes turns over them. To the primary go pushes, from it what is published;
between two others only where their workers stand, settings, and results of evaluations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from holdfast.core.sync.mirroring import to_mirror, to_primary
from holdfast.core.sync.modes import TakenPush
from holdfast.core.transfers import runs
from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.wire.packing import Buffers, Packer, framed
from holdfast.dataplane.wire.primary_sync import PrimarySync, Published
from holdfast.dataplane.wire.sender import SenderView
from holdfast.transport.frames import Kind, pack
from holdfast.transport.stream import Stream

__all__ = ["MirrorQueue", "NoQueue", "ToPrimaryQueue"]

_encode = msgspec.msgpack.Encoder().encode


@dataclass(slots=True)
class NoQueue:
    """To a host that neither holds the state nor needs it from here."""

    host: int
    view: ArenaView
    stream: Stream
    packer: Packer
    _loads: deque[Buffers] = field(default_factory=deque)  #: what is due, in order; each is sent in one go

    def carry(self, sight: SenderView) -> bool:
        """Send the next load. False: nothing is due. Raises OSError when the other host is gone."""
        if not self._loads:
            news = self.packer.changes() + self.packer.where(sight.rows)
            if news:
                self._loads.append(news)
            self.look()
        if self._loads:
            self.stream.send(*self._loads.popleft())
            return True
        return False

    def look(self) -> None:
        """Find out what else is due."""

    def load_beside(self, kind: Kind, meta: bytes, body: bytes) -> None:
        """Have a frame sent with what goes beside gradients or parameters."""
        self._loads.append(framed(kind, self.packer.generation, meta, body))

    def load(self, kind: Kind, meta: bytes, *bodies: bytes | memoryview) -> None:
        """Have a frame sent."""
        size = sum(len(body) for body in bodies)
        self._loads.append([pack(kind, self.packer.generation, meta, size), *(body for body in bodies if len(body))])


@dataclass(slots=True)
class ToPrimaryQueue(NoQueue):
    """To the host that holds the state: pushes of the lanes that are driven here, each in its order."""

    primary_sync: PrimarySync = field(kw_only=True)
    sent: dict[int, int] = field(kw_only=True)  #: lane driven here -> its pushes that the primary has
    op: int = field(kw_only=True)  #: in this pass
    most: int = field(kw_only=True)  #: bytes in one frame

    def look(self) -> None:
        """Pushes that were made since."""
        pushes, sent = self.primary_sync.pushes, self.sent
        if pushes.op != self.op:  # all of the last pass have been applied, or there would be no other
            self.op = pushes.op
            sent.update(dict.fromkeys(sent, 0 if self.view.manifest.rounds else pushes.resumed))
        pushed = pushes.all_pushed()
        for push in to_primary(sent, {lane: pushed[lane] for lane in sent}):
            if pushes.record(push.lane).lanes:  # else it goes with another lane's
                self._push(push)
            sent[push.lane] += 1

    def _push(self, push: TakenPush) -> None:
        record, body = self.primary_sync.record(push)
        for part in self.primary_sync.parts(push, record.version, self.most):
            self.load(Kind.PUSH, _encode([push, record.version, part]), self.primary_sync.part(part))
        self.load_beside(Kind.PUSHED, _encode([push.lane, record]), body)


@dataclass(slots=True)
class MirrorQueue(NoQueue):
    """From the host that holds the state: slices that are newer than what the other one has, then the clocks."""

    primary_sync: PrimarySync = field(kw_only=True)
    most: int = field(kw_only=True)
    sent: list[int] = field(kw_only=True)  #: slice -> version that went
    _told: bytes = b""
    _buffered: int = -1  #: version of the buffers that went
    _next: Published | None = None  #: what is to be told as soon as all slices of its version have gone

    def look(self) -> None:
        """What was published since. The clocks go last: all slices of their version are there before them."""
        if self._next is None:
            found = self.primary_sync.published()
            self._next = found if found.clocks != self._told else None
        next_ = self._next
        due = to_mirror(self.view.board.versions(), self.sent, None if next_ is None else next_.version)
        if next_ is not None and due.clocks:
            self.load_beside(Kind.CLOCKS, next_.clocks, next_.buffers if next_.version > self._buffered else b"")
            self._told, self._buffered, self._next = next_.clocks, next_.version, None
        elif due.slices:
            self._publish(due.slices)

    def _publish(self, slices: Sequence[int]) -> None:
        """A run of them: while it is on its way, newer ones may take the place of the rest."""
        manifest = self.view.manifest
        first, last = next(runs(slices, manifest.spaces(), manifest.sizes(), self.most))
        copies: list[tuple[int, bytes]] = []
        for slice_ in range(first, last):
            # Its owner is at it, and rings when it is done. It may be dead, too, and then nobody rings: waiting for it
            # here would be for ever, and keep this generation from ending.
            if (copy := self.primary_sync.copied(slice_)) is None:
                break
            copies.append(copy)
        if copies:
            versions = [version for version, _ in copies]
            self.sent[first : first + len(copies)] = versions
            self.load(Kind.SLICES, _encode([first, versions]), *(data for _, data in copies))
