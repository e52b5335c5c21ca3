"""Several trainings in one script, as in cross-validation: folds.py [--folds N] [--range] [--plain] [--pace SECONDS]
[--lack VALUE] [--die PLACE:FOLD:NUMBER:DIRECTORY]

Models, data, lanes and seeds differ from fold to fold. What the script keeps, an EMA, a schedule, evaluations and what
it draws are in what is printed. With --lack, a later fold follows from what an earlier one left in a plain variable.
With --die, the first NUMBER workers that come to a place of a fold are gone there, as after `kill -9`.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import holdfast as hf
from tests.process.scripts.turns import Fatal

options = argparse.ArgumentParser()
options.add_argument("--folds", type=int, default=3)
options.add_argument("--epochs", type=int, default=2)
options.add_argument("--range", action="store_true", help="for epoch in range(...)")
options.add_argument("--plain", action="store_true", help="the plain loop, without what only mode `exact` has")
options.add_argument("--lack", default="", choices=["", "turns", "best", "epochs"])
options.add_argument("--pace", type=float, default=0.0, help="seconds for a unit")
options.add_argument("--die", default="")
asked = options.parse_args()

die = Fatal(asked.die)
x = torch.randn(96, 8, generator=torch.Generator().manual_seed(0))
data = TensorDataset(x, (x.sum(1) > 0).long())
scores: list[float] = []
best, turns = 1.0, 0


def network(fold: int) -> nn.Module:
    width = 16 + 8 * fold
    normed = nn.Identity() if asked.plain else nn.BatchNorm1d(width)
    return nn.Sequential(nn.Linear(8, width), normed, nn.Linear(width, 2))


for fold in range(asked.folds):
    die("before the join", fold)
    run = hf.join(lanes=4 + 2 * (fold % 2), seed=fold)
    model = network(fold)
    if asked.lack in ("turns", "best"):
        nn.init.constant_(model[0].bias, best if asked.lack == "best" else 1.0 / (1 + turns))
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    chosen = Subset(data, [sample for sample in range(96) if sample % asked.folds != fold])
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(chosen, batch_size=16, shuffle=True))
    kept = None if asked.plain else run.keep(average, best=0.0)[-1]
    held_out = DataLoader(Subset(data, range(fold, 96, asked.folds)), batch_size=16)

    def measure(a: torch.Tensor, b: torch.Tensor, model: nn.Module = model) -> dict[str, torch.Tensor]:
        return {"right": (model(a).argmax(1) == b).float().mean(), "loss": F.cross_entropy(model(a), b)}

    epochs = asked.epochs - (asked.lack == "epochs" and turns > 4)
    for _ in range(epochs) if asked.range else run.epochs(epochs):
        model.train()
        if asked.plain:
            for a, b in loader:
                time.sleep(asked.pace)
                F.cross_entropy(model(a), b).backward()
                optimizer.step()
                optimizer.zero_grad()
        else:
            for step in run.steps(loader):
                for a, b in step:
                    time.sleep(asked.pace)
                    die("in a unit", 10 * fold + run.step)
                    F.cross_entropy(model(a), b).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                average.update_parameters(model)
                die("after the step", 10 * fold + run.step)
                if asked.lack:
                    turns += 1
                    best = min(best, step.loss)
        schedule.step()
        model.eval()
        found = run.evaluate(measure, held_out)
        if kept is not None:
            kept.best = max(kept.best, found["right"])
    die("after the loop", fold)
    score, noise = found["right"] if kept is None else kept.best, torch.rand(1).item()
    scores.append(score + noise)
    if run.lead:
        ema = sum(float(tensor.detach().sum()) for tensor in average.parameters())
        print(f"fold {fold}: {run.step} steps, {run.weights_sha256()}, {score:.4f}, {found['loss']:.6f}, {ema:.5f}")
    run.close()
    die("after the close", fold)
print("scores", *(f"{score:.5f}" for score in scores))
