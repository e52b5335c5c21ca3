"""Pushes: what lanes have given and what was taken of it, in relaxed modes.

One section of the arena, of words that have one writer at a time each, like the board's:

    header | for each lane: its clock, and a record of its last push | two commit sets that take turns

A push counts from the one store that moves its lane's clock on: before it, whoever drives the lane next computes the
unit again; after it, nobody does. So it is with a share of several lanes, too: its push lies where that of its first
lane does, and the clock of that lane says in the same word how many lanes beyond it the push is for. These count it
from then on, and gave nothing themselves. Their own clocks follow before the first lane pushes once more: by its
driver, or when another generation begins (`part`), so there is one writer at a time.

A commit set counts from the store of its tag; it holds, for every lane, how many pushes were taken up to and including
it, so what it takes is the difference to the one before. No torch here; the gradients lie in `PushGradients`.

On a host that mirrors another one's state, the section shows what that host has told (`mirror`): the clocks of its own
lanes are this host's, the commit sets' places hold what was applied and taken, and nothing is decided here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import msgspec

from holdfast.core.sync.modes import Clocks, TakenPush
from holdfast.dataplane.memory.board import Count, Word

__all__ = ["PushRecord", "Pushes", "ToldClocks", "pushes_bytes"]

_HEADER, _STRIDE = 8, 8  # words; of a lane: its clock, and the seven of a record
_BEYOND = 8  # bits of a clock that say how many lanes beyond its own the last push is for: a run has 234 at most
P_OP, P_TOTAL, P_BASE, P_DONE, P_MIRRORED, P_TURN = range(6)  # the first one is negative while a pass is being begun
#: Where there are replicas: one more than the version that all of them hold, and than the newest that was shown; the
#: latter is negative where a replica was made the primary, and nobody knows what had been shown.
P_HELD, P_SHOWN = 6, 7


class PushRecord(NamedTuple):
    """What a push says besides its gradient."""

    step: Count  #: of its pass
    version: Count  #: that it was computed from
    samples: Count  #: 0: the lane had none in this step
    loss: float
    clip_norm: float
    clip_value: float
    lanes: Count = 1  #: that it is for, from its own on; 0: it lies with another lane


class ToldClocks(msgspec.Struct, frozen=True, array_like=True):
    """How far all lanes are, as the host that holds the state tells others."""

    version: Count
    op: Word  #: the pass, as its word; 0: none has begun
    total: Word
    base: Word
    done: Word
    pushed: list[Count]
    taken: list[Count]
    applied: list[Count]
    settled: bool = True  #: see `Pushes.settled`


def pushes_bytes(num_lanes: int) -> int:
    """How large the section is."""
    return 8 * (_HEADER + num_lanes * _STRIDE + 2 * (1 + num_lanes))


class Pushes:
    """The section as everybody uses it."""

    def __init__(self, memory: memoryview, num_lanes: int) -> None:
        raw = memory.cast("B")[: pushes_bytes(num_lanes)]
        self._words, self._reals = raw.cast("q"), raw.cast("d")
        self._num_lanes, self._commit_sets = num_lanes, self._clock(num_lanes)
        self._pushed = self._words[self._clock(0) : self._commit_sets][::_STRIDE]

    # ------------------------------------------------------------ passes

    def begun(self, op: int) -> bool:
        """Has this pass begun?"""
        return self._words[P_OP] == op + 1

    @property
    def op(self) -> int:
        """The pass at hand, as a word; 0: none has begun."""
        return self._words[P_OP]

    def over(self, op: int) -> bool:
        """Has a later pass begun, or is it about to?"""
        return abs(self._words[P_OP]) > op + 1

    def begin(self, op: int, steps: int, version: int, done: int = 0, *, rounds: bool = False) -> None:
        """A pass of so many steps begins at this version: no lane has pushed anything.

        Or goes on there: of each lane `done` steps were made and applied in another mode, each of which counts as a
        push; not so with `rounds`, where a push is of several steps. By one owner; the word that says so goes last.
        """
        pushed = 0 if rounds else done
        words = self._words
        if words[P_OP] > 0:
            words[P_DONE] = words[P_BASE] + words[P_TOTAL]  # said twice, it says the same
        words[P_OP] = -(op + 1)
        words[P_BASE], words[P_TOTAL] = words[P_DONE] - done, steps
        self._begin_at(version, [pushed] * self._num_lanes)
        words[P_OP] = op + 1

    def committed(self, applied: Callable[[], int]) -> int:
        """Steps of the run of which every lane's push is applied. `applied` gives those of the pass at hand."""
        while True:
            op = self._words[P_OP]
            found = self._words[P_DONE] if op < 0 else self.base + min(applied(), self.total)
            if self._words[P_OP] == op:  # else a pass has begun meanwhile, and the numbers are of two
                return found

    def go_on_from(self, step: int) -> None:
        """The run has made so many steps in other modes, and none in this one. The section is empty until now."""
        self._words[P_BASE] = self._words[P_DONE] = step

    @property
    def resumed(self) -> int:
        """How many steps each lane had behind it when this pass was begun."""
        return self._words[P_DONE] - self._words[P_BASE]

    @property
    def beginning(self) -> bool:
        """Is a pass just being begun? Then nothing of it, nor of the one before, can be told."""
        return self._words[P_OP] < 0

    @property
    def base(self) -> int:
        """Steps of the passes before this one."""
        return self._words[P_BASE]

    @property
    def total(self) -> int:
        """Steps of this pass."""
        return self._words[P_TOTAL]

    # ------------------------------------------------------------ lanes

    def clocks(self, version: int, steps: int) -> Clocks:
        """Where the lanes stand while all slices are at `version`, or on their way to the next one.

        `steps` is how many pushes each of them makes.
        """
        if self._words[P_MIRRORED]:
            return self._mirrored(steps)
        taken = self._counts(version if self.decided(version) else version - 1)
        return Clocks(steps, self.all_pushed(), taken, self._counts(self.shown(version) - 1))

    def push(self, lane: int, record: PushRecord) -> None:
        """The gradient of this push is in its place: let it count. The lanes that it is for stand at the same step."""
        self._part(lane)
        for other in range(lane + 1, lane + record.lanes):
            self._put_record(other, PushRecord(record.step, record.version, 0, 0.0, 0.0, 0.0, lanes=0))
        self._put_record(lane, record)
        self._words[self._clock(lane)] = record.step + 1 << _BEYOND | record.lanes - 1

    def part(self) -> None:
        """Lanes have the clocks that they count, each for itself. Nobody pushes meanwhile."""
        for lane in range(self._num_lanes):
            self._part(lane)

    def _part(self, lane: int) -> None:
        """The lanes that the last push of this one was for get clocks that say so themselves."""
        words, word = self._words, self._words[self._clock(lane)]
        for other in range(lane + 1, lane + 1 + (word & (1 << _BEYOND) - 1)):
            if words[self._clock(other)] >> _BEYOND < word >> _BEYOND:
                words[self._clock(other)] = word >> _BEYOND << _BEYOND

    def all_pushed(self) -> list[int]:
        """How many pushes each lane has made in this pass.

        Clocks are read in the order of lanes: a share's first lane parts with the others before it pushes once more.
        """
        words = self._pushed.tolist()
        made = [word >> _BEYOND for word in words]
        for lane, word in enumerate(words):
            for other in range(lane + 1, lane + 1 + (word & (1 << _BEYOND) - 1)):
                made[other] = max(made[other], word >> _BEYOND)
        return made

    def pushed(self, lane: int) -> int:
        """How many pushes a lane has made in this pass."""
        return self.all_pushed()[lane]

    def made(self, version: int) -> int:
        """Pushes of the slowest lane that are in this version, which is published."""
        return min(self._counts(0 if self._words[P_MIRRORED] else version - 1))

    def furthest(self) -> int:
        """Pushes of the lane that has made most."""
        return max(self.all_pushed())

    def record(self, lane: int) -> PushRecord:
        """What the last push of a lane says, while it is not applied."""
        at = self._clock(lane) + 1
        words, reals = self._words, self._reals
        numbers = reals[at + 3], reals[at + 4], reals[at + 5]
        return PushRecord(words[at], words[at + 1], words[at + 2], *numbers, words[at + 6])

    # ------------------------------------------------------------ commit sets

    def decided(self, version: int) -> bool:
        """Is it settled which pushes lead from this version to the next?"""
        return self._words[self._commit_set(version)] == version + 1

    def decide(self, version: int, pushes: Sequence[TakenPush]) -> None:
        """These do. By one owner, once."""
        counts = self._counts(version - 1)
        for push in pushes:
            counts[push.lane] += 1
        self._put(version, counts, version + 1)

    def commit_set(self, version: int) -> list[TakenPush]:
        """What was decided, in lane order."""
        counts = zip(self._counts(version - 1), self._counts(version), strict=True)
        return [TakenPush(lane, before) for lane, (before, after) in enumerate(counts) if after > before]

    def newest(self, version: int) -> int:
        """The newest step that was taken of any lane, up to this commit set."""
        return max(self._counts(version)) - 1

    # ------------------------------------------------------------ several hosts

    @property
    def published(self) -> int | None:
        """On a mirror, the version that the clocks are of; None where the state itself is."""
        return self._words[P_MIRRORED] - 1 if self._words[P_MIRRORED] else None

    def told(self, version: int) -> ToldClocks | None:
        """What is to be told while `version` is published; None where it is not any more."""
        words = self._words
        op, applied, decided = words[P_OP], self._counts(version - 1), self.decided(version)
        taken = self._counts(version) if decided else applied
        whole = op <= 0 or (words[self._commit_set(version - 1)] == version and self.decided(version) == decided)
        begun = words[P_TOTAL], words[P_BASE], words[P_DONE]
        found = ToldClocks(version, op, *begun, self.all_pushed(), taken, applied, self.settled)
        return found if whole and words[P_OP] == op else None

    def mirror(self, told: ToldClocks, mine: Collection[int]) -> None:
        """Show what another host has told. Lanes in `mine` may be further on here than they were there.

        A reader takes it as a whole: the turn is odd while it changes.
        """
        words = self._words
        keep = mine if words[P_MIRRORED] and words[P_OP] == told.op else ()
        words[P_TURN] += 1
        for lane, pushed in enumerate(told.pushed):
            if lane not in keep:
                words[self._clock(lane)] = pushed << _BEYOND
        self._put(0, told.applied, 0)
        self._put(1, told.taken, 0)
        words[P_TOTAL], words[P_BASE], words[P_DONE] = told.total, told.base, told.done
        words[P_OP], words[P_MIRRORED] = told.op, told.version + 1
        words[P_SHOWN] = 0 if told.settled else -1
        words[P_TURN] += 1

    def guard(self, version: int | None) -> None:
        """From now on nobody goes on from what is made after `version` before replicas hold it. None: there are none.

        What was shown before stays shown, and is gone on from at once: who has no copy of it yet gets one meanwhile, or
        of the next version. Where a replica was made the primary, it shows nothing before
        those that are left hold what it holds: else the loss of one more host would take back what was seen.
        """
        words = self._words
        if version is None:
            words[P_HELD] = words[P_SHOWN] = 0
        else:
            words[P_SHOWN] = words[P_SHOWN] or version + 1
            words[P_HELD] = version

    def hold(self, version: int) -> None:
        """All replicas hold this version: it may be shown, and the next one made."""
        if self._words[P_SHOWN] and version >= self._words[P_HELD]:
            self._words[P_HELD] = version + 1
            self._words[P_SHOWN] = max(self._words[P_SHOWN], version + 1)

    def held(self, version: int) -> bool:
        """Do all replicas hold this version? True where there are none."""
        return not self._words[P_SHOWN] or self._words[P_HELD] > version

    def free(self, version: int) -> bool:
        """May somebody go on from this version? When all replicas hold it, or it was shown before."""
        return self.held(version) or version < self._words[P_SHOWN]

    def shown(self, version: int) -> int:
        """The newest version that counts for others, where `version` is published: it, or the one before."""
        shown = self._words[P_SHOWN]
        return version if shown <= 0 else min(version, shown - 1)

    @property
    def settled(self) -> bool:
        """May an owner act? Not where the primary was a replica, while the other replicas do not hold as much."""
        return self._words[P_SHOWN] >= 0

    def inherit(self, told: ToldClocks) -> None:
        """The state of a version is here, told of by the host that held it until now: no lane has pushed beyond it."""
        words = self._words
        words[P_OP] = words[P_MIRRORED] = 0
        words[P_TOTAL], words[P_BASE], words[P_DONE] = told.total, told.base, told.done
        words[P_HELD], words[P_SHOWN] = 0, -1
        self._begin_at(told.version, told.applied)
        words[P_OP] = told.op

    def forget(self) -> None:
        """What a mirror showed does not count any more, the clocks of its own lanes included."""
        self._words[P_MIRRORED] = 0

    def _mirrored(self, steps: int) -> Clocks:
        while True:
            turn = self._words[P_TURN]
            found = Clocks(steps, self.all_pushed(), self._counts(1), self._counts(0))
            if turn % 2 == 0 and self._words[P_TURN] == turn:
                return found
            time.sleep(0)

    def marks(self) -> bytes:
        """All clocks and commit sets: while they are the same, nobody has pushed and nothing was decided."""
        return self._pushed.tobytes() + bytes(self._words[self._commit_sets :]) + bytes(self._words[:_HEADER])

    def _put_record(self, lane: int, record: PushRecord) -> None:
        at, words, reals = self._clock(lane) + 1, self._words, self._reals
        words[at], words[at + 1], words[at + 2] = record[:3]
        reals[at + 3], reals[at + 4], reals[at + 5] = record.loss, record.clip_norm, record.clip_value
        words[at + 6] = record.lanes

    def _clock(self, lane: int) -> int:
        """Where the clock of a lane lies; the record of its last push lies behind it."""
        return _HEADER + lane * _STRIDE

    def _commit_set(self, version: int) -> int:
        return self._commit_sets + version % 2 * (1 + self._num_lanes)

    def _put(self, version: int, counts: Sequence[int], tag: int) -> None:
        """Write a commit set. It counts from the store of its tag, which goes last."""
        at = self._commit_set(version)
        self._words[at] = 0
        for lane, count in enumerate(counts):
            self._words[at + 1 + lane] = count
        self._words[at] = tag

    def _begin_at(self, version: int, counts: Sequence[int]) -> None:
        """So many pushes of each lane are in `version`, and there are no others."""
        for lane, count in enumerate(counts):
            self._words[self._clock(lane)] = count << _BEYOND
        self._put(version - 1, counts, version)
        self._put(version, counts, 0)

    def _counts(self, version: int) -> list[int]:
        at = self._commit_set(version) + 1
        return self._words[at : at + self._num_lanes].tolist()
