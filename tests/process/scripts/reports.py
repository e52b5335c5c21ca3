"""Epochs of `range`, with a report after each loop by steps that needs what its turns leave behind: reports.py."""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import holdfast as hf

run = hf.join(lanes=4)
x = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
data = TensorDataset(x, x.sum(1, keepdim=True))
model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=8, shuffle=True))
test = DataLoader(data, batch_size=32)
kept = run.keep(turns=0, best=float("inf"))
reports = []
for epoch in range(12):
    for step in run.steps(loader):
        for a, b in step:
            time.sleep(0.006)
            loss = F.mse_loss(model(a), b)
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        kept.turns += 1
        if step.number % 8 == 0:
            score = run.evaluate(lambda a, b: {"loss": F.mse_loss(model(a), b)}, test)["loss"]
            kept.best = min(kept.best, score)
        if run.lead:
            print(f"step {step.number}: {step.loss:.6f}, norm {norm:.6f}, score {score:.6f}", flush=True)
    reports.append(f"{epoch}: {loss.item()} {step.number} {step.loss} {norm} {len(a)} {score}")
digest = run.weights_sha256()
if run.lead:
    print(f"{kept!r} rate {optimizer.param_groups[0]['lr']!r} weights_sha256 {digest}", flush=True)
