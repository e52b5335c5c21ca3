"""Which samples are hard? Train on digits, and keep the newest loss of every sample in the store of the run.

    python examples/hard_samples.py
    holdfast run --workers 2 examples/hard_samples.py

All workers share one table; each pushes rows of the samples it has just seen. It does so after the loop over its units:
a unit may be computed twice, and what leaves the process there could not be taken back. The handler replaces what was
there, so a unit that is computed again after a kill changes nothing.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import holdfast as hf
from holdfast import store


class Numbered(Dataset[tuple[Tensor, int, int]]):
    """A data set whose samples know their numbers."""

    def __init__(self, name: str) -> None:
        self.data = hf.dataset(name)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, number: int) -> tuple[Tensor, int, int]:
        x, y = self.data[number]
        return x, int(y), number


def latest(key: str, stored: Tensor, pushed: Tensor) -> None:
    """The handler: what is new replaces what was there."""
    stored.copy_(pushed)


def main() -> None:
    run = hf.join()
    mine = run.store(handler=latest)
    data = Numbered("digits")
    mine.init("losses", torch.zeros(len(data), 1)).wait()
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=64, shuffle=True))
    for _ in run.epochs(5):
        for step in run.steps(loader):
            seen = []
            for x, y, numbers in step:
                losses = F.cross_entropy(model(x), y, reduction="none")
                losses.mean().backward()
                seen.append(store.Rows(numbers, losses.detach()[:, None]))
            optimizer.step()
            optimizer.zero_grad()
            for rows in seen:
                mine.push("losses", rows)
    mine.wait()
    mine.barrier("all are in").wait()
    if run.lead:
        hardest = mine.pull("losses").result().flatten().topk(3)
        shown = ", ".join(f"{int(n)} ({float(loss):.2f})" for loss, n in zip(*hardest, strict=True))
        print(f"mean loss {run.loss:.3f}; the hardest samples: {shown}")


if __name__ == "__main__":
    main()
