"""What is carried between hosts in relaxed modes, and when it may be: the rules of the primary sync. Pure.

One host, the primary, holds the state. Pushes go to it, each lane's in order; slices go from it, and after them the
clocks that tell of them; and where there are replicas, each version goes to them before the next one is decided. The
peer session (`dataplane.wire.primary_sync`, `outbound`, `replica`) and the simulation (`testing.relaxed_state`) both go
by this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.core.sync.modes import TakenPush

__all__ = ["Due", "copied", "may_decide", "to_mirror", "to_primary"]


def to_primary(sent: Mapping[int, int], pushed: Mapping[int, int]) -> list[TakenPush]:
    """The pushes that are to go primary next, one of each lane: where `pushed` were made, and `sent` have gone.

    >>> to_primary({0: 2, 3: 1}, {0: 2, 3: 4})
    [TakenPush(lane=3, step=1)]
    """
    return [TakenPush(lane, gone) for lane, gone in sent.items() if gone < pushed[lane]]


class Due(NamedTuple):
    """What is to go to a mirror next."""

    slices: tuple[int, ...] = ()
    clocks: bool = False


def to_mirror(versions: Sequence[int], sent: Sequence[int], telling: int | None) -> Due:
    """What is to go to a mirror that has the slices as they were `sent`; `telling` is the version of news to be told.

    Clocks go when every slice of their version has gone, or a later one: nobody computes with older parameters than
    its clocks say. While there is nothing to tell, whatever is newer goes.

    >>> to_mirror([3, 2], [1, 2], telling=2), to_mirror([3, 2], [3, 2], telling=2)
    (Due(slices=(0,), clocks=False), Due(slices=(), clocks=True))
    >>> to_mirror([3, 2], [2, 2], telling=None)
    Due(slices=(0,), clocks=False)
    """
    newer = tuple(at for at, (version, gone) in enumerate(zip(versions, sent, strict=True)) if version > gone)
    if telling is None:
        return Due(newer)
    owed = tuple(at for at in newer if sent[at] < telling)
    return Due(owed) if owed else Due(clocks=True)


def copied(versions: Sequence[int], last: int, *, decided: bool) -> int | None:
    """The version that is to be copied to replicas now; None: there is none. `last` is the one that they have.

    It is whole, and nothing that leads on from it is `decided`: so it stands still until they hold it. But for one that
    was shown before the generation began: that may be gone on from at any time, and then its copy is given up.

    >>> copied([3, 3], 2, decided=False), copied([3, 3], 3, decided=False), copied([4, 3], 2, decided=True)
    (3, None, None)
    """
    version = min(versions)
    return version if version != last and max(versions) == version and not decided else None


def may_decide(versions: Sequence[int], *, decided: bool, free: bool) -> bool:
    """May it be settled which pushes lead on from the version at hand? Not before all slices, and replicas, have it.

    It is `free` of replicas when they hold it, or somebody has seen it before they were there.

    >>> may_decide([3, 3], decided=False, free=True), may_decide([3, 3], decided=False, free=False)
    (True, False)
    """
    return free and not decided and max(versions) == min(versions)
