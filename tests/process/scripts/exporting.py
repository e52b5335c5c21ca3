"""A script that exports its model itself: a part of it, what is around it, or several.

    exporting.py [--to DIR] [--what whole|around|branches|inside] [--save FILE] [--steps N]
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast as hf


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(F.relu(self.norm(self.body(x)))))


class Branching(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) if x.sum() > 0 else -self.net(x)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--to")
    parser.add_argument("--what", default="")
    parser.add_argument("--save", default="")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--never", action="store_true")
    args = parser.parse_args()
    run = hf.join(lanes=4, seed=7)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    numbers = torch.Generator().manual_seed(1)
    x = torch.randn(96, 6, generator=numbers)
    loader = DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=32, shuffle=True)
    net, optimizer, loader = run.prepare(net, optimizer, loader)
    print("what a script prints is not the result")
    for _ in run.epochs(args.epochs):
        for step in run.steps(loader):
            for a, b in step:
                loss = F.cross_entropy(net.forward(a) if args.never else net(a), b)
                loss.backward()
                if args.what == "inside":
                    run.export(net, a, to=args.to)
            optimizer.step()
            optimizer.zero_grad()
        assert net.training
    what = {"whole": net, "around": nn.Sequential(net, nn.Softmax(1)), "branches": Branching(net)}.get(args.what)
    if what is not None:
        folder = run.export(what, x[:5], to=args.to, classes=["a", "b", "c"])
        assert what.training
        print(f"exported {folder}")
    if args.save:
        run.save(args.save)


if __name__ == "__main__":
    main()
