"""Small problems to train on, and the same training in plain torch to hold them against."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from holdfast.data.batches import Batches
from holdfast.train.loop.steps import Step
from holdfast.train.run import Run

Optimizer = torch.optim.Optimizer
MakeOptimizer = Callable[[Any], Optimizer]


def points(n: int = 48, features: int = 5) -> TensorDataset:
    """Samples of a noisy linear map."""
    source = torch.Generator().manual_seed(7)
    x = torch.randn(n, features, generator=source)
    y = x @ torch.randn(features, 2, generator=source) + 0.1 * torch.randn(n, 2, generator=source)
    return TensorDataset(x, y)


def net(features: int = 5) -> nn.Sequential:
    """A small net, the same at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(11)
        return nn.Sequential(nn.Linear(features, 8), nn.Tanh(), nn.Linear(8, 2))


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """Two parameter groups: weights and biases."""
    return [
        {"params": [p for p in model.parameters() if p.dim() > 1]},
        {"params": [p for p in model.parameters() if p.dim() <= 1], "lr": 0.02},
    ]


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return nn.functional.mse_loss(model(x), y)


def loader_of(data: Any, batch: int = 12, **options: Any) -> DataLoader[Any]:
    return DataLoader(data, batch_size=batch, **{"shuffle": True, **options})


def batches_of(data: Any, batch: int = 12, epochs: int = 2, seed: int = 0, **options: Any) -> Iterator[Any]:
    """The global batches that a run sees, whole."""
    loader = loader_of(data, batch, **options)
    batches = Batches(loader, num_lanes=1, seed=seed)
    for epoch in range(epochs):
        for step in range(batches.steps):
            yield loader.collate_fn([data[i] for i in batches.ids(epoch, step, 0)])


def turn(step: Step, model: nn.Module, optimizer: Optimizer) -> None:
    """One turn of a loop by steps."""
    for batch in step:
        loss_of(model, batch).backward()
    optimizer.step()
    optimizer.zero_grad()


def train(run: Run, model: nn.Module, optimizer: Optimizer, loader: Any, epochs: int = 2) -> None:
    """The loop of the README, by steps, over objects that are prepared."""
    for _ in run.epochs(epochs):
        for step in run.steps(loader):
            turn(step, model, optimizer)


def train_plain(run: Run, model: nn.Module, optimizer: Optimizer, loader: Any, epochs: int = 2) -> None:
    """The plain loop over objects that are prepared."""
    for _ in run.epochs(epochs):
        plain(model, optimizer, loader)


def trained(run: Run, make: MakeOptimizer, data: Any = None, **options: Any) -> nn.Module:
    """A net trained for two epochs in the run."""
    model = net()
    model, optimizer, loader = run.prepare(model, make(groups(model)), loader_of(data or points(), **options))
    train(run, model, optimizer, loader)
    return model


def plain(model: nn.Module, optimizer: Optimizer, batches: Iterable[Any]) -> nn.Module:
    """The same in plain torch."""
    for batch in batches:
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def assert_close(model: nn.Module, other: nn.Module, *, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    for (name, mine), theirs in zip(model.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=rtol, atol=atol, msg=lambda text, name=name: f"{name}: {text}")
