"""Which server owns which slice, and when a slice is worth moving. Pure.

Which server owns a slice never changes a result, only how long a version takes: as long as its slowest server,
`max(bytes it owns / its rate)`. So, as with lanes (`core.lanes`):

* `rates` are bytes that a server applies in a second. One that is not measured counts as the median of the others.
* Servers own contiguous runs, so what goes to one of them is a few large pieces. With more servers than slices, or
  where a server is so slow that a single slice on it would hold up all others, some own none.
* Owners change only where they must (a server is gone) or for a real gain, and then around the place in question, not
  everywhere: a slice that moves is a slice that nobody can apply to for a while.
* A model may have very many slices. Neighbours then move together, as a *bundle*: who decides need not know each of
  them, and what says who owns what stays short.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import median

from holdfast.core import slices
from holdfast.core.lanes import filled

__all__ = ["BUNDLES", "bundled", "place", "replaced", "seconds", "unbundled"]

#: So many bundles are enough for any number of servers to have shares within a few percent of what they should have.
BUNDLES = 1024


def bundled(sizes: Sequence[int], most: int = BUNDLES) -> list[int]:
    """Bytes of bundles: of the slices themselves, or of neighbours together where there are more than `most`.

    >>> bundled([8, 8, 8, 8, 4], most=3)
    [16, 16, 4]
    """
    width = -(-len(sizes) // most)
    return [sum(sizes[start : start + width]) for start in range(0, len(sizes), width or 1)]


def unbundled(runs: Sequence[tuple[int, int]], number: int, most: int = BUNDLES) -> tuple[int, ...]:
    """Return slice -> server, of so many slices, from runs (server, bundles) of what `bundled` made of them.

    >>> unbundled([(7, 1), (9, 2)], 5, most=3)
    (7, 7, 9, 9, 9)
    """
    width = -(-number // most)
    owners = [server for server, bundles in runs for _ in range(bundles * width)][:number]
    if len(owners) != number:
        raise ValueError(f"{len(owners)} of {number} slices have an owner")
    return tuple(owners)


def place(sizes: Sequence[int], servers: Sequence[int], rates: Mapping[int, float] | None = None) -> tuple[int, ...]:
    """Return slice -> server: contiguous runs in the order given, as many bytes as each server is fast.

    >>> place([8, 8, 8, 8], [1, 2], {1: 3e6, 2: 1e6})
    (1, 1, 1, 2)
    >>> place([8, 8, 8, 8], [1, 2], {1: 3e6, 2: 1e3})
    (1, 1, 1, 1)
    """
    speed = filled(servers, rates or {})
    chosen = list(servers)
    owners = _shared(sizes, chosen, speed)
    while len(set(speed.values())) > 1 and len(chosen) > 1:  # equal ones share evenly; none of them is too slow
        chosen = [server for server in chosen if server != _slowest(owners, sizes, speed)]
        fewer = _shared(sizes, chosen, speed)
        if seconds(fewer, sizes, speed) >= seconds(owners, sizes, speed):
            break
        owners = fewer
    return owners


def seconds(owners: Sequence[int], sizes: Sequence[int], rates: Mapping[int, float]) -> float:
    """Return how long a version takes: its slowest server's time. Where no rate is known, that is in bytes."""
    return max(_times(owners, sizes, filled(sorted(set(owners)), rates)).values(), default=0.0)


def replaced(
    current: Sequence[int], sizes: Sequence[int], servers: Sequence[int], rates: Mapping[int, float] | None = None,
    *, gain: float,
) -> tuple[tuple[int, ...], str] | None:  # fmt: skip
    """Return other owners and why, or None where the current ones are good enough.

    Good enough: all owners are there, and a version would not become shorter by more than `gain`. Where that does not
    hold, a window around the gap or the slow server is shared anew among those who own in it, as small as will do;
    if none will, everything is.
    """
    speed = filled(servers, rates or {})
    best = place(sizes, servers, speed)
    least = seconds(best, sizes, speed)
    limit = least / (1 - gain)
    owners, reasons = tuple(current), list[str]()
    while (trouble := _trouble(owners, sizes, speed, limit)) is not None:
        held = [size for owner, size in zip(owners, sizes, strict=True) if owner == trouble]
        if trouble not in speed:
            reasons.append(f"server {trouble} is gone, and with it the owner of {len(held)} slices")
        elif not rates:
            reasons.append(f"server {trouble} has {sum(held)} bytes, {least:.0f} would do; no rates are measured yet")
        else:
            reasons.append(_too_slow(trouble, sum(held), speed, least))
        owners = _around(trouble, owners, sizes, speed, limit) or best
    return (owners, "; ".join(reasons)) if reasons else None


def _trouble(
    owners: Sequence[int], sizes: Sequence[int], speed: Mapping[int, float], limit: float
) -> int | None:
    """An owner that is gone, or the slowest one where it is too slow."""
    if gone := [owner for owner in owners if owner not in speed]:
        return gone[0]
    return _slowest(owners, sizes, speed) if seconds(owners, sizes, speed) > limit else None


def _around(
    trouble: int, owners: Sequence[int], sizes: Sequence[int], speed: Mapping[int, float], limit: float
) -> tuple[int, ...] | None:
    """Share a window around one owner's run anew; None where only the whole would do.

    What is settled in one window troubles no other, so this ends: outside nothing changes, inside all keep the limit.
    """
    runs = [(owner, len(list(run))) for owner, run in groupby(owners)]
    if len(runs) > len(set(owners)):
        return None  # somebody owns two runs: not of our making
    middle = next(index for index, (owner, _) in enumerate(runs) if owner == trouble)
    for reach in range(1, len(runs)):
        window = runs[max(middle - reach, 0) : middle + reach + 1]
        if len(window) == len(runs):
            break
        start = sum(length for _, length in runs[: max(middle - reach, 0)])
        stop = start + sum(length for _, length in window)
        there = [owner for owner, _ in window if owner in speed]
        if there:
            shared = place(sizes[start:stop], there, speed)
            if seconds(shared, sizes[start:stop], speed) <= limit:
                return (*owners[:start], *shared, *owners[stop:])
    return None


def _too_slow(server: int, held: int, speed: Mapping[int, float], least: float) -> str:
    rate = speed[server]
    return (
        f"a version should take {least:.3g} s and not {held / rate:.3g} s ({1 - least * rate / held:.0%} less): "
        f"server {server} has {held / 1e6:.3g} MB and applies {rate / 1e6:.3g} MB in a second "
        f"(median {median(speed.values()) / 1e6:.3g} MB)"
    )


def _shared(sizes: Sequence[int], servers: Sequence[int], speed: Mapping[int, float]) -> tuple[int, ...]:
    return slices.shares(sizes, servers, [speed[server] for server in servers])


def _times(owners: Sequence[int], sizes: Sequence[int], speed: Mapping[int, float]) -> dict[int, float]:
    held = dict.fromkeys(owners, 0)
    for owner, size in zip(owners, sizes, strict=True):
        held[owner] += size
    return {owner: total / speed[owner] for owner, total in held.items()}


def _slowest(owners: Sequence[int], sizes: Sequence[int], speed: Mapping[int, float]) -> int | None:
    times = _times(owners, sizes, speed)
    return max(times, key=lambda owner: (times[owner], -owner), default=None)
