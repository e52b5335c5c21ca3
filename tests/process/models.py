"""Small models on disk for tests of serving."""

from __future__ import annotations

from pathlib import Path

import numpy
import torch
from safetensors.torch import save_file
from torch import nn

from holdfast.model.export import ExportOptions, export_module
from holdfast.model.publishing import publish_weights

__all__ = ["Marked", "mark_again", "marked"]


class Marked(nn.Module):
    """Gives back its input, and twice the number that its weights are: an answer that mixes two versions shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.tensor([1.0]))
        self.second = nn.Parameter(torch.tensor([1.0]))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """The input and the mark."""
        ones = torch.ones_like(x[:, :1])
        return {"same": x + 0.0, "mark": torch.cat([ones * self.first, ones * self.second], 1)}


def marked(root: Path, name: str = "marked") -> Path:
    """Its first version in a folder."""
    return export_module(Marked(), (torch.zeros(2, 4),), root, ExportOptions(name=name)).version.path


def mark_again(root: Path, number: float, scratch: Path) -> Path:
    """The next version, of weights that are `number`."""
    value = torch.tensor([float(numpy.float32(number))])
    weights = scratch / f"weights-{number}.safetensors"
    save_file({"first": value, "second": value.clone()}, weights)
    return publish_weights(root, weights)
