"""A plain loop, and how its loss falls: curves.py [--seeds N,N...] [--rate R] [--pace S]

Prints for each training the mean loss of every epoch, and that of all samples in the end. Under plain `python` it makes
one training after the other, with each of the seeds; in a crew the run's own. A seed is that of the data's order.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast as hf

parser = argparse.ArgumentParser()
parser.add_argument("--seeds", default="0")
parser.add_argument("--rate", type=float, default=0.01)
parser.add_argument("--pace", type=float, default=0.0)
args = parser.parse_args()
torch.set_num_threads(1)  # alone a plain loop has the script's own number, and two wait for a core at each operation


def train(seed: int) -> None:
    run = hf.join(lanes=4, seed=seed)
    source = torch.Generator().manual_seed(1)
    inputs = torch.randn(200, 10, generator=source)
    data = TensorDataset(inputs, (inputs.sum(1) + inputs[:, 0] * inputs[:, 1] > 0).long())
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.rate)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=24, shuffle=True))
    kept = run.keep(curve=[], total=0.0)
    for _ in run.epochs(14):
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
            time.sleep(args.pace)
            optimizer.step()
            optimizer.zero_grad()
            kept.total += run.loss
        kept.curve = [*kept.curve, kept.total / len(loader)]
        kept.total = 0.0

    def measure(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(model(x), y)}

    end = run.evaluate(measure, DataLoader(data, batch_size=50))["loss"]
    if run.lead:
        print(f"curve {json.dumps([*kept.curve, end])}", flush=True)
    run.close()


for number in map(int, args.seeds.split(",")):
    train(number)
