"""A script that does to `.grad` what scripts do to it, one after the other, with a gradient scaler:

    edits.py [--unkept] [--die PLACE:STEP:NUMBER:DIRECTORY]

Clipping by layer and by value, noise, masks, a gradient that is replaced, one that is dropped, norms that are read; the
gradients of two losses, projected onto each other; losses that become infinite, so that the scaler leaves steps out.

With --unkept, the first of two gradients stays in a plain variable. With --die, the first NUMBER workers that come to a
place of a turn are gone there, as after `kill -9`.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from turns import Fatal

import holdfast as hf


def clipped_by_layer(model: nn.Sequential) -> None:
    for layer in (model[0], model[2], model[4]):
        nn.utils.clip_grad_norm_(layer.parameters(), 0.05)


def clipped_by_value(model: nn.Sequential) -> None:
    nn.utils.clip_grad_value_(model.parameters(), 0.01)


def noisy(model: nn.Sequential) -> None:
    for parameter in model.parameters():
        parameter.grad += 0.01 * torch.randn_like(parameter)


def masked(model: nn.Sequential) -> None:
    model[2].weight.grad[:, ::2] = 0.0
    model[0].weight.grad.data *= torch.rand(8, 3) < 0.5


def replaced(model: nn.Sequential) -> None:
    model[2].weight.grad = model[2].weight.grad.sign() * 0.01
    model[4].bias.grad = None


def by_norms(model: nn.Sequential) -> None:
    norms = [parameter.grad.norm() for parameter in model.parameters()]
    for parameter, norm in zip(model.parameters(), norms, strict=True):
        parameter.grad /= 1.0 + norm + max(norms)


EDITS = (clipped_by_layer, clipped_by_value, noisy, masked, replaced, by_norms)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--die", default="")
    parser.add_argument("--unkept", action="store_true")
    args = parser.parse_args()
    die = Fatal(args.die)
    run = hf.join(lanes=4, seed=3)
    source = torch.Generator().manual_seed(1)
    inputs = torch.randn(99, 3, generator=source)
    data = TensorDataset(inputs, torch.stack([inputs.sum(1), inputs[:, 0]], 1))
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, backoff_factor=2.0**-12, growth_interval=3)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=8, shuffle=True))
    kept = run.keep(first=None, norms=[], scales=[])

    def loss_of(x: Tensor, y: Tensor, column: int) -> Tensor:
        return 64.0 * F.mse_loss(model(x)[:, column], y[:, column])

    for _ in run.epochs(2):
        for step in run.steps(loader):
            die("at the top", step.number)
            for x, y in step:
                scaler.scale(loss_of(x, y, 0)).backward()
                die("in a unit of the first loss", step.number)
            die("after the first loss", step.number)
            first = [parameter.grad.clone() for parameter in model.parameters()]
            if not args.unkept:
                kept.first = first
            optimizer.zero_grad()
            for x, y in step:
                scaler.scale(loss_of(x, y, 1)).backward()
                die("in a unit of the second loss", step.number)
            die("after the second loss", step.number)
            for parameter, other in zip(model.parameters(), kept.first or first, strict=True):
                apart = (parameter.grad * other).sum().clamp(max=0.0)
                parameter.grad += other - apart / other.square().sum().clamp(min=1e-30) * other
            scaler.unscale_(optimizer)
            EDITS[step.number % len(EDITS)](model)
            die("before the step", step.number)
            scaler.step(optimizer)
            die("after the step", step.number)
            scaler.update()
            optimizer.zero_grad()
            kept.scales.append(scaler.get_scale())
            kept.norms.append(step.loss)
    if run.lead:
        print(f"scales {kept.scales}\nnorms {kept.norms} step {run.step}")
    digest = run.weights_sha256()
    if run.lead:
        print(f"weights_sha256 {digest}", flush=True)


if __name__ == "__main__":
    main()
