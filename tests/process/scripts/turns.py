"""A script that does in a turn what scripts do there:

    turns.py [--epochs E] [--pace S] [--trace FILE] [--stop STEP] [--die PLACE:STEP:NUMBER:DIRECTORY]

A GRU with BatchNorm and dropout; torch's own clipping; a schedule by step and one by an evaluation in the middle of a
loop; random numbers in all places of a turn and after it; a gradient that is edited in place, through `.data` and by
replacing it; an EMA, a count of steps, the best loss so far; a step that is skipped; a loop that is left at STEP before
the step's end.

With --die, the first NUMBER workers that come to a place of a turn are gone there, as after `kill -9`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast as hf


class Reader(nn.Module):
    """Reads numbers in a row and says what they come to."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.norm, self.drop = nn.GRU(3, 8, batch_first=True), nn.BatchNorm1d(8), nn.Dropout(0.2)
        self.say, self.unused = nn.Linear(8, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.say(self.drop(self.norm(self.read(x)[0][:, -1])))


class Fatal:
    """A place where workers die."""

    def __init__(self, option: str) -> None:
        self.place, step, number, self.directory = (option or ":-1:0:").split(":")
        self.step, self.number = int(step), int(number)

    def __call__(self, place: str, step: int) -> None:
        if place.replace(" ", "_") == self.place and step == self.step:
            for number in range(self.number):
                try:
                    Path(self.directory, f"died-{number}").touch(exist_ok=False)
                except FileExistsError:
                    continue
                os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--trace", default="")
    parser.add_argument("--stop", type=int, default=-1)
    parser.add_argument("--die", default="")
    args = parser.parse_args()
    die = Fatal(args.die)

    class Dying(torch.optim.AdamW):
        """Dies with a slice half done."""

        def step(self, closure: None = None) -> None:
            super().step(closure)
            die("in the update", run.step)

    run = hf.join(lanes=4, seed=5)
    source = torch.Generator().manual_seed(1)
    inputs = torch.randn(120, 6, 3, generator=source)
    data = TensorDataset(inputs, torch.stack([inputs.sum((1, 2)), inputs[:, -1, 0]], 1), torch.arange(120))
    model = Reader()
    optimizer = Dying(model.parameters(), lr=0.01)
    warm = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    test = DataLoader(data, batch_size=25)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=16, shuffle=True))
    average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    ema = run.keep(torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=average, use_buffers=True))
    kept = run.keep(best=float("inf"), worse=0, steps=0, seen=[], pair=(1, {"a": None}))
    trace = os.open(args.trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if args.trace else -1

    def evaluated() -> float:
        def measure(x: Tensor, y: Tensor, _: Tensor) -> dict[str, Tensor]:
            die("in an evaluation", run.step)
            return {"loss": F.mse_loss(model(x), y)}

        model.eval()
        loss = run.evaluate(measure, test)["loss"]
        model.train()
        return loss

    drawn: list[float] = []
    for _ in run.epochs(args.epochs):
        for step in run.steps(loader):
            drawn = [torch.rand(1).item()]
            die("at the top", step.number)
            time.sleep(args.pace)
            for x, y, numbers in step:
                if trace >= 0 and run.unit is not None:
                    number, lane, _ = run.unit
                    os.write(trace, f"{number} {lane} {','.join(map(str, numbers.tolist()))}\n".encode())
                time.sleep(args.pace)
                newest = F.mse_loss(model(x), y)
                newest.backward()
                die("in a unit", step.number)
            die("after the units", step.number)
            assert newest.isfinite(), "it is there, also where there was no unit for this worker"
            assert model.unused.weight.grad is None
            if step.number % 6 == 2:
                drawn.append(evaluated())
            time.sleep(args.pace)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            model.say.bias.grad += 0.01 * torch.rand(2)
            model.say.weight.grad.data.mul_(0.9)
            model.norm.bias.grad = model.norm.bias.grad * 1.1
            if step.number == args.stop:
                break
            if step.number % 10 == 7:
                step.skip()
            else:
                optimizer.step()
            time.sleep(args.pace)
            die("after the step", step.number)
            optimizer.zero_grad()
            warm.step()
            ema.update_parameters(model)
            kept.steps += 1
            if step.number % 5 == 3:
                loss = evaluated()
                plateau.step(loss)
                kept.worse = 0 if loss < kept.best else kept.worse + 1
                kept.best = min(loss, kept.best)
                kept.seen.append(loss)
            drawn += [norm.item(), torch.rand(1).item(), step.loss]
        die("after the loop", run.step)
        drawn += [torch.rand(1).item(), evaluated(), torch.rand(1).item()]
    if run.lead:
        digest = hashlib.sha256(b"".join(t.numpy().tobytes() for t in ema.state_dict().values())).hexdigest()
        print(f"ema {digest} {kept!r}")
        print(f"drawn {drawn} rate {optimizer.param_groups[0]['lr']!r} step {run.step}")
    digest = run.weights_sha256()
    if run.lead:
        print(f"weights_sha256 {digest}", flush=True)


if __name__ == "__main__":
    main()
