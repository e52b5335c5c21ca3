"""Parameters of every kind: unused, frozen, tied, of several dtypes; and what must not be done to them."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from holdfast.dataplane.memory.space import Space
from holdfast.dataplane.reduce.schema import optimizer_parts, probe
from holdfast.errors import NotExact
from tests.unit.train.problems import assert_close, batches_of, loader_of, loss_of, net, plain, points, train, turn


def sgd(model: nn.Module) -> optim.Optimizer:
    return optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)


class Branches(nn.Module):
    """`side` is used where `when` says so, by the number of the batch's first sample."""

    def __init__(self, when: Any) -> None:
        super().__init__()
        self.main, self.when, self.calls = net(), when, 0
        self.side, self.never = nn.Linear(5, 2), nn.Linear(5, 2)
        with torch.no_grad():
            for p in (*self.side.parameters(), *self.never.parameters()):
                p.fill_(0.25)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out = self.main(x)
        return out + self.side(x) if self.when(self.calls - 1) else out


def test_without_a_gradient_in_any_lane_a_parameter_is_left_alone(join) -> None:
    """Also by weight decay and momentum, as in plain torch."""
    run, model = join(lanes=4), Branches(lambda call: False)
    model, optimizer, loader = run.prepare(model, sgd(model), loader_of(points()))
    train(run, model, optimizer, loader)
    assert all((p == 0.25).all() for p in (*model.side.parameters(), *model.never.parameters()))
    assert len(optimizer.state_dict()["state"]) == 4, "no state for what was never trained"


def test_a_gradient_in_one_lane_only_counts_as_zeros_in_the_others(join) -> None:
    run, model = join(lanes=4), Branches(lambda call: call == 1)
    model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=1.0), loader_of(points(12)))
    for step in run.steps(loader):
        for batch in step:
            loss_of(model, batch).backward()
            if run.unit[1] == 1:
                alone = model.side.weight.grad.clone()
        optimizer.step()
    torch.testing.assert_close(model.side.weight.detach(), 0.25 - alone / 4)


@pytest.mark.parametrize("make", [sgd, lambda m: optim.Adam(m.parameters()), lambda m: optim.RMSprop(m.parameters())])
def test_a_first_gradient_that_comes_late(join, make: Any) -> None:
    """From the second step on: some parameters of a slice have state by then, and this one has none."""
    expected = Branches(lambda call: call >= 2)
    plain(expected, make(expected), batches_of(points()))
    run, model = join(lanes=1, verify=0), Branches(lambda call: call >= 2)
    model, optimizer, loader = run.prepare(model, make(model), loader_of(points()))
    train(run, model, optimizer, loader)
    assert_close(model, expected)


def test_frozen_parameters_stay_and_are_in_the_hash(join) -> None:
    run, model, expected = join(lanes=4), net(), net()
    for frozen in (*model[0].parameters(), *expected[0].parameters()):
        frozen.requires_grad_(False)
    model, optimizer, loader = run.prepare(model, sgd(model), loader_of(points()))
    train(run, model, optimizer, loader)
    assert torch.equal(model[0].weight, expected[0].weight)
    assert_close(model, plain(expected, sgd(expected), batches_of(points())), rtol=1e-3, atol=1e-5)


def test_parameters_that_are_not_in_the_optimizer_stay(join) -> None:
    run, model = join(lanes=2), net()
    before = model[0].weight.detach().clone()
    model, optimizer, loader = run.prepare(model, sgd(model[2]), loader_of(points()))
    train(run, model, optimizer, loader)
    assert torch.equal(model[0].weight, before) and not torch.equal(model[2].weight, net()[2].weight)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(2)
            self.first, self.second, self.head = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 2)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(torch.tanh(self.first(x))))


