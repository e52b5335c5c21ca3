"""A model that counts: after training, each number is how often the push that used its sample was applied.

The update of a push is lr * (its share of the step) * (mean gradient); the loss is made such that this is exactly 1 for
every sample of it. All numbers are powers of two, so nothing is rounded.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import holdfast as hf

BATCH, SAMPLES = 32, 256


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--epochs", type=int, default=4)
    options.add_argument("--pace", type=float, default=0.0)
    options.add_argument("--go", type=Path)
    options.add_argument("--began", type=Path, required=True)
    options.add_argument("--seen", default="", help="every unit writes there what it sees of the other parameters")
    options.add_argument("--poison", default="", help="see poison.py")
    options.add_argument("--heavy", action="append", default=[], help="see heavy.py")
    options = options.parse_args()
    run = hf.join(reduction="mean")  # as in tally.py
    model = nn.Linear(SAMPLES, 1, bias=False)
    nn.init.zeros_(model.weight)
    # The slices are small, so that several owners have something to own.
    model.more = nn.ParameterList([nn.Parameter(torch.zeros(1 << 18)) for _ in range(4)])
    kind = torch.optim.SGD
    if options.heavy:
        from heavy import heavy

        kind = heavy(kind, run.worker, options.heavy)
    optimizer = kind(model.parameters(), lr=1.0)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(Numbers(), batch_size=BATCH, shuffle=True))
    seen = os.open(options.seen, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if options.seen else -1
    for _ in run.epochs(options.epochs):
        for numbers in loader:
            options.began.touch()
            if seen >= 0:
                os.write(seen, (" ".join(str(part[0].item()) for part in model.more) + "\n").encode())
            time.sleep(options.pace if options.go is None or not options.go.exists() else 0.0)
            scale = BATCH / len(numbers)
            loss = -(model.weight[0, numbers].sum() + sum(part[0] for part in model.more)) * scale
            loss.backward()
            if options.poison:
                from poison import poison

                poison(run, model, options.poison)
            optimizer.step()
            optimizer.zero_grad()
    if run.lead:
        counts = model.weight.detach().flatten()
        print("lowest", counts.min().item(), "highest", counts.max().item())
        print("more", *(part.detach()[0].item() for part in model.more))


if __name__ == "__main__":
    main()
