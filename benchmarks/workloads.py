"""What is trained: the same models, data and optimizers for every contender.

Data is fetched by indexing two tensors with a list of sample numbers, by all contenders alike, so that no
figure is about data loading. LeNet sees Fashion-MNIST where it is on this machine (nothing is downloaded
here), else random images of the same shape; the numbers are about time, not about accuracy.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from holdfast.data.fashion_mnist import CACHE, DEBIAN
from holdfast.data.sources import dataset

__all__ = ["Samples", "StepLog", "batch_itself", "loss_of", "model_of", "optimizer_of"]

Batch = tuple[Tensor, Tensor]


class Samples(Dataset[Batch]):
    """`length` samples, by going round the data as often as it takes. A list of numbers gives a whole batch."""

    def __init__(self, workload: str, length: int) -> None:
        self._x, self._y = {"lenet": _fashion, "gpt": _text}.get(workload, _random)()
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Batch:
        return self._x[index % len(self._x)], self._y[index % len(self._x)]

    def __getitems__(self, ids: Sequence[int] | Tensor) -> Batch:
        at = torch.as_tensor(ids) % len(self._x)
        return self._x[at], self._y[at]


def batch_itself(batch: Any) -> Any:
    """The collate function that goes with `Samples`: a batch is fetched whole."""
    return batch


def model_of(workload: str) -> nn.Module:
    """lenet (44,426 parameters), mlp (20,037,642), resnet (11,167,242), gpt (809,856), tiny (7,850; it sleeps)."""
    if workload == "lenet":
        return nn.Sequential(
            nn.Conv2d(1, 6, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.AvgPool2d(2),
            nn.Flatten(), nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
        )  # fmt: skip
    if workload == "mlp":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(784, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)
        )
    if workload == "resnet":
        return ResNet18()
    if workload == "gpt":
        return SmallGPT()
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


class Residual(nn.Module):
    """Two convolutions, and what went in."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        same = stride == 1 and channels == out
        short = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.short = nn.Identity() if same else short

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.main(x) + self.short(x))


class ResNet18(nn.Sequential):
    """ResNet-18 for small grey images."""

    def __init__(self) -> None:
        widths, layers, before = (64, 128, 256, 512), list[nn.Module](), 64
        for number, width in enumerate(widths):
            layers += [Residual(before, width, 2 if number else 1), Residual(width, width, 1)]
            before = width
        super().__init__(
            nn.Conv2d(1, 64, 3, 2, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), *layers, nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(512, 10),
        )  # fmt: skip


class SmallGPT(nn.Module):
    """Four blocks of width 128, for 64 letters out of 64."""

    def __init__(self, letters: int = 64, width: int = 128, length: int = 64) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(length, width)
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 4, enable_nested_tensor=False)
        self.head = nn.Linear(width, letters)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        hidden = self.letter(x) + self.place(torch.arange(x.shape[1]))
        out: Tensor = self.head(self.blocks(hidden, mask=mask, is_causal=True))
        return out.transpose(1, 2)


def optimizer_of(name: str, model: nn.Module, *, fused: bool) -> torch.optim.Optimizer:
    """Fused is torch's fastest on a CPU, and what Holdfast chooses where nothing was chosen; else torch's default."""
    if name == "adam":
        return torch.optim.Adam(model.parameters(), lr=1e-3, fused=fused or None)
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=fused or None)


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Cross entropy, for all of them."""
    return F.cross_entropy(model(x), y)


class StepLog:
    """Writes when each step was seen to be committed, at once, so that nothing is lost with a killed process.

    Times are CLOCK_MONOTONIC, which all processes of a machine share.
    """

    def __init__(self, directory: Path | None) -> None:
        self._fd = -1
        if directory is not None:
            self._fd = os.open(directory / f"steps-{os.getpid()}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._noted: set[int] = set()  # by this process: another one that comes late begins with none, and rightly

    def note(self, step: int) -> None:
        """All steps before `step` are committed."""
        if self._fd >= 0 and step not in self._noted:
            self._noted.add(step)
            os.write(self._fd, f"{step} {time.monotonic():.6f}\n".encode())


def _fashion() -> Batch:
    for place in (DEBIAN, CACHE.expanduser()):
        if place.is_dir():
            train = dataset("fashion-mnist", "train", root=place)
            return torch.from_numpy(train.features), torch.from_numpy(train.labels)
    return _random()


def _text() -> Batch:
    source = torch.Generator().manual_seed(0)
    text = torch.randint(64, (2048, 65), generator=source)
    return text[:, :-1], text[:, 1:]


def _random() -> Batch:
    source = torch.Generator().manual_seed(0)
    return torch.rand(8192, 1, 28, 28, generator=source), torch.randint(10, (8192,), generator=source)
