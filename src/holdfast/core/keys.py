"""Keys of the run's randomness: 64 bits from a seed and what the randomness is for.

Nothing in a run draws from a generator that remembers. Whoever needs randomness makes a key from the
run's seed, a stream and the counters that name the piece of work, and starts a generator from it:

    key(seed, STREAM_COMPUTE, step, lane)

So a unit computed again, elsewhere or out of order has the same dropout and the same augmentation.

Rules: a stream number is never used for two things, and never given a new meaning. The mix is splitmix64's
finalizer, chained; it is exact integer arithmetic, the same on every machine. It is no cryptography.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

__all__ = [
    "STREAM_AFTER",
    "STREAM_BLOCK",
    "STREAM_COMPUTE",
    "STREAM_DATA",
    "STREAM_EVALUATE",
    "STREAM_ORDER",
    "STREAM_START",
    "STREAM_TURN",
    "STREAM_VERIFY",
    "key",
    "mix64",
]

STREAM_START: Final = 1  #: torch, NumPy and random before the script's first line
STREAM_ORDER: Final = 2  #: the order of the samples in an epoch
STREAM_BLOCK: Final = 3  #: the order inside one block of samples
STREAM_DATA: Final = 4  #: transforms and augmentation of a unit's samples
STREAM_COMPUTE: Final = 5  #: dropout and the like while a unit is computed
STREAM_EVALUATE: Final = 6  #: an evaluation's batches
STREAM_TURN: Final = 7  #: what a turn of a loop by steps draws outside of units
STREAM_AFTER: Final = 8  #: what the script draws between its loops and evaluations
STREAM_VERIFY: Final = 9  #: which units are computed twice

_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
_ODD: Final = 0xD1342543DE82EF95


def mix64(x: int) -> int:
    """Scramble 64 bits, one to one (the finalizer of splitmix64)."""
    x &= _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def key(seed: int, *parts: int) -> int:
    """Return the key of `parts` under `seed`: order counts, and so does how many there are.

    Negative numbers and those beyond 64 bits are taken modulo 2^64.

    >>> hex(key(0, STREAM_COMPUTE, 7, 1))
    '0x916f98670fb41d80'
    """
    if not parts:
        return mix64(seed + _GOLDEN)
    # The state is multiplied, not xor-ed with a mixed part: key(s, s) must not cancel out.
    return mix64(_before(seed, parts[:-1]) * _ODD + parts[-1] + _GOLDEN)


@lru_cache(maxsize=256)
def _before(seed: int, parts: tuple[int, ...]) -> int:
    """The key of what the lanes of a step have in common, say."""
    return key(seed, *parts)
