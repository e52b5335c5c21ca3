"""A loop by steps in which worker 1 does something else in step 3: apart.py WHAT. See misbehave.py."""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import holdfast as hf

WHAT = sys.argv[1]
run = hf.join(lanes=4)
x = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
model = torch.nn.Linear(5, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
model, optimizer, loader = run.prepare(model, optimizer, data)
for _ in run.epochs(2):
    for step in run.steps(loader):
        odd = run.worker == 1 and step.number == (15 if WHAT == "skip-last" else 3)
        if odd and WHAT == "continue":
            continue
        if odd and WHAT == "break-at-the-top":
            break
        for a, b in step:
            F.mse_loss(model(a), b).backward()
        if odd and WHAT == "break":
            break
        if odd and WHAT in ("skip", "skip-last"):
            step.skip()
        else:
            optimizer.step()
        optimizer.zero_grad()
        if odd and WHAT == "evaluate":
            run.evaluate(lambda a, b: {"loss": F.mse_loss(model(a), b)}, data)
if run.lead:
    print(run.step)
