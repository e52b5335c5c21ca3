"""Randomness of a unit: a pure function of (seed, step, lane), on any worker and at any time."""

from __future__ import annotations

import random

import numpy
import torch

from holdfast.core.keys import STREAM_AFTER, STREAM_COMPUTE, STREAM_DATA, STREAM_TURN, key

__all__ = ["after_key", "compute_key", "data_key", "seed_everything", "turn_key"]


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
    torch.default_generator.manual_seed(value & 0x7FFF_FFFF_FFFF_FFFF)
    numpy.random.seed(value & 0xFFFF_FFFF)
    random.seed(value)
