"""What a step consists of: several batches, of one loader or of several that go along."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.utils.data import TensorDataset

from holdfast.data.batches import Batches
from holdfast.errors import ConfigError, NotExact, UsageError
from holdfast.train.loop.step_batches import StepBatches
from tests.unit.train.problems import assert_close, batches_of, loader_of, loss_of, net, points


def numbered(n: int) -> TensorDataset:
    return TensorDataset(torch.arange(n), torch.arange(n))


def step_batches(*sizes: tuple[int, int], accumulate: int = 1, lanes: int = 2) -> StepBatches:
    loaders = [Batches(loader_of(numbered(n), batch), num_lanes=lanes, seed=0) for n, batch in sizes]
    found = StepBatches(loaders, accumulate, 0)
    found.number([0] * len(loaders))
    return found


# ---------------------------------------------------------------- which samples


def test_a_unit_has_a_lanes_share_of_every_batch_of_its_step() -> None:
    one, several = step_batches((42, 12)), step_batches((42, 12), accumulate=3)
    assert one.steps == 4 and several.steps == 2
    assert several.counts(0) == (18, 18) and several.counts(1) == (3, 3), "the last step has one batch"
    for lane in range(2):
        assert several.parts(0, lane) == [one.parts(at, lane)[0] for at in range(3)]
        assert several.parts(1, lane) == one.parts(3, lane)
        assert [part[0].seed for part in several.parts(0, lane)] == [one.parts(at, lane)[0][0].seed for at in range(3)]
    used = [number for step in range(2) for lane in range(2) for number in several.samples(5, 5 + step, lane)]
    assert sorted(used) == list(range(42))


def test_loaders_that_go_along_end_with_the_shortest_and_have_orders_of_their_own() -> None:
    several = step_batches((40, 8), (40, 8), (30, 10))
    assert several.steps == 3 and several.counts(0) == (13, 13) and several.batch == 26
    first, second, third = several.parts(0, 0)[0]
    assert (len(first), len(second), len(third)) == (4, 4, 5)
    assert list(first) != list(second) and first.seed != second.seed


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^accumulate = 0: must be a whole number of at least 1 \(set by run\.steps"):
        step_batches((40, 8), accumulate=0)
    loader = Batches(loader_of(numbered(40), 8), num_lanes=2, seed=0)
    with pytest.raises(UsageError, match=r"run\.steps got the same loader twice\. Prepare a second DataLoader over"):
        StepBatches([loader, loader], 1, 0)
    with pytest.raises(NotExact, match=r"batch 5 has 1, 8 samples of the loaders.*lane 1 has samples of.*drop_last"):
        step_batches((41, 8), (48, 8))
    assert step_batches((41, 8), (41, 8)).counts(5) == (2, 0)


# ---------------------------------------------------------------- what becomes of them


@pytest.mark.parametrize("lanes", [1, 2, 3])
@pytest.mark.parametrize("n", [48, 50, 58])
def test_a_step_of_several_batches_has_the_gradient_of_one_that_is_as_large(join, lanes: int, n: int) -> None:
    run = join(lanes=lanes)
    model = net()
    model, optimizer, loader = run.prepare(
        model, optim.SGD(model.parameters(), lr=0.05, momentum=0.9), loader_of(points(n))
    )
    taken = list(batches_of(points(n), epochs=1))
    number = -1
    for number, step in enumerate(run.steps(loader, accumulate=3)):
        wanted = [torch.cat(parts) for parts in zip(*taken[3 * number : 3 * number + 3], strict=True)]
        loss = loss_of(model, wanted)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        sizes = []
        for batch in step:
            sizes.append(len(batch[0]))
            loss_of(model, batch).backward()
        assert max(sizes) <= 12 // lanes, "no more memory than without"
        assert step.loss == pytest.approx(loss.item(), rel=1e-5)
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)
        optimizer.step()
        optimizer.zero_grad()
    assert run.step == number + 1 == -(-len(taken) // 3) and run.result()["samples"] == n


def test_a_part_without_backward_is_named(join) -> None:
    run = join(lanes=2)
    model = net()
    model, _optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.05), loader_of(points()))
    with pytest.raises(NotExact, match=r"unit \(step 0, lane 0\) called no backward\(\)"):
        for step in run.steps(loader, accumulate=2):
            for number, batch in enumerate(step):
                if number != 1:
                    loss_of(model, batch).backward()


def test_every_part_draws_numbers_of_its_own(join) -> None:
    run = join(lanes=2)
    model = net()
    model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.05), loader_of(points()))
    drawn = []
    for step in run.steps(loader, accumulate=2):
        for batch in step:
            drawn.append(torch.rand(1).item())
            loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert len(set(drawn)) == len(drawn) == 8


@pytest.mark.parametrize("fetchers", [0, 1])
def test_loaders_that_go_along_give_a_batch_each(join, fetchers: int) -> None:
    run = join(lanes=2)
    model = net()
    first = loader_of(points(48), 12, num_workers=fetchers)
    model, optimizer, a, b = run.prepare(
        model, optim.SGD(model.parameters(), lr=0.05), first, loader_of(points(30), 6)
    )
    assert (len(a), len(b)) == (4, 5)
    losses = []
    for step in run.steps(a, b):
        for (xa, ya), (xb, yb) in step:
            assert len(xa) == 6 and len(xb) == 3
            (loss_of(model, (xa, ya)) + 2 * loss_of(model, (xb, yb))).backward()
        losses.append(step.loss)
        optimizer.step()
        optimizer.zero_grad()
    assert run.step == 4 and run.result()["samples"] == 4 * 18
    other = net()
    theirs = optim.SGD(other.parameters(), lr=0.05)
    along = [Batches(loader_of(points(30), 6), num_lanes=1, seed=0).ids(1 << 48, at, 0) for at in range(4)]
    for batch, ids, loss in zip(batches_of(points(48), epochs=1), along, losses, strict=True):
        second = [torch.stack(column) for column in zip(*(points(30)[i] for i in ids), strict=True)]
        value = loss_of(other, batch) + 2 * loss_of(other, second)
        value.backward()
        assert loss == pytest.approx(value.item(), rel=1e-4)
        theirs.step()
        theirs.zero_grad()
    assert_close(model, other, rtol=1e-3, atol=1e-5)


def test_run_steps_wants_prepared_loaders(join) -> None:
    run, model = join(lanes=2), net()
    _, _, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.05), loader_of(points()))
    others: list[tuple[Any, str]] = [((), "nothing"), ((loader, loader_of(points())), "a DataLoader")]
    for given, told in others:
        with pytest.raises(UsageError, match=rf"run\.steps got {told}\. Hand it a loader that run\.prepare"):
            run.steps(*given)


def test_batch_norm_counts_every_part(join) -> None:
    run = join(lanes=2)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.05), loader_of(points()))
    for step in run.steps(loader, accumulate=2):
        for batch in step:
            loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert model[1].num_batches_tracked == 4 and run.step == 2
