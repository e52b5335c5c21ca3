"""What `draw_modes` trains: a small network on handwritten digits, whose units take the time of an accelerator."""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast as hf
from holdfast.data.sources import dataset

SECONDS, FACTOR, EPOCHS, BATCH = 0.005, 4, 12, 64


def tensors(split: str) -> TensorDataset:
    found = dataset("digits", split)
    return TensorDataset(torch.as_tensor(found.features).flatten(1), torch.as_tensor(found.labels).long())


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--setting", choices=["equal", "slow", "pausing"], default="equal")
    options = options.parse_args()
    run = hf.join()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(tensors("train"), batch_size=BATCH, shuffle=True)
    test = DataLoader(tensors("test"), batch_size=360)
    model, optimizer, loader = run.prepare(model, optimizer, loader)

    def measure(x: Tensor, y: Tensor) -> dict[str, float]:
        return {"loss": F.cross_entropy(model(x), y).item()}

    def nap(x: Tensor) -> float:
        if options.setting == "pausing":  # a heavy tail; the same unit pauses as long in every mode
            chance = random.Random(x.numpy().tobytes())
            return SECONDS + (min(SECONDS * chance.paretovariate(1.1), 0.1) if chance.random() < 0.15 else 0.0)
        return SECONDS * (FACTOR if options.setting == "slow" and run.worker == 0 else 1)

    losses: list[tuple[float, float]] = []
    begun = 0.0
    for _ in run.epochs(EPOCHS):
        for x, y in loader:
            begun = begun or time.perf_counter()
            time.sleep(nap(x))
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        seconds = time.perf_counter() - begun
        losses.append((seconds, run.evaluate(measure, test)["loss"]))
    if run.lead:
        options.out.write_text(json.dumps(losses))


if __name__ == "__main__":
    main()
