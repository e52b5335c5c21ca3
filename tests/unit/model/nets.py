"""Small models of several sorts, and versions on a disk in memory."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.checkpoint.content import Tensor as Stored
from holdfast.model.signature import Signature, TensorSpec
from holdfast.model.version_writer import Draft

ROOT = Path("/models/tiny")


def draft(number: int = 1, **more: object) -> Draft:
    """A version whose numbers say which one it is."""
    weights = {"w": Stored("float32", (2,), bytes([number] * 8)), "b": Stored("int64", (), bytes([number] * 8))}
    said = {
        "name": "tiny", "kind": "program", "files": {"weights.safetensors": weights, "program.json": b"{}"},
        "signature": Signature((TensorSpec("x", "FP32", (-1, 2)),), (TensorSpec("y", "FP32", (-1, 2)),)), **more,
    }
    return Draft(**said)  # type: ignore[arg-type]


class Images(nn.Module):
    """Convolutions, BatchNorm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(4 * 36, 5)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.drop(F.relu(self.norm(self.conv(image)))).flatten(1))


class Words(nn.Module):
    """Whole numbers go in, through an embedding and a GRU; one weight has two names; a constant; a dict comes out."""

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.table, self.gru = nn.Embedding(20, size), nn.GRU(size, 6, batch_first=True)
        self.a, self.b = nn.Linear(6, 4), nn.Linear(6, 4)
        self.b.weight = self.a.weight
        self.register_buffer("shift", torch.arange(4.0), persistent=False)

    def forward(self, tokens: Tensor, scale: Tensor) -> dict[str, Tensor]:
        last = self.gru(self.table(tokens))[0][:, -1]
        return {"score": self.a(last) + self.shift + torch.tensor([0.5, 0, 0, 1]), "share": self.b(last) * scale}


class Pair(NamedTuple):
    low: Tensor
    best: Tensor


class Fields(nn.Module):
    """A named tuple comes out; one of its outputs counts."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 4)

    def forward(self, x: Tensor, double: bool = False) -> Pair:
        y = self.fc(x) * (2 if double else 1)
        return Pair(y.min(1).values, y.argmax(1))


class Lengths(nn.Module):
    """Sequences of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.fc = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        each = self.fc(self.table(tokens))
        return each, each.mean(1)


class Writes(nn.Module):
    """It writes into what it is given, and gives it back."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(2)
        return self.fc(x), x


class Branches(nn.Module):
    """What it computes depends on the numbers that go in, which torch.export cannot trace."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) if x.sum() > 0 else -self.fc(x)
