"""Optimizers of one's own: state that is put anew is carried over, state outside of `state[p]` is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import optim

from holdfast.errors import NotExact
from tests.unit.train.problems import assert_close, batches_of, loader_of, net, plain, points, turn


class _Own(optim.Optimizer):
    def __init__(self, params: Any, lr: float = 0.05) -> None:
        super().__init__(params, {"lr": lr, "k": 0})
        self.count = 0


class Rebinding(_Own):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    state["m"] = 0.9 * state["m"] + p.grad if "m" in state else p.grad.clone()
                    p.add_(state["m"], alpha=-group["lr"])


class CountsInGroup(_Own):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["k"] += 1
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"] / group["k"])


class CountsOnItself(_Own):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.count += 1
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"] / self.count)


class NewMemory(_Own):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.data = p.data - group["lr"] * p.grad


def _train(run: Any, cls: type[_Own], *, new_generation_before: int = -1) -> list[float]:
    torch.manual_seed(3)
    model = net()
    model, optimizer, loader = run.prepare(model, cls(model.parameters()), loader_of(points()))
    for step in run.steps(loader):
        if step.number == new_generation_before:
            member = run._training.bound.member
            member.optimizer.forget()  # what a new generation does: state must be found in the arena again
        turn(step, model, optimizer)
    return [float(p.detach().sum()) for p in model.parameters()]


def test_state_that_is_put_anew_survives_a_new_generation(join) -> None:
    first = join(lanes=1)
    undisturbed = _train(first, Rebinding)
    first.close()
    assert _train(join(lanes=1), Rebinding, new_generation_before=2) == undisturbed


@pytest.mark.parametrize(
    ("cls", "told"),
    [
        (CountsInGroup, "CountsInGroup changes 'group k' of its own with every step"),
        (CountsOnItself, "CountsOnItself changes 'count' of its own with every step"),
        (NewMemory, "NewMemory puts new memory in place of a parameter's"),
    ],
)
def test_state_elsewhere_is_refused(join, cls: type[_Own], told: str) -> None:
    with pytest.raises(NotExact, match=told):
        _train(join(lanes=1), cls)


@pytest.mark.parametrize("by_steps", [True, False])
def test_a_rate_set_by_hand_is_kept(join, by_steps: bool) -> None:
    def at_rate(count: int) -> None:
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + count)

    run, model = join(lanes=4), net()
    model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.1), loader_of(points()))
    for count, item in enumerate(run.steps(loader) if by_steps else loader):
        at_rate(count)
        turn(item, model, optimizer) if by_steps else plain(model, optimizer, [item])
    assert run.step == len(loader)
    expected = net()
    optimizer = optim.SGD(expected.parameters(), lr=0.1)
    for count, batch in enumerate(batches_of(points(), epochs=1)):
        at_rate(count)
        plain(expected, optimizer, [batch])
    assert_close(model, expected, rtol=1e-3, atol=1e-5)
