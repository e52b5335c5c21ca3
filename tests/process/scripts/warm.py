"""A script that tells how good its model is before it trains it, and saves it when it is at its best.

    warm.py [--epochs E] [--load PATH] [--save FILE] [--classes N] [--kill WORKER:N]

With --kill, this worker kills itself in its N-th save, when all bytes are written and the file has not its name yet.
"""

from __future__ import annotations

import argparse
import os
import signal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader
from train import LeNet, digits

import holdfast as hf
from holdfast.checkpoint.disk import Disk


def die_at(number: int) -> None:
    """Have this process killed at its so many-th fsync of a file."""
    synced, sync = [0], Disk.sync

    def counted(self: Disk, descriptor: int) -> None:
        sync(self, descriptor)
        synced[0] += 1
        if synced[0] == number:
            os.kill(os.getpid(), signal.SIGKILL)

    Disk.sync = counted


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--load", default="")
    parser.add_argument("--save", default="")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--kill", default="")
    args = parser.parse_args()
    run = hf.join(lanes=4, seed=7)
    if args.kill and int(args.kill.split(":")[0]) == run.worker:
        die_at(int(args.kill.split(":")[1]))
    model = LeNet()
    if args.classes != 10:
        model[-1] = nn.Linear(84, args.classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(digits("train", 28, 484), batch_size=32, shuffle=True)
    test = DataLoader(digits("test", 28, 90), batch_size=10)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    kept = run.keep(best=float("inf"))
    if args.load:
        loaded = run.load(args.load)
        print(f"loaded {tuple(loaded)}")

    def measure(x: Tensor, y: Tensor, _: Tensor) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(model(x), y)}

    print(f"evaluated {run.evaluate(measure, test)['loss']!r}")
    for epoch in run.epochs(args.epochs):
        for step in run.steps(loader):
            for x, y, _ in step:
                F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        score = run.evaluate(measure, test)["loss"]
        if args.save and score < kept.best:
            kept.best = score
            run.save(args.save)
            print(f"saved {epoch}")
        print(f"evaluated {score!r}", flush=True)


if __name__ == "__main__":
    main()
