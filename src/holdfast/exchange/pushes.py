"""Pushes: what lanes have given and what was taken of it, where lanes need not be at the same step.

One section of the arena, of words that have one writer at a time each, like the board's:

    header | for each lane: its clock, and a record for each push there is room for | two dockets that take turns

A push counts from the one store that moves its lane's clock on: before it, whoever drives the lane next computes the
unit again; after it, nobody does. A docket counts from the store of its tag; it holds, for every lane, how many pushes
were taken up to and including it, so what it takes is the difference to the one before. No torch here; the gradients
lie in `PushSlots`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from holdfast.core.clocks import Clocks, Taken

__all__ = ["Pushes", "Record", "pushes_bytes"]

_HEADER, _RECORD = 8, 6  # words
P_OP, P_TOTAL, P_BASE, P_DONE = range(4)  # the first one is negative while a pass is about to begin


class Record(NamedTuple):
    """What a push says besides its gradient."""

    step: int  #: of its pass
    version: int  #: that it was computed from
    samples: int  #: 0: the lane had none in this step
    loss: float
    clip_norm: float
    clip_value: float


def pushes_bytes(num_lanes: int, depth: int) -> int:
    """How large the section is."""
    return 8 * (_HEADER + num_lanes * (1 + depth * _RECORD) + 2 * (1 + num_lanes))


class Pushes:
    """The section as everybody uses it."""

    def __init__(self, memory: memoryview, num_lanes: int, depth: int) -> None:
        raw = memory.cast("B")[: pushes_bytes(num_lanes, depth)]
        self._words, self._reals = raw.cast("q"), raw.cast("d")
        self._num_lanes, self._depth, self._stride = num_lanes, depth, 1 + depth * _RECORD
        self._lanes, self._dockets = _HEADER, _HEADER + num_lanes * self._stride
        self._pushed = self._words[self._lanes : self._dockets][:: self._stride]

    # ------------------------------------------------------------ passes

    def begun(self, op: int) -> bool:
        """Has this pass begun?"""
        return self._words[P_OP] == op + 1

    def over(self, op: int) -> bool:
        """Has a later pass begun, or is it about to?"""
        return abs(self._words[P_OP]) > op + 1

    def begin(self, op: int, steps: int, version: int) -> None:
        """A pass of so many steps begins at this version: no lane has pushed anything.

        By one owner; the word that says so goes last.
        """
        words = self._words
        if words[P_OP] > 0:
            words[P_DONE] = words[P_BASE] + words[P_TOTAL]  # said twice, it says the same
        words[P_OP] = -(op + 1)
        words[P_BASE], words[P_TOTAL] = words[P_DONE], steps
        for lane in range(self._num_lanes):
            words[self._lanes + lane * self._stride] = 0
        for tag, place in ((version, version - 1), (0, version)):  # all that was pushed before is in `version`
            at = self._docket(place)
            words[at] = 0
            for lane in range(self._num_lanes):
                words[at + 1 + lane] = 0
            words[at] = tag
        words[P_OP] = op + 1

    def committed(self, applied: Callable[[], int]) -> int:
        """Steps of the run of which every lane's push is applied. `applied` gives those of the pass at hand."""
        while True:
            op = self._words[P_OP]
            found = self._words[P_DONE] if op < 0 else self.base + min(applied(), self.total)
            if self._words[P_OP] == op:  # else a pass has begun meanwhile, and the numbers are of two
                return found

    def resume(self, op: int, steps: int, version: int, *, base: int, done: int) -> None:
        """A pass that was begun in another mode goes on here: of each lane `done` pushes are in `version`.

        `base` is how many steps the run had made when the pass began. Nobody looks here before this is done.
        """
        words = self._words
        words[P_OP], words[P_BASE], words[P_TOTAL] = op + 1, base, steps
        for lane in range(self._num_lanes):
            words[self._lanes + lane * self._stride] = done
        for tag, place in ((version, version - 1), (0, version)):
            at = self._docket(place)
            words[at] = tag
            for lane in range(self._num_lanes):
                words[at + 1 + lane] = done

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
        applied = self._counts(version - 1)
        taken = self._counts(version) if self.decided(version) else applied
        return Clocks(steps, self._pushed.tolist(), taken, applied)

    def push(self, lane: int, record: Record) -> None:
        """The gradient of this push is in its place: let it count."""
        at = self._record(lane, record.step)
        words, reals = self._words, self._reals
        words[at], words[at + 1], words[at + 2] = record[:3]
        reals[at + 3], reals[at + 4], reals[at + 5] = record.loss, record.clip_norm, record.clip_value
        words[self._lanes + lane * self._stride] = record.step + 1

    def pushed(self, lane: int) -> int:
        """How many pushes a lane has made in this pass."""
        return self._words[self._lanes + lane * self._stride]

    def furthest(self) -> int:
        """Pushes of the lane that has made most."""
        return max(self._pushed.tolist())

    def record(self, push: Taken) -> Record:
        """What a push says, while it is not applied."""
        at = self._record(push.lane, push.step)
        words, reals = self._words, self._reals
        return Record(words[at], words[at + 1], words[at + 2], reals[at + 3], reals[at + 4], reals[at + 5])

    # ------------------------------------------------------------ dockets

    def decided(self, version: int) -> bool:
        """Is it settled which pushes lead from this version to the next?"""
        return self._words[self._docket(version)] == version + 1

    def decide(self, version: int, pushes: Sequence[Taken]) -> None:
        """These do. By one owner, once."""
        at, counts = self._docket(version), self._counts(version - 1)
        self._words[at] = 0
        for push in pushes:
            counts[push.lane] += 1
        for lane, count in enumerate(counts):
            self._words[at + 1 + lane] = count
        self._words[at] = version + 1

    def docket(self, version: int) -> list[Taken]:
        """What was decided, in lane order."""
        counts = zip(self._counts(version - 1), self._counts(version), strict=True)
        return [Taken(lane, before) for lane, (before, after) in enumerate(counts) if after > before]

    def newest(self, version: int) -> int:
        """The newest step that was taken of any lane, up to this docket."""
        return max(self._counts(version)) - 1

    def marks(self) -> bytes:
        """All clocks and dockets: while they are the same, nobody has pushed and nothing was decided."""
        return self._pushed.tobytes() + bytes(self._words[self._dockets :]) + bytes(self._words[:2])

    def _record(self, lane: int, step: int) -> int:
        return self._lanes + lane * self._stride + 1 + step % self._depth * _RECORD

    def _docket(self, version: int) -> int:
        return self._dockets + version % 2 * (1 + self._num_lanes)

    def _counts(self, version: int) -> list[int]:
        at = self._docket(version) + 1
        return self._words[at : at + self._num_lanes].tolist()
