"""Ages: how many pushes were applied with which staleness, as the board counts them.

The counts have an end, and the last one is for all ages from there on. The sum of all ages and the highest are kept
beside them, so that mean and most are true. All of it is counted on the host that holds the state. Another one that
comes to hold it begins with nothing: whoever looks at all hosts adds them up. No torch here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.dataplane.memory.board import H_AGES, H_COUNTED, H_OLDEST, H_STALENESS, STALENESS

__all__ = ["BUCKETS", "NONE", "Ages", "count", "read"]

#: So many counts there are; the last one is for all beyond.
BUCKETS = STALENESS


class Ages(NamedTuple):
    """How stale pushes were, since the run began."""

    counts: tuple[int, ...] = ()  #: by age in versions, up to the highest there was
    total: int = 0  #: of all ages
    oldest: int = 0

    def plus(self, other: Ages) -> Ages:
        """Those that were counted here and there.

        >>> Ages((2, 1), 1, 1).plus(Ages((1, 0, 3), 6, 2))
        Ages(counts=(3, 1, 3), total=7, oldest=2)
        """
        longer, shorter = sorted((self.counts, other.counts), key=len, reverse=True)
        counts = tuple(n + m for n, m in zip(longer, shorter + (0,) * (len(longer) - len(shorter)), strict=True))
        return Ages(counts, self.total + other.total, max(self.oldest, other.oldest))

    @property
    def pushes(self) -> int:
        """How many there were."""
        return sum(self.counts)

    def facts(self) -> dict[str, Any]:
        """What a summary says of them; nothing where there were none.

        >>> Ages((2, 0, 2), 4, 2).facts()
        {'staleness': [2, 0, 2], 'staleness_mean': 1.0, 'staleness_most': 2}
        """
        if not self.pushes:
            return {}
        return {
            "staleness": list(self.counts), "staleness_mean": self.total / self.pushes, "staleness_most": self.oldest,
        }  # fmt: skip


NONE = Ages()


def count(words: memoryview, version: int, versions: Sequence[int]) -> None:
    """Pushes that were computed from these versions are applied to `version`. Doing it twice counts once."""
    if words[H_COUNTED] > version:  # whoever began to apply them was killed
        return
    words[H_COUNTED] = version + 1
    for age in (version - other for other in versions):
        words[H_STALENESS + min(age, BUCKETS - 1)] += 1
        words[H_AGES] += age
        words[H_OLDEST] = max(words[H_OLDEST], age)


def read(words: memoryview) -> Ages:
    """What was counted on a board."""
    counts: list[int] = words[H_STALENESS : H_STALENESS + BUCKETS].tolist()
    while counts and not counts[-1]:
        counts.pop()
    return Ages(tuple(counts), words[H_AGES], words[H_OLDEST])
