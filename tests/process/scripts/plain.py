"""A plain loop with what counts by step: an average of the weights, a schedule, a counter. Prints what they came to.

    plain.py [--epochs E] [--accumulate K] [--pace S] [--along | --count]
"""

from __future__ import annotations

import argparse
import itertools
import json
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast as hf


class Average:
    """An average of all weights there were."""

    def __init__(self, model: nn.Module) -> None:
        self.values = [p.detach().clone() for p in model.parameters()]

    def update(self, model: nn.Module) -> None:
        for value, parameter in zip(self.values, model.parameters(), strict=True):
            value.mul_(0.9).add_(parameter.detach(), alpha=0.1)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {str(number): value for number, value in enumerate(self.values)}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        for number, value in enumerate(self.values):
            value.copy_(state[str(number)])


def total(tensors: object) -> float:
    return sum(float(t.detach().double().abs().sum()) for t in tensors)  # type: ignore[attr-defined]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--along", action="store_true", help="another loader goes along, by zip")
    parser.add_argument("--count", action="store_true", help="seven turns an epoch, and a counter by zip")
    args = parser.parse_args()
    run = hf.join(lanes=4, seed=5)
    source = torch.Generator().manual_seed(1)
    x = torch.randn(200, 10, generator=source)
    model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
    loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=24, shuffle=True)
    other = DataLoader(TensorDataset(x.flip(0)), batch_size=24, shuffle=True)
    model, optimizer, loader, other, schedule = run.prepare(model, optimizer, loader, other, schedule)
    average, kept = run.keep(Average(model), turns=0, rates=[])
    for _ in run.epochs(args.epochs):
        turns = enumerate(zip(loader, other, strict=True) if args.along else loader, 1)
        for number, several in zip(itertools.count(1), itertools.islice(loader, 7)) if args.count else turns:
            assert not args.count or number == run.step % 7 + 1
            (inputs, targets), extra = (several[0], several[1][0]) if args.along else (several, None)
            loss = F.cross_entropy(model(inputs), targets)
            if extra is not None:
                assert extra.shape == inputs.shape
                loss = loss + model(extra).square().mean()
            (loss / args.accumulate).backward()
            time.sleep(args.pace)
            kept.turns += 1
            if number % args.accumulate == 0 or number == len(loader):
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
                average.update(model)
                if run.step % 5 == 0:
                    kept.rates = [*kept.rates, schedule.get_last_lr()[0]]
    if run.lead:
        facts = {
            "turns": kept.turns, "steps": run.step, "rates": kept.rates, "ema": total(average.values),
            "weights": total(model.parameters()),
        }  # fmt: skip
        print(f"turns {json.dumps(facts)}", flush=True)


if __name__ == "__main__":
    main()
