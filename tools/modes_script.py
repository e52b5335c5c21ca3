"""What `draw_modes` trains: a small network on handwritten digits, whose units take the time of an accelerator."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast as hf
from holdfast.data.sources import dataset

SECONDS, FACTOR, EPOCHS, BATCH = 0.01, 4, 6, 32


def tensors(split: str) -> TensorDataset:
    found = dataset("digits", split)
    return TensorDataset(torch.as_tensor(found.features).flatten(1), torch.as_tensor(found.labels).long())


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--slow", action="store_true")
    options = options.parse_args()
    run = hf.join()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(tensors("train"), batch_size=BATCH, shuffle=True)
    test = DataLoader(tensors("test"), batch_size=360)
    model, optimizer, loader = run.prepare(model, optimizer, loader)

    def measure(x: Tensor, y: Tensor) -> dict[str, float]:
        return {"loss": F.cross_entropy(model(x), y).item()}

    nap = SECONDS * (FACTOR if options.slow and run.worker == 0 else 1)
    losses: list[tuple[float, float]] = []
    begun = 0.0
    for _ in run.epochs(EPOCHS):
        for x, y in loader:
            begun = begun or time.perf_counter()
            time.sleep(nap)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        seconds = time.perf_counter() - begun
        losses.append((seconds, run.evaluate(measure, test)["loss"]))
    if run.lead:
        options.out.write_text(json.dumps(losses))


if __name__ == "__main__":
    main()
