"""The dedup window of one client's pushes on one key: what makes a push count once. Pure.

A client numbers its pushes on a key 1, 2, 3, ... and repeats those it has no answer to, in order, when it comes
back to a server. The server keeps, in memory that outlives it, the last number it has settled, and which of the last
`WINDOW` failed (their handler raised, their shape was wrong): a repeated push that had failed must not be answered
"applied". Clients therefore never have more than `WINDOW` unanswered requests at a server.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = ["WINDOW", "DedupVerdict", "DedupWindow"]

WINDOW = 63  #: one less than there are bits, so that the word stays a positive number
_MASK = (1 << WINDOW) - 1


class DedupVerdict(Enum):
    """What is to be done with a push."""

    NEW = "apply it"
    APPLIED = "it was applied: say so again"
    FAILED = "it failed: say so again, unless its client tries again"


class DedupWindow(NamedTuple):
    """What is settled of them.

    >>> DedupWindow().settle(1, ok=True).settle(2, ok=False).judge(2)
    <Verdict.FAILED: 'it failed: say so again, unless its client tries again'>
    """

    last: int = 0  #: the highest number that was settled
    failed: int = 0  #: bit i: number `last - i` failed

    @property
    def counted(self) -> int:
        """Up to which number all that was pushed counts: the last one before the first that failed.

        >>> DedupWindow().settle(1, ok=True).settle(2, ok=False).settle(3, ok=True).counted
        1
        """
        return self.last - self.failed.bit_length()

    def judge(self, number: int) -> DedupVerdict:
        """Was this push settled before?"""
        if number > self.last:
            return DedupVerdict.NEW
        behind = self.last - number
        return DedupVerdict.FAILED if behind < WINDOW and self.failed >> behind & 1 else DedupVerdict.APPLIED

    def settle(self, number: int, *, ok: bool) -> DedupWindow:
        """After a push with a new number, or one that had failed. Numbers may be left out."""
        if number > self.last:
            ahead = min(number - self.last, WINDOW)
            return DedupWindow(number, (self.failed << ahead | (not ok)) & _MASK)
        assert self.judge(number) is DedupVerdict.FAILED, f"number {number} was applied"
        bit = 1 << self.last - number
        return DedupWindow(self.last, self.failed & ~bit if ok else self.failed)
