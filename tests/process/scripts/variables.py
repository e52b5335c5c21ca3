"""A loop in a method, with all that scripts note around one: variables.py [--plain] [--lack WHAT] [--epochs E]

With --lack, something that turns depend on is not kept: `main` (a variable of the caller, a best loss), `self` (an
attribute of the trainer), `entry` (one of a dict), `state` (an attribute of an object of it), `global`. What differs
rightly is there in any case: times, throughput, a meter, what each worker counts of its own samples.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import holdfast as hf

begun = time.perf_counter()
moved = 0


@dataclass
class State:
    best: float = float("inf")


class Meter:
    def __init__(self) -> None:
        self.sum, self.count, self.avg, self.took = 0.0, 0, 0.0, 0.0

    def update(self, value: float, n: int) -> None:
        self.sum, self.count = self.sum + value * n, self.count + n
        self.avg = self.sum / self.count


class Trainer:
    def __init__(self, run: Any, lack: str) -> None:
        self.run, self.lack, self.best, self.counters, self.state = run, lack, float("inf"), {"turns": 0}, State()
        self.started, self.elapsed, self.rate, self.seen = time.time(), 0.0, 0.0, 0

    def note(self, loss: float) -> None:
        """After a step."""
        global moved
        if self.lack == "self":
            self.best = min(self.best, loss)
        elif self.lack == "entry":
            self.counters["turns"] += 1
        elif self.lack == "state":
            self.state.best = min(self.state.best, loss)
        elif self.lack == "global":
            moved += 1

    def by_steps(self, model: Any, optimizer: Any, loader: Any) -> None:
        losses, correct, samples = Meter(), 0, 0
        for step in self.run.steps(loader):
            top = time.perf_counter()
            for x, y in step:
                _, lane, _ = self.run.unit or (0, 0, [])
                time.sleep(0.004)
                loss = F.mse_loss(model(x), y)
                loss.backward()
                value, n = loss.item(), len(x)
                correct += int((loss < 0.5).sum())
                samples += n
                self.seen += n
                losses.update(value, n + lane % 1)
            optimizer.step()
            optimizer.zero_grad()
            self.note(step.loss)
            losses.took = time.perf_counter() - top
            self.elapsed, self.rate = time.time() - self.started, samples / (time.perf_counter() - top)

    def plain(self, model: Any, optimizer: Any, loader: Any) -> None:
        losses, correct, samples = Meter(), 0, 0
        for x, y in loader:
            top, n = time.perf_counter(), len(x)
            time.sleep(0.008)
            loss = F.mse_loss(model(x), y)
            loss.backward()
            if self.run.unit is not None:
                _, lane, _ = self.run.unit
                losses.update(loss.item(), n + lane % 1)
            optimizer.step()
            optimizer.zero_grad()
            correct += int((loss < 0.5).sum())
            samples += n
            self.note(self.run.loss)
            losses.took = time.perf_counter() - top
            self.elapsed, self.rate = time.time() - self.started, samples / (time.perf_counter() - top)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--lack", default="")
    parser.add_argument("--epochs", type=int, default=40)
    args = parser.parse_args()
    run = hf.join(lanes=4)
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, data)
    trainer = Trainer(run, args.lack)
    best, epoch_took = float("inf"), 0.0
    for _ in run.epochs(args.epochs):
        top = time.perf_counter()
        (trainer.plain if args.plain else trainer.by_steps)(model, optimizer, loader)
        epoch_took = time.perf_counter() - top
        if args.lack == "main":
            best = min(best, run.loss)
    if run.lead:
        print(f"{run.step} steps, {epoch_took >= 0.0 and best > 0.0 and begun > 0.0}")


if __name__ == "__main__":
    main()
