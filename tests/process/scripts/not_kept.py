"""A loop by steps whose script counts in a plain variable: not_kept.py [--kept] [--alone]. See also turns.py."""

from __future__ import annotations

import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

import holdfast as hf

run = hf.join(lanes=4)
x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
model, optimizer, loader = run.prepare(model, optimizer, data)
kept = run.keep(turns=0)
turns, elapsed, now = 0, 0.0, time.time()
for _ in run.epochs(40):
    for step in run.steps(loader):
        begun = time.perf_counter()
        for a, b in step:
            time.sleep(0.004)
            torch.nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.turns += 1
        if "--kept" not in sys.argv:
            turns += 1
        elapsed, now = time.perf_counter() - begun, time.time()
if run.lead:
    print(f"{kept.turns} turns")
