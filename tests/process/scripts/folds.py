"""Several trainings in one script, as in cross-validation: folds.py [--folds N] [--plain] [--lack] [--pace SECONDS] ...

Models, data, lanes and seeds differ from fold to fold. What the script keeps, an EMA, a schedule and evaluations are in
what is printed. With `--lack`, a later fold begins with what an earlier one has left in a plain variable.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import holdfast as hf

options = argparse.ArgumentParser()
options.add_argument("--folds", type=int, default=3)
options.add_argument("--epochs", type=int, default=3)
options.add_argument("--range", action="store_true", help="for epoch in range(...)")
options.add_argument("--plain", action="store_true", help="the plain loop")
options.add_argument("--lack", action="store_true")
options.add_argument("--lack-epochs", action="store_true")
options.add_argument("--pace", type=float, default=0.0, help="seconds for a unit")
asked = options.parse_args()

x = torch.randn(96, 8, generator=torch.Generator().manual_seed(0))
data = TensorDataset(x, (x.sum(1) > 0).long())
parts = asked.folds
scores: list[float] = []
first = best = 0.0
turns = 0


def network(fold: int) -> nn.Module:
    width = 16 + 8 * fold
    return nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.Dropout(0.2), nn.Linear(width, 2))


for fold in range(parts):
    run = hf.join(lanes=4 + 2 * (fold % 2), seed=fold)
    model = network(fold)
    if asked.lack and fold:
        nn.init.constant_(model[0].bias, best)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    chosen = Subset(data, [sample for sample in range(96) if sample % parts != fold])
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(chosen, batch_size=24, shuffle=True))
    kept = run.keep(average, best=0.0)[-1]
    held_out = DataLoader(Subset(data, range(fold, 96, parts)), batch_size=16)

    def measure(a: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"right": (model(a).argmax(1) == b).float().mean(), "loss": F.cross_entropy(model(a), b)}

    number = asked.epochs - (asked.lack_epochs and turns > 0)
    for _ in range(number) if asked.range else run.epochs(number):
        model.train()
        if asked.plain:
            for a, b in loader:
                time.sleep(asked.pace)
                F.cross_entropy(model(a), b).backward()
                optimizer.step()
                optimizer.zero_grad()
        else:
            for count, step in enumerate(run.steps(loader)):
                for a, b in step:
                    time.sleep(asked.pace)
                    F.cross_entropy(model(a), b).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                average.update_parameters(model)
                if asked.lack:
                    turns += count + 1
        schedule.step()
        model.eval()
        found = run.evaluate(measure, held_out)
        kept.best = max(kept.best, found["right"])
        if asked.lack:
            best = max(best, 1.0 / (1.0 + turns))
    if run.lead:
        noise, ema = torch.rand(1).item(), sum(float(p.detach().sum()) for p in average.parameters())
        print(f"fold {fold}: {run.step} steps, {run.weights_sha256()}, {kept.best:.4f}, {found['loss']:.6f}, {ema:.6f}")
    else:
        noise = torch.rand(1).item()
    scores.append(kept.best + noise)
    run.close()
print("scores", *(f"{score:.6f}" for score in scores))
