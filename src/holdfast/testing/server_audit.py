"""What must hold in a cluster of workers and servers, checked apart from what the cluster goes by: none can mend it.

* A lane is never further ahead of the slowest than its mode allows, nor has more than one push that is not applied.
* What a push of step `s` is computed from has all that every lane pushed before step `s - bound`.
* A push goes into the first commit set that can take it: a commit set takes the push of every lane that has one, and is
  made of fewer lanes than the mode wants only where no other lane could have given anything.
* A slice applies every commit set once, in order, and all slices come to the same value in every version.
* No push is staler than `most_stale`.
* No lane is without progress for longer than the cluster's troubles and pauses explain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from holdfast.core.sync import modes
from holdfast.core.sync.modes import Clocks, Mode, TakenPush
from holdfast.testing.model import Violation
from holdfast.testing.server_pushes import Push, Record

__all__ = ["Audit", "most_stale"]


def most_stale(mode: Mode, lanes: int, steps: int) -> int:
    """How many versions can come between the one that a push was computed from and the one that it goes into.

    Where all lanes are waited for, a version is a step. Else think of a lane that computes its step `s` for long. It
    could still give something, so every version that goes without it has a whole quorum of others, see
    `core.sync.modes.commit_set`. When it began, each of these had `s - bound` pushes applied, or more; until it is
    done, none makes more than `s + bound + 1`. So many pushes there are, and no more versions than quorums among them.
    Without a bound others may make all their steps; asynchronous means just that.

    >>> [most_stale(modes.parse(name), 10, 100) for name in ("exact", "bounded:3", "quorum:9", "async")]
    [0, 63, 17, 900]
    """
    if mode.quorum is None:
        return mode.bound or 0
    each = steps if mode.bound is None else min(steps, 2 * mode.bound + 1)
    return (lanes - 1) * each // mode.quorum


class Audit:
    """Is told what happens, and raises a `Violation` where it must not."""

    def __init__(self, mode: Mode, lanes: int, slices: int, steps: int) -> None:
        self.mode, self.steps = mode, steps
        self.longest = 0.0  #: seconds that a lane was without progress, at most
        self.furthest = 0  #: steps that a lane was ahead of the slowest when it began a unit, at most
        self.stalest = 0  #: versions between the one that a push was computed from and the one that it went into
        self._most_stale = most_stale(mode, lanes, steps)
        self._pushed, self._taken, self._applied = ([0] * lanes for _ in range(3))
        self._slowest = 0
        self._reached = [0] * slices  # the version of each slice
        self._commit_sets: list[tuple[TakenPush, ...]] = []
        self._least = [0]  # version -> pushes in it, of the lane that has fewest
        self._due: defaultdict[int, dict[int, int]] = defaultdict(dict)  # commit set -> lane -> the step that it takes
        self._advanced = [0.0] * lanes  # when something of the lane was last applied
        self._done: list[tuple[list[Push], int]] = []  # what each version took and gave, on the slice that had it first

    def begun(self, push: Push) -> None:
        """A lane begins a unit."""
        ahead, bound = push.step - self._slowest, self.mode.bound
        if bound is not None and ahead > bound:
            raise Violation(f"{push} begins {ahead} steps ahead of the slowest: the bound is {bound}")
        self.furthest = max(self.furthest, ahead)

    def arrived(self, push: Push) -> None:
        """Some slices have a push that they had not."""
        if push.step > self._applied[push.lane]:
            raise Violation(f"there is no room for {push}: only {self._applied[push.lane]} steps are applied")

    def completed(self, push: Push) -> None:
        """All slices have a push."""
        lane, step = push.lane, push.step
        if step != self._pushed[lane]:
            raise Violation(f"{push} counts, and the lane has {self._pushed[lane]} pushes")
        self._due[len(self._commit_sets) + step - self._taken[lane]][lane] = step
        self._pushed[lane] += 1

    def decided(self, made: tuple[TakenPush, ...]) -> None:
        """It is settled which pushes the next version takes."""
        number = len(self._commit_sets)
        due = self._due.pop(number, {})
        for lane, step in made:
            if due.pop(lane, None) != step:
                raise Violation(f"version {number} takes step {step} of lane {lane}, {self._at(lane)}")
            self._taken[lane] += 1
        for lane, step in due.items():
            raise Violation(f"version {number} leaves out step {step} of lane {lane}, {self._at(lane)}")
        if len(made) < (self.mode.quorum or len(self._taken)):
            self._check_short(number, made)
        self._commit_sets.append(made)
        self._least.append(min(self._taken))

    def _check_short(self, number: int, made: tuple[TakenPush, ...]) -> None:
        """A commit set of few lanes: did the others have nothing to give, and nothing to compute?"""
        before, gave = list(self._taken), {lane for lane, _ in made}
        for lane in gave:
            before[lane] -= 1
        slowest, bound = min(before), self.mode.bound
        for lane, taken in enumerate(before):
            if lane not in gave and taken < self.steps and (bound is None or taken - slowest <= bound):
                raise Violation(f"version {number} takes {len(made)} pushes and did not wait for lane {lane}")

    def published(self, index: int, record: Record, used: list[Push]) -> None:
        """A slice has its next version."""
        version = self._reached[index]
        if version == len(self._done):
            if version >= len(self._commit_sets) or [push[:2] for push in used] != list(self._commit_sets[version]):
                raise Violation(
                    f"slice {index} goes on from {version} with {len(used)} pushes that are not its commit set"
                )
            self._check_staleness(version, used)
            self._done.append((used, record.value))
        elif used != self._done[version][0]:
            odd = next((push for push in used if push not in self._done[version][0]), f"{len(used)} pushes")
            raise Violation(f"slice {index} goes on from {version} with {odd}, others do not")
        if record.version != version + 1 or record.value != self._done[version][1]:
            raise Violation(f"slice {index} differs from the others in version {version + 1}")
        self._reached[index] += 1

    def _check_staleness(self, version: int, used: Sequence[Push]) -> None:
        for push in used:
            behind = push.step - self._least[push.read]
            if self.mode.bound is not None and behind > self.mode.bound:
                raise Violation(f"{push} was computed {behind} steps ahead of its parameters: too stale")
        oldest = min(used, key=lambda push: push.read)
        self.stalest = max(self.stalest, version - oldest.read)
        if version - oldest.read > self._most_stale:
            raise Violation(f"{oldest} goes into version {version}: too stale for {self.mode.name}")

    def advanced(self, now: float, lanes: Sequence[int]) -> None:
        """A push of each of these lanes is applied, on every slice."""
        for lane in lanes:
            self._applied[lane] += 1
            self.longest = max(self.longest, now - self._advanced[lane])
            self._advanced[lane] = now
        self._slowest = min(self._applied)

    def watch(self, now: float, patience: float, known: Clocks) -> bool:
        """Does every lane get on? False when all of them have made all their steps."""
        for lane, applied in enumerate(self._applied):
            if applied < self.steps and now - self._advanced[lane] > patience:
                held = modes.held_back(self.mode, known, lane)
                why = modes.why(held.word) if held else "nothing holds it"
                raise Violation(f"lane {lane} starves for {patience:.1f} s, {self._at(lane)}: {why}")
        return self._slowest < self.steps

    def ended(self, records: Sequence[Record | None]) -> None:
        """Every step of every lane is in every slice, its record is with its holder, and nothing is left over."""
        every = [self.steps] * len(self._taken)
        if self._taken != every or self._applied != every:
            raise Violation("not all steps of all lanes are applied")
        for index, record in enumerate(records):
            if record is None or not record.version == self._reached[index] == len(self._commit_sets):
                raise Violation(
                    f"slice {index} is at version {self._reached[index]} of {len(self._commit_sets)}, or lost"
                )
            if record.pushes:
                raise Violation(f"slice {index} is left with {len(record.pushes)} pushes that nobody takes")

    def _at(self, lane: int) -> str:
        return f"which has pushed {self._pushed[lane]}, taken {self._taken[lane]}, applied {self._applied[lane]}"
