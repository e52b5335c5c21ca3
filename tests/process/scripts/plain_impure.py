"""A plain loop in which workers do what must be the same in all of them, each in its way.

    plain_impure.py KIND

KIND `nothing` does the same everywhere.
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

import holdfast as hf


def main() -> None:
    kind = sys.argv[1]
    run = hf.join(lanes=4, seed=1)
    x = torch.randn(20 * 16, 5, generator=torch.Generator().manual_seed(1))
    model = nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    plateau = ReduceLROnPlateau(optimizer, patience=0, factor=0.7)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
    model, optimizer, loader, plateau = run.prepare(model, optimizer, loader, plateau)
    kept = run.keep(mine=0.0, turns=0)
    for epoch in range(2):
        for batch, y in loader:
            loss = F.mse_loss(model(batch), y)
            loss.backward()
            if kind == "before" and run.step == 6:
                model.weight.data.mul_(0.5)
            optimizer.step()
            optimizer.zero_grad()
            kept.turns += 1
            if kind == "after":
                model.weight.data.mul_(0.98)
            if kind == "plateau":
                plateau.step(loss.item())
            if kind == "whole":
                plateau.step(run.loss)
            if kind == "settings" and run.step == 6:
                optimizer.param_groups[0]["weight_decay"] = 0.001 * run.worker
            if kind == "kept" and run.step == 6:
                kept.mine = float(run.worker)
        if kind == "epoch" and epoch == 0:
            plateau.step(loss.item())
    print(f"worker {run.worker} ends with lr {optimizer.param_groups[0]['lr']!r}", flush=True)


if __name__ == "__main__":
    main()
