"""A few numbers trained with Adam, in double precision, under a schedule: small enough to be computed again by hand.

Every unit leaves a line, `step lane sample,sample,...`, before its gradient is handed over. At the end the lead prints
the weights.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import holdfast as hf

SAMPLES, BATCH, LANES, RATE, DECAY = 64, 8, 4, 0.05, 0.98
LOADED = 7, 0.25, 0.5  #: steps, mean and square of the gradients so far


class Points(Dataset[tuple[Tensor, Tensor, int]]):
    """A curve that no line fits, so that gradients never vanish."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        x = torch.arange(1.0, 4.0, dtype=torch.float64) * (index / SAMPLES - 0.4)
        return torch.sin(x), torch.cos(3 * x[:1]), index


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--epochs", type=int, required=True)
    options.add_argument("--pace", type=float, default=0.0)
    options.add_argument("--go", type=Path, required=True)
    options.add_argument("--trace", type=Path, required=True)
    options.add_argument("--loaded", action="store_true", help="the optimizer goes on from a checkpoint")
    options.add_argument("--hold", action="append", default=[], help="STEP:FILE, units of it wait until it is there")
    options = options.parse_args()
    run = hf.join(lanes=LANES, seed=3)
    model = nn.Linear(3, 1, dtype=torch.float64)
    nn.init.constant_(model.weight, 0.5)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, DECAY)
    if options.loaded:
        for parameter in model.parameters():
            optimizer.state[parameter] = {
                "step": torch.tensor(float(LOADED[0])), "exp_avg": torch.full_like(parameter, LOADED[1]).detach(),
                "exp_avg_sq": torch.full_like(parameter, LOADED[2]).detach(),
            }  # fmt: skip
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(Points(), batch_size=BATCH, shuffle=True))
    holds = {int(step): Path(file) for step, _, file in (text.partition(":") for text in options.hold)}
    trace = os.open(options.trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for _ in run.epochs(options.epochs):
        for x, y, numbers in loader:
            step, lane, mine = run.unit or (run.step, 0, [])  # else they are another worker's numbers
            if mine:
                os.write(trace, f"{step} {lane} {','.join(map(str, numbers.tolist()))}\n".encode())
            time.sleep(0.0 if options.go.exists() else options.pace)
            while step in holds and not holds[step].exists():
                time.sleep(0.002)
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    if run.lead:
        print("weights", *(number.hex() for part in model.parameters() for number in part.detach().flatten().tolist()))


if __name__ == "__main__":
    main()
