"""Which optimizers take half a step when their lr is halved: found by trying them, fresh and warm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import optim

from holdfast.dataplane.reduce.partial_step import scaled, wholly
from holdfast.dataplane.reduce.schema import pin

PARTS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "SGD-nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: optim.Adam(p, weight_decay=0.1, amsgrad=True),
    "Adam-tensor-lr": lambda p: optim.Adam(p, lr=torch.tensor(0.01)),
    "AdamW": lambda p: optim.AdamW(p, weight_decay=0.1),
    "AdamW-warming-up": lambda p: optim.AdamW(p, lr=0.0),
    "NAdam": lambda p: optim.NAdam(p, weight_decay=0.1, decoupled_weight_decay=True),
    "RAdam": lambda p: optim.RAdam(p, weight_decay=0.1),
    "Adamax": lambda p: optim.Adamax(p),
    "RMSprop": lambda p: optim.RMSprop(p, centered=True, momentum=0.5),
    "Adagrad": lambda p: optim.Adagrad(p, lr_decay=0.1, initial_accumulator_value=0.1),
    "Adadelta": lambda p: optim.Adadelta(p, weight_decay=0.1),
}


class Own(optim.Optimizer):
    """One's own: with a weight decay that does not hang on lr, or a lr inside of its momentum."""

    def __init__(self, params: Any, decay: float = 0.0, momentum: float = 0.0) -> None:
        super().__init__(params, {"lr": 0.1, "decay": decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.mul_(1 - group["decay"])
                buffer = self.state[p].setdefault("buffer", torch.zeros_like(p))
                p.sub_(buffer.mul_(group["momentum"]).add_(p.grad, alpha=group["lr"]))


class WithoutLr(optim.Optimizer):
    def __init__(self, params: Any) -> None:
        super().__init__(params, {"eta": 0.1})


def parameters() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.ones(3, 2))]


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("name", PARTS)
def test_optimizers_that_take_parts_of_a_step(name: str, foreach: bool) -> None:
    optimizer = PARTS[name](parameters())
    if foreach:
        pin(optimizer)
    assert wholly(optimizer) == ""
    assert not optimizer.state or name == "Adagrad", "it is tried on other numbers than the script's"


@pytest.mark.parametrize("kind", [optim.Rprop, optim.ASGD])
def test_optimizers_of_torch_that_do_not(kind: type[Any]) -> None:
    """Rprop's step sizes are its own once it has begun; ASGD goes by the lr of the step before."""
    assert wholly(kind(parameters(), lr=0.01)) == f"{kind.__name__} does not move half as far with half its lr"


def test_optimizers_of_ones_own() -> None:
    assert wholly(Own(parameters())) == ""
    assert wholly(Own(parameters(), decay=0.001)) == "Own does not move half as far with half its lr"
    assert wholly(Own(parameters(), momentum=0.9)) == "Own does not move half as far with half its lr"
    assert wholly(WithoutLr(parameters())) == "WithoutLr has no lr"
    groups = [{"params": parameters()}, {"params": parameters(), "lr": 1.0}, {"params": parameters(), "decay": 0.5}]
    assert wholly(Own(groups)) == "Own does not move half as far with half its lr (group 2)"


def test_an_optimizer_that_cannot_be_tried() -> None:
    why = wholly(optim.SparseAdam(parameters()))
    assert why.startswith("SparseAdam cannot be tried on a few numbers (RuntimeError: "), why


def test_settings_of_a_part() -> None:
    groups: list[dict[str, Any]] = [{"lr": 0.5, "k": 1}, {"lr": torch.tensor(2.0)}]
    assert scaled(groups, 0.25) == [{"lr": 0.125, "k": 1}, {"lr": torch.tensor(0.5)}]
    assert scaled([{"eta": 1.0}], 1.0) == [{"eta": 1.0}], "a whole step needs no lr"
