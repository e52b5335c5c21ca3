"""Payloads: which bytes of a client's memory belong to a request, and how they travel between hosts. Pure.

A request speaks of up to two places; they lie in one stretch of the client's memory, its payload. Whoever receives the
payload puts it somewhere else, and the request then speaks of that (`moved`).
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import msgspec

from holdfast.errors import UsageError
from holdfast.store.heap import Extent
from holdfast.store.messages import Init, JoinRound, Open, Pull, PushRequest, Request, Say

__all__ = ["LONGEST_RUN", "Payload", "is_light", "moved", "payload_of", "run_length"]

#: Bytes that travel in one go, at most; and at least, where there are as many.
LONGEST_RUN, _SHORTEST_RUN = 2**20, 2**16
#: A value is cut into so many runs: what a server makes of one comes back while the next is on its way, so the last
#: one alone is waited for without use of the line.
_RUNS = 64
_PAGE = 4096  #: what a run is a multiple of: so it ends between two numbers

#: Bytes of a value for which a request may wait a moment, to travel with others: written in less time than sent.
_LIGHT = 2**16

_Asking = TypeVar("_Asking", bound=Request)


class Payload(NamedTuple):
    """A stretch of memory; the first `sent` bytes of it go out with the request, the rest is for the answer."""

    place: Extent
    sent: int


def run_length(size: int) -> int:
    """Into pieces of how many bytes a value of `size` bytes is cut.

    >>> run_length(100), run_length(10_000_000), run_length(10**9)
    (65536, 155648, 1048576)
    """
    return min(LONGEST_RUN, max(_SHORTEST_RUN, size // _RUNS // _PAGE * _PAGE))


def is_light(message: Say) -> bool:
    """Is it worth waiting for others to travel with?"""
    if not isinstance(message, Open | Init | PushRequest | Pull | JoinRound):
        return False
    payload = payload_of(message)
    return payload is None or payload.sent <= _LIGHT


def payload_of(request: Request) -> Payload | None:
    """What goes along with a request; None: nothing does. Raises UsageError where that cannot be."""
    match request:
        case PushRequest(value=value, rows=None) | Init(value=value):
            return Payload(value, value.size)
        case PushRequest(value=value, rows=Extent() as rows):
            whole = _stretch(rows, value)
            return Payload(whole, whole.size)
        case Pull(rows=Extent() as rows, into=Extent() as into):
            return Payload(_stretch(rows, into), rows.size)
        case JoinRound(value=Extent() as value):
            return Payload(value, value.size)
    return None


def moved(request: _Asking, old: Extent, new: Extent) -> _Asking:
    """The same request, when its payload lies at `new` instead of `old`."""

    def there(place: Extent | None) -> Extent | None:
        return (
            None if place is None else Extent(new.run, new.length, place.offset - old.offset + new.offset, place.size)
        )

    match request:
        case PushRequest(value=value, rows=rows):
            return msgspec.structs.replace(request, value=there(value), rows=there(rows))
        case Pull(rows=rows, into=into):
            return msgspec.structs.replace(request, rows=there(rows), into=there(into))
        case Init(value=value) | JoinRound(value=value):
            return msgspec.structs.replace(request, value=there(value))
    return request


def _stretch(first: Extent, last: Extent) -> Extent:
    if first.run != last.run or first.length != last.length or not 0 <= first.size <= last.offset - first.offset:
        raise UsageError(f"{first} and {last} are no stretch of one memory. Both sides must be of one version.")
    return Extent(first.run, first.length, first.offset, last.offset + last.size - first.offset)
