"""The order of the samples of an epoch, in O(1) memory: position -> sample id.

An epoch's order is a keyed permutation of [0, n): any part of it can be had at once, by any process, from
`(n, seed, epoch)` alone. There is no shuffled list to build, ship or lose.

The permutation is a Feistel network on mixed radix: a position is written as `(left, right)` in
`Z_a x Z_b` with a = ceil(sqrt(n)) and b = ceil(n / a), and each round adds a keyed hash of one half to the
other, modulo its radix. `a * b` is less than `n + a`, so fewer than one position in sqrt(n) falls outside [0, n)
and is sent through again (cycle walking). With halves of whole bits the domain could be four times n, and most
positions would have to walk.

Rules: explicit uint64 arithmetic only (the same ids on every machine, in every NumPy); no state; the ids of a
position never change for a given `Order`, as runs are resumed by position.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import isqrt
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from holdfast.core.keys import STREAM_BLOCK, STREAM_ORDER, key
from holdfast.errors import UsageError

__all__ = ["MAX_SAMPLES", "Order"]

U64: TypeAlias = npt.NDArray[np.uint64]

#: Each radix then stays below 2^25, so that `hash32 * radix` fits into 64 bits.
MAX_SAMPLES = 1 << 48

_ROUNDS = 6  # even: each half is changed three times
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_32 = np.uint64(32)


@dataclass(frozen=True, slots=True)
class Order:
    """The order of `n` samples in one epoch.

    `shuffle=False` is the order of the source. `block=B` visits blocks of B consecutive samples in permuted
    order and permutes inside each block, for sources that read neighbours cheaply.

    >>> sorted(Order(5, seed=0, epoch=1).ids(0, 5).tolist())
    [0, 1, 2, 3, 4]
    """

    n: int
    seed: int
    epoch: int
    shuffle: bool = True
    block: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.n <= MAX_SAMPLES:
            raise UsageError(f"A data set of {self.n} samples cannot be ordered. Use 1 to 2^48 samples.")
        if self.block is not None and (self.block < 1 or not self.shuffle):
            raise UsageError(
                f"block = {self.block} with shuffle = {self.shuffle}: a block must have 1 sample or more, "
                "and blocks are for shuffled data only. Set a block of 1 or more and shuffle, or no block."
            )

    def ids(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the samples at positions [start, stop) of the epoch."""
        if not 0 <= start <= stop <= self.n:
            raise ValueError(f"positions [{start}, {stop}) do not lie in [0, {self.n})")
        if not self.shuffle:
            return np.arange(start, stop, dtype=np.int64)
        positions = np.arange(start, stop, dtype=np.uint64)
        if self.block is None or self.block >= self.n:
            return _network(self.n, key(self.seed, STREAM_ORDER, self.epoch)).apply(positions).astype(np.int64)
        return self._in_blocks(positions, self.block).astype(np.int64)

    def _in_blocks(self, positions: U64, size: int) -> U64:
        num_blocks = -(-self.n // size)
        last, short = num_blocks - 1, self.n - (num_blocks - 1) * size
        blocks = _network(num_blocks, key(self.seed, STREAM_ORDER, self.epoch))
        # Only the last block may be short. Positions after its visit are shifted by what it lacks, which
        # makes all visits equally long; its own positions need no shift.
        visit = _inverse(blocks, last)
        beyond = np.uint64(visit * size + short)
        even = np.where(positions >= beyond, positions + np.uint64(size - short), positions)
        visits, inside = np.divmod(even, np.uint64(size))
        block = blocks.apply(visits)
        inner = key(self.seed, STREAM_BLOCK, self.epoch)
        result = block * np.uint64(size)
        whole = block != np.uint64(last) if short < size else np.ones(len(block), dtype=bool)
        result[whole] += _network(size, inner).apply(inside[whole], _mix(block[whole]))
        if not whole.all():
            result[~whole] += _network(short, key(inner, last)).apply(inside[~whole])
        return result


@dataclass(frozen=True, slots=True)
class _Network:
    """A keyed permutation of [0, n)."""

    n: int
    left: int  #: radix of the left half
    right: int
    keys: tuple[int, ...]

    def apply(self, positions: U64, tweak: U64 | None = None) -> U64:
        """Permute the positions; each value of `tweak` selects a permutation of its own."""
        result = self._once(positions, tweak)
        outside = np.flatnonzero(result >= np.uint64(self.n))
        while len(outside):
            again = self._once(result[outside], None if tweak is None else tweak[outside])
            result[outside] = again
            outside = outside[again >= np.uint64(self.n)]
        return result

    def _once(self, positions: U64, tweak: U64 | None) -> U64:
        radix, other = np.uint64(self.left), np.uint64(self.right)
        changed, fixed = np.divmod(positions, other)
        for number in self.keys:
            x = fixed ^ np.uint64(number)
            if tweak is not None:
                x ^= tweak
            x *= _M1
            x ^= x >> _32
            x *= _M2
            x >>= _32
            x *= radix
            x >>= _32  # now a hash in [0, radix)
            x += changed
            # Below the radix, x - radix wraps round to something huge: the smaller one is x mod radix.
            changed = np.minimum(x, x - radix)
            changed, fixed, radix, other = fixed, changed, other, radix
        # After an even number of rounds, `changed` is the left half again.
        return changed * np.uint64(self.right) + fixed


@lru_cache(maxsize=256)
def _network(n: int, base: int) -> _Network:
    left = isqrt(n - 1) + 1
    return _Network(n, left, -(-n // left), tuple(key(base, number) for number in range(_ROUNDS)))


@lru_cache(maxsize=256)
def _inverse(network: _Network, value: int) -> int:
    """Return the position that `network` takes to `value`."""
    while True:
        left, right = divmod(value, network.right)
        for number, round_key in reversed(list(enumerate(network.keys))):
            if number % 2 == 0:
                left = (left - _hash(right, round_key, network.left)) % network.left
            else:
                right = (right - _hash(left, round_key, network.right)) % network.right
        value = left * network.right + right
        if value < network.n:
            return value


def _hash(fixed: int, round_key: int, radix: int) -> int:
    mask = (1 << 64) - 1
    x = (fixed ^ round_key) * int(_M1) & mask
    x = (x ^ x >> 32) * int(_M2) & mask
    return (x >> 32) * radix >> 32


def _mix(x: U64) -> U64:
    """`keys.mix64` of many numbers, each plus one: block 0 must have a tweak too."""
    x = x + np.uint64(1)
    x = (x ^ x >> np.uint64(30)) * _M1
    x = (x ^ x >> np.uint64(27)) * _M2
    return x ^ x >> np.uint64(31)
