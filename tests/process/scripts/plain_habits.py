"""What scripts do around a plain loop: plain_habits.py [--range] [--pace S] [--die ...]

Schedulers by step and by epoch, evaluations in the loop and after it, random numbers of all three kinds drawn between
loops, and a report that needs what the turns leave behind. With --range the epochs are those of `range`.

With --die, workers are gone at a place (see turns.py): after the step, after the loop, after the evaluation.
"""

from __future__ import annotations

import argparse
import math
import random
import time

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from turns import Fatal

import holdfast as hf

parser = argparse.ArgumentParser()
parser.add_argument("--range", action="store_true")
parser.add_argument("--pace", type=float, default=0.0)
parser.add_argument("--die", default="")
args = parser.parse_args()
die = Fatal(args.die)

run = hf.join(lanes=4, seed=1)
inputs = torch.randn(128, 5, generator=torch.Generator().manual_seed(1))
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
warm = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
step_lr = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.9)
loader = DataLoader(data, batch_size=16, shuffle=True)
model, optimizer, loader, warm, step_lr = run.prepare(model, optimizer, loader, warm, step_lr)
test = DataLoader(data, batch_size=32)
kept = run.keep(turns=0, drawn=[], rates=[], best=float("inf"))


def measure(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    return {"loss": F.mse_loss(model(x), y)}


for _ in range(5) if args.range else run.epochs(5):
    for number, (x, y) in enumerate(loader, 1):
        time.sleep(args.pace)
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        warm.step()
        kept.turns += 1
        die("after the step", run.step)
        if number % 4 == 1:
            score = run.evaluate(measure, test)["loss"]
            kept.drawn = [*kept.drawn, torch.rand(1).item()]
    die("after the loop", run.step)
    kept.drawn = [*kept.drawn, torch.rand(1).item(), float(numpy.random.rand()), random.random()]
    step_lr.step()
    assert math.isfinite(loss.item() + score) and len(x)
    kept.best = min(kept.best, run.evaluate(measure, test)["loss"])
    die("after the evaluation", run.step)
    kept.drawn = [*kept.drawn, torch.rand(1).item()]
    kept.rates = [*kept.rates, optimizer.param_groups[0]["lr"]]
if run.lead:
    print(f"step {run.step}, {kept.turns} turns, rates {kept.rates}, drew {kept.drawn}")
    print(f"best {kept.best!r}", flush=True)
