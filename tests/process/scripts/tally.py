"""The audit model: every push leaves a mark and its weight in numbers that no other push touches.

Every slice has a number for each sample of each epoch; the trace tells of these. The optimizer adds MARK to whatever
has a gradient, and lr times the gradient besides; the loss is made such that this is the weight of the push: 1, or
less where it was late or stale. So a number is 0 where a push was lost, MARK and a weight where it was applied once,
and 2 MARK and more where it was applied twice, however little it weighed. `tests/process/counted.py` reads it.

The mark does not hang on lr, and an optimizer whose steps do not is refused where steps have parts. So only what is as
large as the gradients here leaves one, and what is tried before the run does not.

    tally.py --out FILE [--trace FILE] [--epochs E] [--pace S] [--hold STEP] [--go FILE] [--began FILE]
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import holdfast as hf
from holdfast.core.order import Order

BATCH, SAMPLES, STEPS, MARK = 32, 256, 8, 16.0
LARGE = 2.0**20  # the gradient of a push that weighs 1


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


class Marking(torch.optim.Optimizer):
    """Gradient descent that leaves a mark."""

    def __init__(self, params: object, lr: float) -> None:
        super().__init__(params, {"lr": lr})  # type: ignore[arg-type]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad.abs().gt(LARGE / 2**12), alpha=MARK).sub_(p.grad, alpha=group["lr"])


class Tally(nn.Module):
    """Four slices, so that several owners have something to own."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.zeros(1 << 18)) for _ in range(4)])

    def forward(self, at: list[int]) -> Tensor:
        return sum((part[at].sum() for part in self.parts), torch.zeros(()))


def places(step: int, numbers: list[int]) -> list[int]:
    """Where the samples of a batch leave their marks: in `exact` some may be left over of the epoch before."""
    epoch = step // STEPS
    due = Order(n=SAMPLES, seed=0, epoch=epoch, shuffle=True).ids(0, (step % STEPS + 1) * BATCH).tolist()
    found: list[int] = []
    for number in numbers:
        at = epoch * SAMPLES + number
        found.append(at if number in due and at not in found else at - SAMPLES)
    return found


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="for the numbers as they are at the end")
    parser.add_argument("--trace", default="", help="every unit leaves a line, as with train.py")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds that a unit takes at least, until it may go")
    parser.add_argument("--hold", type=int, default=-1, help="from this step on that is 0.1 s")
    parser.add_argument("--go", type=Path)
    parser.add_argument("--began", type=Path)
    return parser.parse_args()


def main() -> None:
    args = options()
    run = hf.join(reduction="mean")  # each loss is a sum over its batch, and made such that it is a mean
    model = Tally()
    optimizer = Marking(model.parameters(), lr=1 / LARGE)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(Numbers(), batch_size=BATCH, shuffle=True))
    trace = os.open(args.trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if args.trace else -1
    for _ in run.epochs(args.epochs):
        for numbers in loader:
            step, lane, mine = run.unit or (run.step, 0, [])  # else they are another worker's, and do not count here
            at = places(step, numbers.tolist())
            if args.began:
                args.began.touch()
            if trace >= 0 and mine:
                os.write(trace, f"{step} {lane} {','.join(map(str, at))}\n".encode())
            if args.go and not args.go.exists():
                time.sleep(0.1 if 0 <= args.hold <= step else args.pace)
            loss = -model(at) * (LARGE * BATCH / len(numbers))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    if run.lead:
        kept = args.epochs * SAMPLES
        torch.save([part.detach()[:kept].clone() for part in model.parts], args.out)


if __name__ == "__main__":
    main()
