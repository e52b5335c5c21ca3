"""Randomness of a unit: a pure function of (seed, step, lane), on any worker and at any time."""

from __future__ import annotations

import random

import numpy
import torch

from holdfast.core.keys import STREAM_COMPUTE, STREAM_DATA, key

__all__ = ["compute_key", "data_key", "seed_everything"]


def compute_key(seed: int, step: int, lane: int) -> int:
    """The key of a unit's own randomness (dropout and the like)."""
    return key(seed, STREAM_COMPUTE, step, lane)


def data_key(seed: int, epoch: int, step: int, lane: int) -> int:
    """The key of a unit's data randomness (augmentation)."""
    return key(seed, STREAM_DATA, epoch, step, lane)


def seed_everything(value: int) -> None:
    """Set torch's, NumPy's and Python's generators. Fast: it is done twice for every unit."""
    torch.default_generator.manual_seed(value & 0x7FFF_FFFF_FFFF_FFFF)
    numpy.random.seed(value & 0xFFFF_FFFF)
    random.seed(value)
