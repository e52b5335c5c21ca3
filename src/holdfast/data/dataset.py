"""A data set in memory: NumPy arrays in, torch tensors out.

The arrays are the truth; torch is imported when the first sample is taken, so listing, limiting and
measuring a data set costs no torch import. Samples are views of the arrays and must not be written to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SPLITS", "Dataset", "check_split"]

#: The parts every source has.
SPLITS = ("train", "test")


class Dataset:
    """Features and labels of one split, as a map-style data set for `torch.utils.data.DataLoader`.

        data = dataset("digits", "train")
        image, label = data[0]                    # tensors: float32 (1, 8, 8) and int64 ()
        loader = DataLoader(data.head(512), batch_size=64)

    Args:
        features: one row per sample; what a sample's first tensor is.
        labels: one integer per sample.
        name: what it is called in messages.
        classes: the label's names, in order of the labels.
    """

    def __init__(
        self, features: NDArray[Any], labels: NDArray[np.int64], *, name: str, classes: Sequence[str] = ()
    ) -> None:
        if len(features) != len(labels):
            raise UsageError(
                f"{name} has {len(features)} samples but {len(labels)} labels. Check that both files belong together."
            )
        self.features, self.labels = features, labels
        self.name, self.classes = name, tuple(classes)
        self._tensors: tuple[Tensor, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        features, labels = self._as_tensors()
        return features[index], labels[index]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Many samples with two gathers instead of two per sample (what torch's fetcher calls if it is there)."""
        features, labels = self._as_tensors()
        at = list(indices)
        return list(zip(features[at].unbind(), labels[at].unbind(), strict=True))

    def head(self, count: int | None) -> Dataset:
        """The first `count` samples, sharing memory with this set; all of them for None."""
        if count is None:
            return self
        if not 1 <= count <= len(self):
            raise UsageError(f"{self.name} has {len(self)} samples; cannot take {count}. Take 1 to {len(self)}.")
        return Dataset(self.features[:count], self.labels[:count], name=self.name, classes=self.classes)

    def __getstate__(self) -> dict[str, Any]:
        # A loader's worker process gets the arrays; it makes its own tensors over them.
        return self.__dict__ | {"_tensors": None}

    def __repr__(self) -> str:
        return f"Dataset({self.name}: {len(self)} samples of {self.features.dtype} {self.features.shape[1:]})"

    def _as_tensors(self) -> tuple[Tensor, Tensor]:
        if self._tensors is None:
            import torch

            self._tensors = torch.from_numpy(self.features), torch.from_numpy(self.labels)
        return self._tensors


def check_split(name: str, split: str) -> None:
    """Refuse a split that no source has."""
    if split not in SPLITS:
        raise UsageError(f"{name} has no split {split!r}. Use one of: {', '.join(SPLITS)}.")
