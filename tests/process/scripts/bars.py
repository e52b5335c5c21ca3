"""Progress bars and counts around both loops: bars.py [--pace S]

Two passes of a plain loop, two by steps. After each one, what `enumerate` and the bars of tqdm have come to.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

import holdfast as hf

parser = argparse.ArgumentParser()
parser.add_argument("--pace", type=float, default=0.0)
args = parser.parse_args()

run = hf.join(lanes=4, seed=1)
inputs = torch.randn(192, 5, generator=torch.Generator().manual_seed(1))
model = nn.Linear(5, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model, optimizer, loader = run.prepare(model, optimizer, loader)
kept = run.keep(came=[])


def end(batches: Iterable[Any]) -> None:
    for x, y in batches:
        F.mse_loss(model(x), y).backward()
    time.sleep(args.pace)
    optimizer.step()
    optimizer.zero_grad()


for epoch in run.epochs(4):
    bar = tqdm(loader if epoch < 2 else run.steps(loader), desc=f"epoch {epoch}")
    if epoch % 2:
        for number, item in enumerate(bar, 1):  # noqa: B007
            end([item] if epoch < 2 else item)
    else:  # the other way round
        bar = tqdm(enumerate(bar, 1), mininterval=0.0)
        for number, item in bar:
            end([item] if epoch < 2 else item)
            assert abs(bar.n - number) <= 1, "what it shows while it goes"
    kept.came = [*kept.came, (number, bar.n)]
if run.lead:
    print(kept.came, flush=True)
