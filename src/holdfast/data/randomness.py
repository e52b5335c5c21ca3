"""Randomness of a unit: a pure function of (seed, step, lane), on any worker and at any time."""

from __future__ import annotations

import random

import numpy
import torch

from holdfast.core.keys import STREAM_AFTER, STREAM_COMPUTE, STREAM_DATA, STREAM_TURN, key

__all__ = ["after_key", "compute_key", "data_key", "newest", "seed_everything", "turn_key"]

_newest = -1  # with what torch was seeded last by us


def compute_key(seed: int, step: int, lane: int, phase: int = 0, part: int = 0) -> int:
    """The key of a unit's own randomness (dropout and the like), in each phase of its turn and each part of it."""
    return key(seed, STREAM_COMPUTE, step, lane, *((phase, part) if phase or part else ()))


def data_key(seed: int, epoch: int, step: int, lane: int) -> int:
    """The key of a unit's data randomness (augmentation)."""
    return key(seed, STREAM_DATA, epoch, step, lane)


def turn_key(seed: int, version: int, part: int) -> int:
    """The key of what a turn draws outside of units: before them (0), after them (1), after the step's end (2)."""
    return key(seed, STREAM_TURN, version, part)


def after_key(seed: int, op: int) -> int:
    """The key of what the script draws after operation `op`."""
    return key(seed, STREAM_AFTER, op)


def seed_everything(value: int) -> None:
    """Set torch's, NumPy's and Python's generators. Fast: it is done twice for every unit."""
    global _newest
    _newest = value & 0x7FFF_FFFF_FFFF_FFFF
    torch.default_generator.manual_seed(_newest)
    numpy.random.seed(value & 0xFFFF_FFFF)
    random.seed(value)


def newest() -> int:
    """What `seed_everything` has seeded torch with last; -1: it has not."""
    return _newest
