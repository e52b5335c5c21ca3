"""What scripts do around a loop by steps: habits.py [--range] [--variables] [--glance] [--die ...]

A seed by hand before the run is joined; schedulers that are stepped after the loop, one by an evaluation; random
numbers of all three kinds drawn between loops; a target network that follows in each turn; early stopping with
patience. With --range the epochs are those of `range`; with --variables patience is counted in plain variables.

With --die, workers are gone at a place (see turns.py): in a unit, after the step, after the loop, after the evaluation.
"""

from __future__ import annotations

import argparse
import copy
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
parser.add_argument("--variables", action="store_true")
parser.add_argument("--glance", action="store_true")
parser.add_argument("--epochs", type=int, default=30)
parser.add_argument("--pace", type=float, default=0.0)
parser.add_argument("--die", default="")
args = parser.parse_args()
die = Fatal(args.die)

torch.manual_seed(11)
run = hf.join(lanes=4)
source = torch.Generator().manual_seed(1)
inputs = torch.randn(128, 5, generator=source)
outputs = inputs.sum(1, keepdim=True) + 0.5 * torch.randn(128, 1, generator=source)
data = TensorDataset(inputs, outputs)
test = DataLoader(TensorDataset(inputs[:40], outputs[:40] + 0.2), batch_size=16)
model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.1), nn.Tanh(), nn.Linear(8, 1))
target = copy.deepcopy(model).requires_grad_(False).eval()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
step_lr = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.9)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
model, target, optimizer, loader, plateau = run.prepare(
    model, target, optimizer, DataLoader(data, batch_size=16, shuffle=True), plateau
)
kept = run.keep(drawn=[]) if args.variables else run.keep(drawn=[], best=float("inf"), waited=0)
if args.variables:
    best, waited = float("inf"), 0
if args.glance:
    first = next(iter(loader))[0]
    for x, _ in loader:
        assert x.shape == first.shape
        break


def measure(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    return {"loss": F.mse_loss(target(x), y)}


done = -1
for epoch in range(args.epochs) if args.range else run.epochs(args.epochs):
    done = epoch
    for step in run.steps(loader):
        for x, y in step:
            time.sleep(args.pace)
            F.mse_loss(model(x), y + 0.1 * target(x)).backward()
            die("in a unit", step.number)
        optimizer.step()
        optimizer.zero_grad()
        die("after the step", step.number)
        with torch.no_grad():
            for theirs, mine in zip(target.parameters(), model.parameters(), strict=True):
                theirs.lerp_(mine, 0.2)
    die("after the loop", run.step)
    kept.drawn = [*kept.drawn[-8:], torch.rand(1).item(), float(numpy.random.rand()), random.random()]
    step_lr.step()
    loss = run.evaluate(measure, test)["loss"]
    die("after the evaluation", run.step)
    plateau.step(loss)
    kept.drawn = [*kept.drawn, torch.randn(1).item()]
    if args.variables:
        waited = 0 if loss < best - 1e-3 else waited + 1
        best = min(loss, best)
    else:
        kept.waited = 0 if loss < kept.best - 1e-3 else kept.waited + 1
        kept.best = min(loss, kept.best)
    if (waited if args.variables else kept.waited) >= 3:
        break
if run.lead:
    print(f"stopped after epoch {done} at step {run.step}, {kept!r}")
    print(f"rate {optimizer.param_groups[0]['lr']!r} {step_lr.last_epoch} {plateau.num_bad_epochs} seed {run.seed}")
digest = run.weights_sha256()
if run.lead:
    print(f"weights_sha256 {digest}", flush=True)
