"""A loop by steps whose units are not pure, each in its way.

    impure.py KIND [--log FILE] [--steps N] [--threads T]

KIND `nothing` is pure; it counts, prints and logs in its units.
"""

from __future__ import annotations

import argparse
import os
import random
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import holdfast as hf

LENGTH, WIDTH = 8, 16


class Sequences(Dataset):
    """Numbers, and which is next; `own` is a generator of its own that moves them."""

    def __init__(self, count: int, own: random.Random | None) -> None:
        self.count, self.own = count, own

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        shift = self.own.random() if self.own is not None else 0.0
        return torch.sin(torch.arange(LENGTH) * (1.0 + index % 7) + shift)[:, None], index % 7


class Recurrent(nn.Module):
    """A GRU that takes its hidden state and gives it back, with BatchNorm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.norm, self.out = nn.GRU(1, WIDTH, batch_first=True), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 7)

    def forward(self, x: Tensor, h: Tensor | None) -> tuple[Tensor, Tensor]:
        every, h = self.cell(x, h)
        return self.out(F.dropout(self.norm(every[:, -1]), 0.1, self.training)), h


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("--log", default="")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    kind, batch = args.kind, 24
    run = hf.join(lanes=6, threads=args.threads)
    data = Sequences(batch * args.steps, random.Random() if kind == "samples" else None)
    model = Recurrent()
    other = nn.Linear(1, 1)
    stray = torch.optim.SGD(other.parameters(), lr=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=batch, shuffle=True))
    mine = run.keep(mine=0.0)
    count, h, own = 0, None, random.Random()
    kept = open(f"{args.log}.{run.worker}.kept", "a", buffering=1) if args.log else None  # noqa: SIM115
    for step in run.steps(loader):
        for x, y in step:
            count += 1
            if kind == "nothing":
                print(f"unit {step.number} {count}")
                if args.log:
                    with open(f"{args.log}.{run.worker}.opened", "a") as file:
                        file.write(f"{step.number} {count}\n")
                    kept.write(f"{step.number} {count}\n")
            if kind == "hidden":
                h = h.detach() if h is not None and len(x) == h.shape[1] else None
                scores, h = model(x, h)
            else:
                scores, _ = model(x, None)
            loss = F.cross_entropy(scores, y)
            if kind == "counter":
                loss = loss * (1.0 + 0.001 * count)
            if kind == "random":
                loss = loss * (1.0 + own.random())
            if kind == "system":
                loss = loss * (1.0 + int.from_bytes(os.urandom(2), "little"))
            if kind == "clock":
                loss = loss * (1.0 + time.perf_counter_ns() % 1000)
            loss.backward()
            if kind == "data":
                model.out.weight.data.clamp_(-0.1, 0.1)
            if kind == "stray" and step.number == 3:
                stray.step()
            if kind == "directories":
                os.mkdir(f"{args.log}.{run.worker}.{count}")
        if kind == "between" and step.number == 6:
            model.out.weight.data.mul_(0.5)
        optimizer.step()
        optimizer.zero_grad()
        if kind == "after" and step.number in (2, 5):
            model.out.weight.data.mul_(0.5)
        if kind == "settings" and step.number == 5:
            optimizer.param_groups[0]["weight_decay"] = 0.001 * run.worker
        if kind == "kept" and step.number == 5:
            mine.mine = float(run.worker)
        time.sleep(0.002)
    print(f"worker {run.worker}: {count} units")
    if run.lead:
        print(f"weights_sha256 {run.weights_sha256()}")


if __name__ == "__main__":
    main()
