"""Parcels: which bytes of a client's memory belong to a request, and how they travel between hosts. Pure.

A request speaks of up to two places; they lie in one stretch of the client's memory, its parcel. Whoever receives the
parcel puts it somewhere else, and the request then speaks of that (`moved`).
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import msgspec

from holdfast.errors import UsageError
from holdfast.store.heap import Place
from holdfast.store.messages import Init, Meet, Open, Pull, Push, Request, Say

__all__ = ["LONGEST_RUN", "Parcel", "is_light", "moved", "parcel_of", "run_length"]

#: Bytes that travel in one go, at most; and at least, where there are as many.
LONGEST_RUN, _SHORTEST_RUN = 2**20, 2**16
#: A value is cut into so many runs: what a server makes of one comes back while the next is on its way, so the last
#: one alone is waited for without use of the line.
_RUNS = 64
_PAGE = 4096  #: what a run is a multiple of: so it ends between two numbers

#: Bytes of a value for which a request may wait a moment, to travel with others: written in less time than sent.
_LIGHT = 2**16

_Asking = TypeVar("_Asking", bound=Request)


class Parcel(NamedTuple):
    """A stretch of memory; the first `sent` bytes of it go out with the request, the rest is for the answer."""

    place: Place
    sent: int


def run_length(size: int) -> int:
    """Into pieces of how many bytes a value of `size` bytes is cut.

    >>> run_length(100), run_length(10_000_000), run_length(10**9)
    (65536, 155648, 1048576)
    """
    return min(LONGEST_RUN, max(_SHORTEST_RUN, size // _RUNS // _PAGE * _PAGE))


def is_light(message: Say) -> bool:
    """Is it worth waiting for others to travel with?"""
    if not isinstance(message, Open | Init | Push | Pull | Meet):
        return False
    parcel = parcel_of(message)
    return parcel is None or parcel.sent <= _LIGHT


def parcel_of(request: Request) -> Parcel | None:
    """What goes along with a request; None: nothing does. Raises UsageError where that cannot be."""
    match request:
        case Push(value=value, rows=None) | Init(value=value):
            return Parcel(value, value.size)
        case Push(value=value, rows=Place() as rows):
            whole = _stretch(rows, value)
            return Parcel(whole, whole.size)
        case Pull(rows=Place() as rows, into=Place() as into):
            return Parcel(_stretch(rows, into), rows.size)
        case Meet(value=Place() as value):
            return Parcel(value, value.size)
    return None


def moved(request: _Asking, old: Place, new: Place) -> _Asking:
    """The same request, when its parcel lies at `new` instead of `old`."""

    def there(place: Place | None) -> Place | None:
        return None if place is None else Place(new.run, new.length, place.offset - old.offset + new.offset, place.size)

    match request:
        case Push(value=value, rows=rows):
            return msgspec.structs.replace(request, value=there(value), rows=there(rows))
        case Pull(rows=rows, into=into):
            return msgspec.structs.replace(request, rows=there(rows), into=there(into))
        case Init(value=value) | Meet(value=value):
            return msgspec.structs.replace(request, value=there(value))
    return request


def _stretch(first: Place, last: Place) -> Place:
    if first.run != last.run or first.length != last.length or not 0 <= first.size <= last.offset - first.offset:
        raise UsageError(f"{first} and {last} are no stretch of one memory. Both sides must be of one version.")
    return Place(first.run, first.length, first.offset, last.offset + last.size - first.offset)
