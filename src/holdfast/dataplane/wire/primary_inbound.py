"""Inbound: what comes from another host in relaxed modes, and who may send what (see `primary_sync`)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec

from holdfast.core.sync.modes import TakenPush
from holdfast.dataplane.memory.board import Count
from holdfast.dataplane.relaxed.pushes import PushRecord
from holdfast.dataplane.wire.primary_sync import PrimarySync, PushPart
from holdfast.errors import FrameError
from holdfast.transport.frames import Header, Kind

__all__ = ["FromPrimary", "Inbound", "ToPrimary"]

_push = msgspec.msgpack.Decoder(tuple[TakenPush, Count, PushPart])
_pushed = msgspec.msgpack.Decoder(tuple[Count, PushRecord])
_slices = msgspec.msgpack.Decoder(tuple[Count, list[Count]])

#: Receives a frame's body into a place, or into a spare one, and returns where it is.
Receive = Callable[[Header, memoryview | None], memoryview]


@dataclass(slots=True)
class ToPrimary:
    """At the host that holds the state, from one that drives these lanes: pushes."""

    primary_sync: PrimarySync
    lanes: Collection[int]

    def land(self, header: Header, meta: bytearray, receive: Receive) -> bool:
        """Land a frame. False: nobody here can do anything with it before more has come."""
        if header.kind is Kind.PUSH:
            push, version, part = _push.decode(meta)
            receive(header, self.primary_sync.place_for_part(push, version, part, self.lanes))
            return False
        if header.kind is Kind.PUSHED:
            lane, record = _pushed.decode(meta)
            self.primary_sync.land_record(lane, record, receive(header, None), self.lanes)
            return True
        raise FrameError(f"a {header.kind.name} comes to the host that holds the state")


@dataclass(slots=True)
class FromPrimary:
    """At a mirror, from the host that holds the state: what was published there."""

    primary_sync: PrimarySync
    lanes: Collection[int]  #: driven here
    row: int  #: of a worker over there

    def land(self, header: Header, meta: bytearray, receive: Receive) -> bool:
        """Land a frame. False: nobody here can do anything with it before more has come."""
        if header.kind is Kind.SLICES:
            first, versions = _slices.decode(meta)
            self.primary_sync.land_slices(self.row, first, versions, receive(header, None))
            return False
        if header.kind is Kind.CLOCKS:
            self.primary_sync.mirror(meta, receive(header, None), self.lanes)
            return True
        raise FrameError(f"a {header.kind.name} comes from the host that holds the state")


Inbound = ToPrimary | FromPrimary
