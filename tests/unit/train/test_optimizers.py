"""Every elementwise optimizer of torch trains as it does on one machine; the others are refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn, optim

from holdfast.core.sync.modes import parse
from holdfast.errors import ConfigError, NotExact, UsageError
from tests.unit.train.problems import (
    assert_close,
    batches_of,
    groups,
    loader_of,
    loss_of,
    net,
    plain,
    points,
    train,
    trained,
)

OPTIMIZERS = {
    "SGD": lambda g: optim.SGD(g, lr=0.05),
    "SGD-momentum": lambda g: optim.SGD(g, lr=0.05, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "SGD-nesterov": lambda g: optim.SGD(g, lr=0.05, momentum=0.9, nesterov=True),
    "SGD-maximize": lambda g: optim.SGD(g, lr=0.001, maximize=True),
    "Adam": lambda g: optim.Adam(g, lr=0.01),
    "AdamW": lambda g: optim.AdamW(g, lr=0.01, weight_decay=0.1),
    "Adam-amsgrad": lambda g: optim.Adam(g, lr=0.01, amsgrad=True),
    "Adam-loop": lambda g: optim.Adam(g, lr=0.01, foreach=False),
    "Adam-tensor-lr": lambda g: optim.Adam([{**g[0]}, {**g[1], "lr": torch.tensor(0.02)}], lr=torch.tensor(0.01)),
    "RMSprop": lambda g: optim.RMSprop(g, lr=0.01),
    "RMSprop-centered": lambda g: optim.RMSprop(g, lr=0.01, centered=True, momentum=0.5),
    "Adagrad": lambda g: optim.Adagrad(g, lr=0.05, lr_decay=0.01, initial_accumulator_value=0.1),
    "Adadelta": lambda g: optim.Adadelta(g, lr=1.0),
    "Adamax": lambda g: optim.Adamax(g, lr=0.01),
    "NAdam": lambda g: optim.NAdam(g, lr=0.01),
    "RAdam": lambda g: optim.RAdam(g, lr=0.01),
    "Rprop": lambda g: optim.Rprop(g, lr=0.01),
    "ASGD": lambda g: optim.ASGD(g, lr=0.05, t0=2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_trains_as_plain_torch_does(join, name: str) -> None:
    make = OPTIMIZERS[name]
    model = net()
    expected = plain(model, make(groups(model)), batches_of(points()))

    one = join(lanes=1)
    assert_close(trained(one, make), expected)
    one.close()
    assert_close(trained(join(lanes=4), make), expected, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("async", r"^sync = async: any lane makes a version, with a part of a step, which is a step with a smaller lr, "
         r"and Rprop does not move half as far with half its lr \(group 0\) \(set by holdfast run\). Use --sync exact "
         r"or local:16, or an optimizer that moves by its lr, as SGD and Adam do.$"),
        ("bounded:2", r"^sync = bounded:2: any lane makes a version, with a part of a step, which is a step with a "
         r"smaller lr, and Rprop does .* \(set by holdfast run\). Use --sync exact or local:16, or an optimizer that "
         r"moves by its lr, as SGD and Adam do.$"),
    ],
)  # fmt: skip
def test_modes_that_take_parts_of_a_step_refuse_what_takes_whole_ones_only(join, mode: str, text: str) -> None:
    """At `prepare`, not at the first push that counts less, in the middle of a run."""
    run, model = join(lanes=4), net()
    run.mode = parse(mode)
    with pytest.raises(ConfigError, match=text):
        run.prepare(model, OPTIMIZERS["Rprop"](groups(model)), loader_of(points()))
    run.prepare(model, OPTIMIZERS["Adam"](groups(model)), loader_of(points()))


@pytest.mark.parametrize("name", ["SGD-momentum", "Adam-amsgrad", "ASGD", "NAdam", "Rprop"])
def test_state_dict_has_the_shape_of_torchs(join, name: str) -> None:
    make = OPTIMIZERS[name]
    run, model = join(lanes=2), net()
    optimizer = make(groups(model))
    model, optimizer, loader = run.prepare(model, optimizer, loader_of(points()))
    train(run, model, optimizer, loader)
    mine = optimizer.state_dict()

    other = net()
    theirs = make(groups(other))
    plain(other, theirs, batches_of(points()))
    for key, state in theirs.state_dict()["state"].items():
        assert {k for k, v in state.items() if v is not None} == set(mine["state"][key])
        for part, value in state.items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(mine["state"][key][part], value, rtol=1e-3, atol=1e-4)
    assert [g["params"] for g in mine["param_groups"]] == [[0, 1], [2, 3]]
    run.close()
    assert optimizer.state_dict()["state"].keys() == mine["state"].keys(), "the state is still there after the run"
    theirs.load_state_dict(mine)
    plain(other, theirs, batches_of(points(), epochs=1))


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("name", ["SGD-momentum", "Adam-amsgrad", "Adagrad", "Rprop"])
def test_a_loaded_state_is_taken_over(join, name: str, lanes: int) -> None:
    """One epoch in plain torch, then one in a run, is two epochs in plain torch with the same batches."""
    make = OPTIMIZERS[name]
    first, second = list(batches_of(points(), epochs=1, seed=5)), list(batches_of(points(), epochs=1))
    whole = net()
    plain(whole, make(groups(whole)), first + second)

    model = net()
    before = make(groups(model))
    plain(model, before, first)
    saved = copy.deepcopy(before.state_dict())
    optimizer = make(groups(model))
    optimizer.load_state_dict(saved)
    run = join(lanes=lanes)
    model, optimizer, loader = run.prepare(model, optimizer, loader_of(points()))
    train(run, model, optimizer, loader, epochs=1)
    assert_close(model, whole, rtol=1e-3, atol=2e-5)


def test_state_loaded_between_prepare_and_the_first_loop_counts_and_later_it_is_refused(join) -> None:
    make = OPTIMIZERS["SGD-momentum"]
    model = net()
    before = make(groups(model))
    plain(model, before, batches_of(points(), epochs=1, seed=5))
    saved = copy.deepcopy(before.state_dict())
    run = join(lanes=1)
    optimizer = make(groups(model))
    model, optimizer, loader = run.prepare(model, optimizer, loader_of(points()))
    optimizer.load_state_dict(saved)
    expected = copy.deepcopy(model)
    theirs = make(groups(expected))
    theirs.load_state_dict(saved)
    train(run, model, optimizer, loader, epochs=1)
    assert_close(model, plain(expected, theirs, batches_of(points(), epochs=1)))
    with pytest.raises(NotExact, match=r"after training had begun.*Load it before the first loop"):
        optimizer.load_state_dict(saved)


class Sign(optim.Optimizer):
    """Elementwise, and counts its steps in a plain Python int."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    state["count"] = state.get("count", 0) + 1
                    state.setdefault("trail", torch.zeros_like(p)).mul_(0.5).add_(p.grad)
                    p.sub_(state["trail"].sign(), alpha=group["lr"] / state["count"])


