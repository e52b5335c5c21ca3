"""1797 handwritten digits of 8x8 pixels, shipped with the package, so there is always something to train on.

Every fifth sample (0, 5, 10, ...) is the test split, the others are the training split: fixed for ever.
Where the data comes from and its licence: `digits.md` beside this file.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np

from holdfast.data.dataset import Dataset
from holdfast.errors import UsageError

__all__ = ["load"]

_LEVELS = 16  # grey levels are counts of 4x4 blocks: 0 to 16


def load(split: str, root: Path | None = None) -> Dataset:
    """The split as float32 images (N, 1, 8, 8) in [0, 1] and int64 labels."""
    if root is not None:
        raise UsageError(f"digits ships with holdfast and takes no directory (got {root}). Leave the directory out.")
    with (files("holdfast.data") / "digits.npz").open("rb") as file, np.load(file, allow_pickle=False) as stored:
        images, labels = stored["images"], stored["labels"]
    chosen = (np.arange(len(labels)) % 5 == 0) == (split == "test")
    features = images[chosen, None].astype(np.float32) / np.float32(_LEVELS)
    return Dataset(features, labels[chosen].astype(np.int64), name="digits", classes=[str(n) for n in range(10)])
