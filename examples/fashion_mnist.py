"""LeNet on Fashion-MNIST: a PyTorch script whose loop goes by steps.

    python examples/fashion_mnist.py                           one process
    holdfast run --workers 2 examples/fashion_mnist.py         a crew; the same weights, byte for byte
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

import holdfast as hf
from holdfast.data.dataset import Dataset
from holdfast.data.sources import dataset


class LeNet(nn.Sequential):
    """LeNet-5 for 28x28 grey images."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__(
            nn.Conv2d(1, 6, kernel_size=5, padding=2), nn.ReLU(), nn.AvgPool2d(2),
            nn.Conv2d(6, 16, kernel_size=5), nn.ReLU(), nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * 5 * 5, 120), nn.ReLU(),
            nn.Linear(120, 84), nn.ReLU(),
            nn.Linear(84, num_classes),
        )  # fmt: skip


def load(data: str, split: str) -> Dataset:
    """Images of 28x28: `data` is "fashion-mnist", "digits", or a directory with the files of Fashion-MNIST."""
    if data == "digits":
        digits = dataset("digits", split)
        enlarged = digits.features.repeat(3, axis=2).repeat(3, axis=3)  # 8x8 to 24x24; a border makes it 28x28
        padded = np.pad(enlarged, ((0, 0), (0, 0), (2, 2), (2, 2)))
        return Dataset(padded, digits.labels, name="digits", classes=digits.classes)
    if data == "fashion-mnist":
        return dataset("fashion-mnist", split)
    return dataset("fashion-mnist", split, root=data)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train LeNet on Fashion-MNIST.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64, help="global batch size, whatever the crew")
    parser.add_argument("--limit", type=int, metavar="N", help="use only the first N training samples")
    parser.add_argument("--data", default="fashion-mnist", metavar="WHAT", help="fashion-mnist, digits or a directory")
    args = parser.parse_args()

    run = hf.join()
    train_set, test_set = load(args.data, "train").head(args.limit), load(args.data, "test")
    loader = DataLoader(train_set, batch_size=args.batch, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=500)
    model = LeNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, loader = run.prepare(model, optimizer, loader)

    def measure(x: Tensor, y: Tensor) -> dict[str, float]:
        logits = model(x)
        return {
            "loss": F.cross_entropy(logits, y).item(),
            "accuracy": (logits.argmax(1) == y).float().mean().item(),
        }

    for epoch in run.epochs(args.epochs):
        model.train()
        for step in run.steps(loader):
            for x, y in step:
                F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()

        model.eval()
        scores = run.evaluate(measure, test_loader)
        if run.lead:
            print(f"epoch {epoch + 1}: test accuracy {scores['accuracy']:.4f}, loss {scores['loss']:.4f}", flush=True)


if __name__ == "__main__":
    main()
