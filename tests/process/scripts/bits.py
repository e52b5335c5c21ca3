"""A loop by steps, and the same in PyTorch alone: bits.py OUT [--drawn] [--bare]

With --bare there is no run: a batch is cut into lanes, which are computed one after the other; their gradients are
added up in pairs, then pairs of pairs, and a lane that has no partner goes on as it is. All that the two come to is
left in OUT. Nothing is random, and --bare imports no Holdfast.

With --drawn it is a net with dropout over shuffled data. Then --bare asks Holdfast for two things: with what a lane is
seeded (`data.randomness`), and the order of an epoch (`core.order`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

LANES, SEED, EPOCHS, LIMIT = 6, 3, 3, 0.2

parser = argparse.ArgumentParser()
parser.add_argument("out")
parser.add_argument("--drawn", action="store_true")
parser.add_argument("--bare", action="store_true")
args = parser.parse_args()
#: The last batch of 24 has 7 samples, of 20 it has 4: then lanes have unequal shares, and some none.
BATCH, SAMPLES = (20, 124) if args.drawn else (24, 127)


def net() -> nn.Module:
    if not args.drawn:
        dense = nn.Linear(144, 96), nn.Linear(96, 33), nn.Linear(33, 5)
        return nn.Sequential(nn.Flatten(), dense[0], nn.Tanh(), dense[1], nn.ReLU(), dense[2])
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 3), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Dropout(0.3), nn.Linear(48, 5),
    )  # fmt: skip


def problem() -> tuple[TensorDataset, nn.Module, torch.optim.Optimizer, Any]:
    source = torch.Generator().manual_seed(1)
    x, y = torch.randn(SAMPLES, 1, 12, 12, generator=source), torch.randint(5, (SAMPLES,), generator=source)
    torch.manual_seed(2)
    model = net()
    weights, biases = ([p for p in model.parameters() if (p.dim() > 1) is wide] for wide in (True, False))
    groups = [{"params": weights, "weight_decay": 0.01}, {"params": biases, "lr": 0.1}]
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True, fused=True)
    return TensorDataset(x, y), model, optimizer, StepLR(optimizer, 4, gamma=0.7)


def average(model: nn.Module) -> AveragedModel:
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))


def leave(model: nn.Module, ema: AveragedModel, optimizer: Any, schedule: Any, kept: dict[str, Any]) -> None:
    parts = {"weights": model.state_dict(), "ema": ema.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**parts, "rate": schedule.get_last_lr(), "kept": kept}, args.out)


# ---------------------------------------------------------------- in a run


def held() -> None:
    import holdfast as hf

    run = hf.join(lanes=LANES, seed=SEED)
    data, model, optimizer, schedule = problem()
    loader = DataLoader(data, batch_size=BATCH, shuffle=args.drawn)
    model, optimizer, loader, schedule = run.prepare(model, optimizer, loader, schedule)
    ema, kept = run.keep(average(model), turns=0, best=float("inf"), norms=0.0)
    for _ in run.epochs(EPOCHS):
        for step in run.steps(loader):
            for x, y in step:
                F.cross_entropy(model(x), y).backward()
            kept.norms += float(nn.utils.clip_grad_norm_(model.parameters(), LIMIT))
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            ema.update_parameters(model)
            kept.turns += 1
            kept.best = min(kept.best, step.loss)
    if run.lead:
        leave(model, ema, optimizer, schedule, {name: getattr(kept, name) for name in ("turns", "best", "norms")})


# ---------------------------------------------------------------- in PyTorch alone


def batches() -> Iterator[list[int]]:
    for epoch in range(EPOCHS):
        order = list(range(SAMPLES))
        if args.drawn:
            from holdfast.core.order import Order

            order = Order(SAMPLES, SEED, epoch).ids(0, SAMPLES).tolist()
        for begin in range(0, SAMPLES, BATCH):
            yield order[begin : begin + BATCH]


def lanes_of(batch: list[int]) -> list[list[int]]:
    """In order, none larger than another by more than one, the larger ones first."""
    sizes = [len(batch) // LANES + (lane < len(batch) % LANES) for lane in range(LANES)]
    return [batch[sum(sizes[:lane]) : sum(sizes[: lane + 1])] for lane in range(LANES)]


def in_pairs(values: list[Tensor | None]) -> Tensor:
    while len(values) > 1:
        values = values + [None] * (len(values) % 2)
        pairs = zip(values[::2], values[1::2], strict=True)
        values = [a + b if a is not None and b is not None else b if a is None else a for a, b in pairs]
    (total,) = values
    assert total is not None
    return total


def seed(step: int, lane: int) -> None:
    from holdfast.data.randomness import compute_key, seed_everything

    seed_everything(compute_key(SEED, step, lane))


def bare() -> None:
    torch.set_num_threads(1)
    data, model, optimizer, schedule = problem()
    ema, parameters = average(model), list(model.parameters())
    turns, best, norms = 0, float("inf"), 0.0
    for step, batch in enumerate(batches()):
        lanes = lanes_of(batch)
        even = len({len(ids) for ids in lanes if ids}) == 1
        found: list[list[Tensor] | None] = []
        loss = 0.0
        for lane, ids in enumerate(lanes):
            if not ids:
                found.append(None)
                continue
            if args.drawn:
                seed(step, lane)
            optimizer.zero_grad()
            x, y = torch.utils.data.default_collate([data[number] for number in ids])
            one = F.cross_entropy(model(x), y)
            one.backward()
            loss += one.item() * len(ids)
            found.append([p.grad if even else p.grad * float(len(ids)) for p in parameters])
        parts = sum(1 for ids in lanes if ids) if even else len(batch)
        for number, parameter in enumerate(parameters):
            parameter.grad = in_pairs([one and one[number] for one in found]) * (1.0 / parts)
        norms += float(nn.utils.clip_grad_norm_(parameters, LIMIT))
        optimizer.step()
        schedule.step()
        ema.update_parameters(model)
        turns += 1
        best = min(best, loss / len(batch))
    assert args.drawn or not any(name.startswith("holdfast") for name in sys.modules)
    leave(model, ema, optimizer, schedule, {"turns": turns, "best": best, "norms": norms})


if __name__ == "__main__":
    bare() if args.bare else held()
