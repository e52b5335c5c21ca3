"""A small model whose units take the time of an accelerator, and pause now and then: see `modes`."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast as hf
from benchmarks.modes import pause

LANES = 4


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    run = hf.join(lanes=LANES)
    data = TensorDataset(torch.randn(16 * options.steps, 8), torch.randint(0, 3, (16 * options.steps,)))
    model = nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=16))
    begun = None
    for x, y in loader:
        begun = begun or time.perf_counter()
        unit = int.from_bytes(x.numpy().tobytes()[:6], "little")  # the same pause for the same unit, in every mode
        time.sleep(pause(random.Random(unit ^ options.seed)))
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    if run.lead and begun is not None:
        options.out.write_text(json.dumps(time.perf_counter() - begun))


if __name__ == "__main__":
    main()
