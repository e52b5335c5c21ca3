"""A small GAN by steps, with two phases in a turn:

    gan.py KIND [--steps N]

KIND says what the second phase uses: `carried` is the noise that the first has drawn last, `anew` noise of its own,
`gradient` that, and a copy of the gradient of the first.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast as hf


class Gan:
    """Both models; each phase is a method, with variables of its own."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.made = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        self.told = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
        self.making = torch.optim.Adam(self.made.parameters(), lr=0.01, betas=(0.5, 0.999))
        self.telling = torch.optim.Adam(self.told.parameters(), lr=0.01, betas=(0.5, 0.999))
        self.z: Tensor | None = None
        self.before: Tensor | None = None

    def train_told(self, step: Iterable[Any]) -> None:
        for (x,) in step:
            self.z = torch.randn(len(x), 3)
            (F.softplus(-self.told(x)) + F.softplus(self.told(self.made(self.z).detach()))).mean().backward()
        self.before = self.told[0].weight.grad.clone()
        self.telling.step()
        self.telling.zero_grad()

    def train_made(self, step: Iterable[Any]) -> None:
        for (x,) in step:
            if self.kind != "carried":
                self.z = torch.randn(len(x), 3)
            loss = F.softplus(-self.told(self.made(self.z))).mean()
            if self.kind == "gradient":
                loss = loss + (self.told[0].weight * self.before).sum()
            loss.backward()
        self.making.step()
        self.making.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()
    run = hf.join(lanes=4)
    gan = Gan(args.kind)
    data = TensorDataset(torch.randn(16 * args.steps, 2, generator=torch.Generator().manual_seed(1)))
    loader = DataLoader(data, batch_size=16, shuffle=True)
    *_, loader = run.prepare(gan.made, gan.told, gan.making, gan.telling, loader)
    for step in run.steps(loader):
        gan.train_told(step)
        gan.train_made(step)
    digest = run.weights_sha256()
    if run.lead:
        print(f"weights_sha256 {digest}")


if __name__ == "__main__":
    main()
