"""LeNet on Fashion-MNIST without a loop: `hf.fit`, which trains in every mode.

    python examples/fit.py                                     one process
    holdfast run --workers 2 examples/fit.py                   a crew; the same weights, byte for byte
    holdfast run --workers 2 --sync local:8 examples/fit.py    a relaxed mode

The model and the data are those of `fashion_mnist.py`, and so are the weights in the end.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from fashion_mnist import LeNet, load
from torch.utils.data import DataLoader

import holdfast as hf
from holdfast.train.fit import Epoch


def main() -> None:
    parser = argparse.ArgumentParser(description="Train LeNet on Fashion-MNIST, with hf.fit.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64, help="global batch size, whatever the crew")
    parser.add_argument("--limit", type=int, metavar="N", help="use only the first N training samples")
    parser.add_argument("--data", default="fashion-mnist", metavar="WHAT", help="fashion-mnist, digits or a directory")
    args = parser.parse_args()

    run = hf.join()
    train_set, test_set = load(args.data, "train").head(args.limit), load(args.data, "test")
    model = LeNet()

    def tell(done: Epoch) -> None:
        if run.lead:
            accuracy, loss = done.metrics["accuracy"], done.metrics["loss"]
            print(f"epoch {done.epoch + 1}: test accuracy {accuracy:.4f}, loss {loss:.4f}", flush=True)

    hf.fit(
        model, DataLoader(train_set, batch_size=args.batch, shuffle=True), loss=F.cross_entropy,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), epochs=args.epochs,
        evaluate=DataLoader(test_set, batch_size=500), metrics=["accuracy"], callbacks=[tell], run=run,
    )  # fmt: skip


if __name__ == "__main__":
    main()