def test_tied_weights_stay_tied(join) -> None:
    run, model, expected = join(lanes=4), Tied(), Tied()
    model, optimizer, loader = run.prepare(model, sgd(model), loader_of(points()))
    train(run, model, optimizer, loader)
    assert model.second.weight is model.first.weight
    assert_close(model, plain(expected, sgd(expected), batches_of(points())), rtol=1e-3, atol=1e-5)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(2)
            self.a = nn.Linear(5, 6)
            self.b = nn.Linear(6, 6, dtype=torch.float64)
            self.c = nn.Linear(6, 2, dtype=torch.bfloat16)
        self.nothing = nn.Parameter(torch.zeros(0, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x).double()).bfloat16()).float() + self.nothing.sum()


@pytest.mark.parametrize("make", [sgd, lambda m: optim.AdamW(m.parameters(), lr=0.01)])
def test_several_dtypes_and_an_empty_parameter(join, make: Any) -> None:
    run, model, expected = join(lanes=1), Mixed(), Mixed()
    model, optimizer, loader = run.prepare(model, make(model), loader_of(points()))
    train(run, model, optimizer, loader)
    assert_close(model, plain(expected, make(expected), batches_of(points())), rtol=2e-2, atol=1e-3)
    assert {p.dtype for p in model.parameters()} == {torch.float32, torch.float64, torch.bfloat16}
    assert set(optimizer.state_dict()["state"]) == set(range(1, 7)), "the empty one has no state"


def test_bfloat16_autocast(join) -> None:
    def weights() -> str:
        run, model = join(lanes=4), net()
        model, optimizer, loader = run.prepare(model, sgd(model), loader_of(points()))
        for _ in run.epochs(2):
            for step in run.steps(loader):
                for batch in step:
                    with torch.autocast("cpu", torch.bfloat16):
                        loss = loss_of(model, batch)
                    loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        sha = run.weights_sha256()
        assert all(p.dtype == torch.float32 for p in model.parameters()) and run.loss < 1.5
        run.close()
        return sha

    assert weights() == weights()


def test_weights_sha256_is_what_the_design_says(join) -> None:
    run, model = join(lanes=2), nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Linear(3, 2, dtype=torch.bfloat16))
    model.forward = lambda x: model[2](model[1](model[0](x)).bfloat16()).float()  # type: ignore[method-assign]
    model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.1), loader_of(points()))
    train(run, model, optimizer, loader, epochs=1)
    text = b""
    for name, tensor in model.state_dict().items():
        text += f"{name}\n{tensor.dtype}\n{tuple(tensor.shape)}\n".encode()
        text += tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    assert run.weights_sha256() == hashlib.sha256(text).hexdigest() == run.result()["weights_sha256"]


def test_several_models(join) -> None:
    run, one, two = join(lanes=2), net(), nn.Linear(2, 2)
    two.weight.data.copy_(torch.eye(2))
    expected = nn.Sequential(net(), nn.Linear(2, 2))
    expected[1].load_state_dict(two.state_dict())
    optimizer = optim.SGD([*one.parameters(), *two.parameters()], lr=0.05)
    loader, one, optimizer, two = run.prepare(loader_of(points()), one, optimizer, two)
    for step in run.steps(loader):
        turn(step, nn.Sequential(one, two), optimizer)
    plain(expected, optim.SGD(expected.parameters(), lr=0.05), batches_of(points(), epochs=1))
    assert_close(nn.Sequential(one, two), expected, rtol=1e-3, atol=1e-5)


# ---------------------------------------------------------------- refused


@pytest.mark.parametrize("which", ["trained", "frozen"])
def test_writing_to_a_parameter_in_a_unit_is_refused(join, which: str) -> None:
    model = net()
    model[0].bias.requires_grad_(which == "trained")
    run = join(lanes=2)
    model, _, loader = run.prepare(model, sgd(model), loader_of(points()))
    with pytest.raises(NotExact, match=r"parameter 0\.bias was written to before the end of unit \(step 0, lane 0\)"):
        for step in run.steps(loader):
            for batch in step:
                loss_of(model, batch).backward()
                with torch.no_grad():
                    model[0].bias.add_(1.0)


