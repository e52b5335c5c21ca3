"""Inbound: what comes from another host where lanes need not keep step, and who may send what (see `tender`)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec

from holdfast.core.clocks import Taken
from holdfast.errors import FrameError
from holdfast.exchange.board import Count
from holdfast.exchange.pushes import Record
from holdfast.exchange.tender import Part, Tender
from holdfast.transport.frames import Header, Kind

__all__ = ["FromHome", "Inbound", "ToHome"]

_push = msgspec.msgpack.Decoder(tuple[Taken, Count, Part])
_pushed = msgspec.msgpack.Decoder(tuple[Count, Record])
_slices = msgspec.msgpack.Decoder(tuple[Count, list[Count]])

#: Receives a frame's body into a place, or into a spare one, and returns where it is.
Receive = Callable[[Header, memoryview | None], memoryview]


@dataclass(slots=True)
class ToHome:
    """At the host that holds the state, from one that drives these lanes: pushes."""

    tender: Tender
    lanes: Collection[int]

    def land(self, header: Header, meta: bytearray, receive: Receive) -> bool:
        """Land a frame. False: nobody here can do anything with it before more has come."""
        if header.kind is Kind.PUSH:
            push, version, part = _push.decode(meta)
            receive(header, self.tender.place_for_part(push, version, part, self.lanes))
            return False
        if header.kind is Kind.PUSHED:
            lane, record = _pushed.decode(meta)
            self.tender.land_record(lane, record, receive(header, None), self.lanes)
            return True
        raise FrameError(f"a {header.kind.name} comes to the host that holds the state")


@dataclass(slots=True)
class FromHome:
    """At a mirror, from the host that holds the state: what was published there."""

    tender: Tender
    lanes: Collection[int]  #: driven here
    row: int  #: of a worker over there

    def land(self, header: Header, meta: bytearray, receive: Receive) -> bool:
        """Land a frame. False: nobody here can do anything with it before more has come."""
        if header.kind is Kind.SLICES:
            first, versions = _slices.decode(meta)
            self.tender.land_slices(self.row, first, versions, receive(header, None))
            return False
        if header.kind is Kind.CLOCKS:
            self.tender.mirror(meta, receive(header, None), self.lanes)
            return True
        raise FrameError(f"a {header.kind.name} comes from the host that holds the state")


Inbound = ToHome | FromHome