class Normed(optim.Optimizer):
    """Not elementwise: divides by the norm of the parameter's gradient."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad / p.grad.norm(), alpha=group["lr"])


class Rowwise(optim.Optimizer):
    """Keeps one number per row of a parameter."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["rows"] = torch.zeros(p.shape[0])


def test_a_strangers_elementwise_optimizer_with_a_python_int_is_accepted(join) -> None:
    model = net()
    expected = plain(model, Sign(groups(model)), batches_of(points()))
    run, mine = join(lanes=1), net()
    optimizer = Sign(groups(mine))
    mine, optimizer, loader = run.prepare(mine, optimizer, loader_of(points()))
    train(run, mine, optimizer, loader)
    assert_close(mine, expected)
    count = optimizer.state_dict()["state"][0]["count"]
    assert (count, type(count)) == (8, int)


def _hooked(g: Any) -> optim.Optimizer:
    optimizer = optim.SGD(g, lr=0.1)
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


REFUSED = {
    "LBFGS": (lambda g: optim.LBFGS([p for part in g for p in part["params"]]), "LBFGS cannot run on a slice"),
    "Adafactor": (lambda g: optim.Adafactor(g), "Adafactor"),
    "SparseAdam": (lambda g: optim.SparseAdam(g), "SparseAdam cannot run on a slice"),
    "hooks": (_hooked, "SGD has step hooks, which would run on slices instead of steps. Remove the hooks"),
    "Normed": (Normed, "Normed mixes the elements of a parameter, so it gives other numbers on slices"),
    "Rowwise": (Rowwise, r"Rowwise keeps 'rows' as a tensor of shape \(6,\) for a parameter of shape \(6, 7\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_cut_into_slices_is_refused(join, name: str) -> None:
    make, text = REFUSED[name]
    model = net()
    _, _, loader = join().prepare(model, make(groups(model)), loader_of(points()))
    with pytest.raises(NotExact, match=f"This cannot be kept exact: {text}"):
        next(iter(loader))


def test_muon_is_refused(join) -> None:
    if not hasattr(optim, "Muon"):
        pytest.skip("this torch has no Muon")
    model = nn.Linear(5, 2, bias=False)
    _, _, loader = join().prepare(model, optim.Muon(model.parameters()), loader_of(points()))
    with pytest.raises(NotExact, match="Muon"):
        next(iter(loader))


def test_a_closure_that_calls_backward_has_no_place_after_the_units(join) -> None:
    run, model = join(lanes=2), net()
    model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.05), loader_of(points()))

    def closure() -> torch.Tensor:
        loss = model(torch.ones(3, 5)).sum()
        loss.backward()
        return loss

    with pytest.raises(UsageError, match=r"backward\(\) was called outside of the loop over the units of step 0"):
        for step in run.steps(loader):
            for batch in step:
                loss_of(model, batch).backward()
            optimizer.step(closure)


def test_the_optimizer_is_put_back(join) -> None:
    model = net()
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    run = join(lanes=2)
    model, optimizer, loader = run.prepare(model, optimizer, loader_of(points()))
    train(run, model, optimizer, loader, epochs=1)
    run.close()
    assert not {"step", "state_dict", "load_state_dict"} & optimizer.__dict__.keys()
    before = [p.detach().clone() for p in model.parameters()]
    plain(model, optimizer, batches_of(points(), epochs=1))
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