def test_an_optimizer_with_a_strangers_parameter_is_refused(join) -> None:
    model = net()
    optimizer = optim.SGD([*model.parameters(), nn.Parameter(torch.zeros(3, 4))], lr=0.1)
    with pytest.raises(NotExact, match=r"the optimizer holds a parameter of shape \(3, 4\) that is in no prepared"):
        join().prepare(model, optimizer, loader_of(points()))


def test_nothing_to_train_is_refused(join) -> None:
    model = net().requires_grad_(False)
    with pytest.raises(NotExact, match=r"no parameter of the optimizer requires a gradient\. Unfreeze"):
        join().prepare(model, sgd(model), loader_of(points()))


def test_unfreezing_later_is_refused(join) -> None:
    run, model = join(lanes=2), net()
    model[0].requires_grad_(False)
    model, optimizer, loader = run.prepare(model, sgd(model), loader_of(points()))
    train(run, model, optimizer, loader, epochs=1)
    model[0].requires_grad_(True)
    for begin in (run.steps, iter):
        with pytest.raises(NotExact, match=r"a parameter of shape \(8, 5\) was unfrozen, or added to the optimizer"):
            next(begin(loader))


def test_a_sparse_gradient_is_refused(join) -> None:
    model = nn.Sequential(nn.Embedding(10, 2, sparse=True))
    data = [(torch.tensor(i % 10), torch.zeros(2)) for i in range(24)]
    run = join()
    model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.1), loader_of(data))
    with pytest.raises(NotExact, match=r"the gradient of 0\.weight is sparse, and slices are dense. Use sparse=False"):
        train(run, model, optimizer, loader)


def test_a_complex_parameter_is_refused(join) -> None:
    model = nn.ParameterDict({"z": nn.Parameter(torch.zeros(2, dtype=torch.complex64))})
    with pytest.raises(NotExact, match=r"parameter z is torch.strided, torch.complex64; only dense real tensors"):
        join().prepare(model, optim.SGD(model.parameters(), lr=0.1), loader_of(points()))


@pytest.mark.parametrize("begun", [False, True])
def test_another_dtype_after_prepare(join, begun: bool) -> None:
    run, model = join(lanes=4), net()
    model, optimizer, loader = run.prepare(model, sgd(model), loader_of(points()))
    if begun:
        train(run, model, optimizer, loader)
    model.double()
    with pytest.raises(NotExact) as caught:
        next(run.steps(loader))
    assert str(caught.value) == (
        "This cannot be kept exact: parameter 0.weight was float32 at run.prepare(...) and is float64 now. Convert the "
        "model (model.double(), .half(), .to(dtype)) before run.prepare(...), and make the optimizer after that."
    )


def test_what_a_worker_says_of_what_it_has_built() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1, dtype=torch.float64))
    model[0].bias.requires_grad_(False)
    groups = [{"params": model[0].parameters()}, {"params": [*model[1].parameters(), *model[2].parameters()]}]
    optimizer = optim.SGD(groups, lr=0.1, momentum=0.9)
    assert Space([model], optimizer).parts() == [
        ("parameter 0.weight", "[2, 3] float32"), ("parameter 1.weight", "[2] float32 in group 1"),
        ("parameter 1.bias", "[2] float32 in group 1"), ("parameter 2.weight", "[1, 2] float64 in group 1"),
        ("parameter 2.bias", "[1] float64 in group 1"), ("parameter 0.bias", "[2] float32, not trained"),
        ("buffer 1.running_mean", "[2] float32"), ("buffer 1.running_var", "[2] float32"),
        ("buffer 1.num_batches_tracked", "[] int64"),
    ]  # fmt: skip
    schemas = {(1, "float64"): probe(optimizer, 1, torch.float64)}
    options = "dampening, differentiable, foreach, fused, lr, maximize, momentum, nesterov, weight_decay"
    assert optimizer_parts(optimizer, schemas) == [
        ("optimizer", "SGD with 2 groups"), ("optimizer options of group 0", options),
        ("optimizer options of group 1", options), ("optimizer state of group 1, float64", "momentum_buffer"),
    ]  # fmt: skip
