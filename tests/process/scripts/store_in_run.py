"""A script that uses the store of its run: trains a little, and counts in the store what it has done.

    store_in_run.py PUSHES

Each worker pushes PUSHES times, numbered, whoever is killed meanwhile; then all meet, and say what the store has.
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import holdfast as hf

PUSHES, SIZE = int(sys.argv[1]), 1000


def main() -> None:
    run = hf.join()
    mine = run.store(servers=1, memory="64MiB")
    mine.init("count", torch.zeros(SIZE)).wait()
    for number in range(mine.applied("count") + 1, PUSHES + 1):
        mine.push("count", torch.ones(SIZE), number=number).wait()
        if number % 20 == 0:
            print(f"{mine.client} at {number}", flush=True)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(hf.dataset("digits"), batch_size=64, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for _ in run.epochs(1):
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    mine.barrier("end").wait()
    total = mine.pull("count").result()
    assert run.store(servers=1, memory="64MiB") is mine
    print(f"{mine.client} sees {total.min():.0f} to {total.max():.0f}", flush=True)


if __name__ == "__main__":
    main()
