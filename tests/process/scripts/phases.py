"""A script with three phases in a turn, two optimizers, two loaders and two batches to a step:

    phases.py [--epochs E] [--pace S] [--die PLACE:STEP:NUMBER:DIRECTORY]

A small GAN: the discriminator's phase, the generator's, and one gradient that both use. What it keeps follows from the
gradients of all phases, and so do its rates; it draws numbers between them.

With --die, the first NUMBER workers that come to a place of a turn are gone there, as after `kill -9`.
"""

from __future__ import annotations

import argparse
import hashlib
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from turns import Fatal

import holdfast as hf


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--die", default="")
    args = parser.parse_args()
    die = Fatal(args.die)

    class Dying(torch.optim.SGD):
        """Dies with a slice half done."""

        def step(self, closure: None = None) -> None:
            super().step(closure)
            die("in the update", run.step)

    run = hf.join(lanes=4, seed=5)
    source = torch.Generator().manual_seed(1)
    real, noise = (torch.randn(n, 3, generator=source) for n in (92, 120))  # the last batches have 8 of each
    made = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))
    judge = nn.Sequential(nn.Linear(3, 8), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(8, 1))
    making = torch.optim.Adam(made.parameters(), lr=0.01, betas=(0.5, 0.999))
    judging = Dying(judge.parameters(), lr=0.05, momentum=0.5)
    slower = torch.optim.lr_scheduler.ExponentialLR(judging, 0.98)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(making, factor=0.9, patience=1)
    made, judge, making, judging, reals, noises = run.prepare(
        made, judge, making, judging, DataLoader(TensorDataset(real), batch_size=12, shuffle=True),
        DataLoader(TensorDataset(noise), batch_size=16, shuffle=True),
    )  # fmt: skip
    ema = run.keep(torch.optim.swa_utils.AveragedModel(made, use_buffers=True))
    kept = run.keep(norms=[0.0, 0.0, 0.0], turns=0)
    drawn: list[float] = []

    def norm(model: nn.Module) -> float:
        return nn.utils.clip_grad_norm_(model.parameters(), 0.4).item()

    def told(x: Tensor, wanted: float) -> Tensor:
        answer = judge(x)
        return F.binary_cross_entropy_with_logits(answer, torch.full_like(answer, wanted))

    for _ in run.epochs(args.epochs):
        for step in run.steps(reals, noises, accumulate=2):
            drawn = [torch.rand(1).item()]
            die("at the top", step.number)
            for (x,), (z,) in step:
                (told(x, 1.0) + told(made(z).detach(), 0.0)).backward()
                die("in a unit of the first phase", step.number)
            die("after the units of the first phase", step.number)
            kept.norms[0] += norm(judge)
            judging.step()
            die("after the first phase", step.number)
            judging.zero_grad()
            slower.step()
            drawn += [torch.rand(1).item(), step.loss]
            time.sleep(args.pace)
            for _, (z,) in step:
                told(made(z), 1.0).backward()
                die("in a unit of the second phase", step.number)
            die("after the units of the second phase", step.number)
            kept.norms[1] += norm(made)
            making.step()
            die("after the second phase", step.number)
            making.zero_grad()
            plateau.step(kept.norms[1])
            ema.update_parameters(made)
            drawn += [torch.rand(1).item(), step.loss]
            for (x,), (z,) in step:
                (0.1 * (judge(made(z)).mean() - judge(x).mean()).square()).backward()
                die("in a unit of the third phase", step.number)
            die("after the units of the third phase", step.number)
            kept.norms[2] += norm(made) + norm(judge)
            judging.step()
            die("between two steps with one gradient", step.number)
            judging.zero_grad()
            making.step()
            die("at the end", step.number)
            making.zero_grad()
            kept.turns += 1
            drawn += [torch.rand(1).item(), step.loss]
        drawn.append(torch.rand(1).item())
    digest = hashlib.sha256(b"".join(t.numpy().tobytes() for t in ema.state_dict().values())).hexdigest()
    if run.lead:
        rates = [optimizer.param_groups[0]["lr"] for optimizer in (judging, making)]
        print(f"ema {digest} {kept!r}\ndrawn {drawn} rates {rates} step {run.step}")
    digest = run.weights_sha256()
    if run.lead:
        print(f"weights_sha256 {digest}", flush=True)


if __name__ == "__main__":
    main()
