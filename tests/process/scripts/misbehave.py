"""A script that does one thing wrong, named by its first argument. Without one it trains well for 12 steps."""

from __future__ import annotations

import contextlib
import os
import sys
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import holdfast as hf

WHAT = sys.argv[1] if len(sys.argv) > 1 else ""
BAD = 37  # a sample

if WHAT == "raise-at-import":
    raise RuntimeError("no such thing as luck")
if WHAT == "never-join":
    print("done without joining")
    sys.exit(0)
if WHAT == "never-prepare":
    hf.join()
    print("done without preparing")
    sys.exit(0)


class Samples(Dataset):
    """Numbers to learn."""

    def __init__(self) -> None:
        self.inputs = torch.arange(192.0)[:, None] / 192
        self.taken = 0

    def __len__(self) -> int:
        return 192 - (WHAT == "shrinking-data" and self.taken > 40)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        self.taken += 1
        if WHAT == "bad-sample" and index == BAD:
            raise ValueError(f"sample {index} cannot be read")
        if WHAT == "nan" and index == BAD:
            return self.inputs[index] * float("nan"), self.inputs[index], index
        return self.inputs[index], self.inputs[index] ** 2, index


class Huge(nn.Module):
    """Its weights are never touched and so take no memory; a gradient for every lane would be twice of all there is."""

    def __init__(self, lanes: int) -> None:
        super().__init__()
        with open("/proc/meminfo") as file:
            total = int(file.readline().split()[1]) * 1024
        self.weight = nn.Parameter(torch.zeros(2 * total // lanes // 4))


def plain(run: hf.Run, model: nn.Module, optimizer: torch.optim.Optimizer, loader: hf.Loader) -> None:
    """A plain loop, with a gradient scaler, or with steps at other turns in each worker."""
    scaler = torch.amp.GradScaler("cpu", enabled=WHAT == "plain-scaler")
    for number, (x, y, _) in enumerate(loader, 1):
        scaler.scale(F.mse_loss(model(x), y)).backward()
        if WHAT == "plain-scaler" or number % (2 + run.worker) == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def main() -> None:
    lanes = 128 if WHAT == "huge" else 4
    run = hf.join(lanes=lanes)
    width = 16 + run.worker if WHAT == "another-width" else 16
    model: nn.Module = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, 1))
    if WHAT == "huge":
        model = Huge(lanes)
    optimizer = torch.optim.LBFGS(model.parameters()) if WHAT == "lbfgs" else torch.optim.Adam(model.parameters())
    loader = DataLoader(Samples(), batch_size={"small-batch": 3, "huge": 128}.get(WHAT, 16), shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    if WHAT.startswith("plain"):
        plain(run, model, optimizer, loader)
    for _ in run.epochs(1):
        for turn in run.steps(loader):
            for x, y, numbers in turn:
                # Not in variables of the loop: they would differ in a worker that comes late, which is let go for that.
                if WHAT == "raise-in-first-unit" or (WHAT == "raise-in-one-unit" and BAD in numbers):
                    raise KeyError("a column is missing")
                if WHAT == "raise-once" and run.unit[:2] == (5, 1):
                    try:
                        os.close(os.open(sys.argv[2], os.O_CREAT | os.O_EXCL))
                    except FileExistsError:
                        pass
                    else:
                        raise OSError("the network was away for a moment")
                if WHAT == "die-in-one-unit" and BAD in numbers:
                    os.abort()
                if WHAT == "hang-in-one-unit" and BAD in numbers:
                    time.sleep(3600)
                if WHAT == "exit-in-a-unit" and run.unit[0] == 5:
                    sys.exit(0)
                loss = F.mse_loss(model(x), y)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    if run.lead:
        print(f"weights_sha256 {run.weights_sha256()}")
    if WHAT == "join-again":
        join_again(run, sys.argv[2])
    elif WHAT == "close":
        run.close()


def join_again(run: hf.Run, how: str) -> None:
    lead = run.lead
    if how == "store":
        run.store()
    with contextlib.suppress(ValueError):
        try:
            if how == "left":
                raise ValueError
        finally:
            run.close()
    if how != "apart" or lead:
        hf.join()


if __name__ == "__main__":
    main()
