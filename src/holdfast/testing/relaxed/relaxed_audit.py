"""What must hold in relaxed modes, checked apart from the clocks that workers go by, so that none can mend it.

* A push goes into the first commit set that can take it: a commit set takes the push of every lane that has one, and is
  made of fewer lanes than the mode wants only where no other lane could have given anything.
* It takes shares as a whole: a push that is for several lanes counts for all of them, or for none.
* No push is staler than `most_stale`.
* No lane is without progress for long while the state is there: `LaneProgress`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from holdfast.core.sync.modes import Mode, TakenPush
from holdfast.testing.model import Violation

__all__ = ["LaneProgress", "check_commit_set", "check_shares", "most_stale"]

#: Virtual seconds in which every lane gets on, whatever is lost, cut off or slowed: it takes 7.5 at most in the first
#: 3,000 random clusters.
_PATIENCE = 30.0


def most_stale(mode: Mode, lanes: int, steps: int) -> int:
    """How many versions can come between the one that a push was computed from and the one that it goes into.

    Where all lanes are waited for, a version is a step. Else think of a lane that computes its step `s` for long. It
    could still give something, so every version that goes without it has a whole quorum of others, see
    `core.sync.modes.commit_set`. When it began, each of these had `s - bound` pushes applied, or more; until it is
    done, none makes more than `s + bound + 1`. So many pushes there are, and no more versions than quorums among them.
    Without a bound others may make all their steps; asynchronous means just that.

    >>> from holdfast.core.sync.modes import parse
    >>> [most_stale(parse(name), 10, 100) for name in ("exact", "bounded:3", "quorum:9", "async")]
    [0, 63, 17, 900]
    """
    if mode.quorum is None:
        return mode.bound or 0
    each = steps if mode.bound is None else min(steps, 2 * mode.bound + 1)
    return (lanes - 1) * each // mode.quorum


def check_commit_set(
    mode: Mode, found: Sequence[TakenPush], pushed: Sequence[int], waiting: Collection[int], steps: int
) -> None:
    """Was this commit set to be made? `pushed` has each lane's pushes; of lanes in `waiting` the last is not applied.

    `steps` is how many pushes each lane makes.
    """
    gave = {lane for lane, _ in found}
    for lane, step in found:
        if lane not in waiting or step != pushed[lane] - 1 or len(gave) < len(found):
            raise Violation(f"a commit set takes step {step} of lane {lane}, which has pushed {pushed[lane]}")
    for lane in sorted(set(waiting) - gave):
        raise Violation(f"a commit set of {len(found)} pushes leaves out step {pushed[lane] - 1} of lane {lane}")
    if len(found) >= (mode.quorum or len(pushed)):
        return
    taken = [made - (lane in waiting) for lane, made in enumerate(pushed)]
    slowest, bound = min(taken), mode.bound
    for lane, made in enumerate(taken):
        if lane not in gave and made < steps and (bound is None or made - slowest <= bound):
            raise Violation(f"a commit set takes {len(found)} pushes and did not wait for lane {lane}")


def check_shares(found: Sequence[TakenPush], whose: Mapping[int, tuple[int, int]]) -> None:
    """Does this commit set take whole shares? `whose` says of a lane with which first lane, and how many, it pushed."""
    taken = {lane for lane, _ in found}
    for lane in sorted(taken):
        first, lanes = whose.get(lane, (lane, 1))
        if not taken.issuperset(range(first, first + lanes)):
            whole = f"{first} to {first + lanes - 1}"
            raise Violation(f"a commit set takes lanes {sorted(taken)}, and one of its pushes is for {whole}")


class LaneProgress:
    """When each lane last got on: its applied steps were others than they are now."""

    def __init__(self, lanes: int) -> None:
        self._applied, self._since = [-1] * lanes, [0.0] * lanes

    def starved(self, now: float, applied: Sequence[int], steps: int) -> int | None:
        """Take in how many of its `steps` each lane has applied; of lanes that wait too long, the furthest behind."""
        found: int | None = None
        for lane, at in enumerate(applied):
            if at != self._applied[lane]:
                self._applied[lane], self._since[lane] = at, now
            elif at < steps and now - self._since[lane] > _PATIENCE and (found is None or at < applied[found]):
                found = lane
        return found
