"""A small GAN on handwritten digits: two optimizers and two phases in a turn.

    python examples/gan.py                           one process
    holdfast run --workers 2 examples/gan.py         a crew; the same weights, byte for byte

Each phase goes through the units of the step and ends with the step of an optimizer, which moves its own parameters.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

import holdfast as hf

NOISE = 16


def says(judge: nn.Module, images: Tensor, real: float) -> Tensor:
    """The loss where `judge` is to say how real images are."""
    answer = judge(images)
    return F.binary_cross_entropy_with_logits(answer, torch.full_like(answer, real))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a GAN on handwritten digits of 8x8.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64, help="global batch size, whatever the crew")
    args = parser.parse_args()

    run = hf.join()
    loader = DataLoader(hf.dataset("digits"), batch_size=args.batch, shuffle=True, drop_last=True)
    generator = nn.Sequential(
        nn.Linear(NOISE, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.Sigmoid(), nn.Unflatten(1, (1, 8, 8))
    )
    discriminator = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(64, 1))
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    opt_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    generator, discriminator, opt_g, opt_d, loader = run.prepare(generator, discriminator, opt_g, opt_d, loader)
    average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.99)
    ema = run.keep(torch.optim.swa_utils.AveragedModel(generator, multi_avg_fn=average, use_buffers=True))

    losses = run.keep(discriminator=0.0, generator=0.0)             # a worker that comes late has them, too

    for epoch in run.epochs(args.epochs):
        for step in run.steps(loader):
            for images, _ in step:                                  # the first phase: the discriminator
                made = generator(torch.randn(len(images), NOISE))
                (says(discriminator, images, 1.0) + says(discriminator, made.detach(), 0.0)).backward()
            opt_d.step()                                            # generator and its optimizer stay as they are
            opt_d.zero_grad()
            losses.discriminator = step.loss
            for images, _ in step:                                  # the second: the generator, with new noise
                made = generator(torch.randn(len(images), NOISE))
                says(discriminator, made, 1.0).backward()           # also reaches the discriminator: nobody uses that
            opt_g.step()
            opt_g.zero_grad()
            losses.generator = step.loss
            ema.update_parameters(generator)
        if run.lead:
            told = f"discriminator {losses.discriminator:.4f}, generator {losses.generator:.4f}"
            print(f"epoch {epoch + 1}: {told}", flush=True)

    ema.eval()
    with torch.no_grad():
        picture = ema(torch.randn(1, NOISE))[0, 0]
    weights = run.weights_sha256()
    if run.lead:
        for row in picture:
            print("".join(" .:-=+*#%@"[int(9.99 * value)] * 2 for value in row.clamp(0, 1)))
        print(f"weights {weights}", flush=True)


if __name__ == "__main__":
    main()
