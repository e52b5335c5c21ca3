"""Seeding: which seed a run has, and what the script's generators stand at when it has joined.

What `holdfast run --seed` says counts before what `hf.join(seed=...)` says, and that before a `torch.manual_seed(n)`
that the script called before it joined. With that, `n` is the run's seed, and torch's generator is left as it is: the
script draws, for its weights say, what it would draw without Holdfast. In all other cases it begins anew with the run's
seed; NumPy's and Python's generators do so always.
"""

from __future__ import annotations

import warnings

import torch

from holdfast.core.keys import STREAM_START, key
from holdfast.data import randomness

__all__ = ["by_hand", "refused_by_hand", "start"]

#: What torch begins with is a random number of more bits than this.
_MOST = 1 << 32
_newest: int | None = None  # of a process that joins several times


def by_hand() -> int | None:
    """What the script has seeded torch with, if it has: the newest number, as each process of a crew sees it."""
    global _newest
    now = torch.initial_seed()
    if now < _MOST and now != randomness.newest():
        _newest = now
    return _newest


def refused_by_hand(seed: int, source: str) -> None:
    """Say that what the script has seeded torch with does not count, where it has and that is another number."""
    found = by_hand()
    if found is not None and found != seed:
        warnings.warn(
            f"torch.manual_seed({found}) was called before hf.join(), and the run's seed is {seed} (set by {source}): "
            "that counts, for torch's generator as well. Leave one of the two out.",
            stacklevel=3,
        )


def start(seed: int, *, taken: bool) -> None:
    """The script has joined: seed what it draws from now on. With `taken`, the seed is what torch was seeded with."""
    number = key(seed, STREAM_START)
    if taken and torch.initial_seed() == seed:
        with torch.random.fork_rng(devices=[]):
            randomness.seed_everything(number)
    else:
        randomness.seed_everything(number)
