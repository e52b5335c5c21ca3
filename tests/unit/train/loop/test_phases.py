"""Several optimizers and phases in a turn of a loop by steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import holdfast as hf
from holdfast.core.sync.modes import parse
from holdfast.dataplane.reduce.several_optimizers import SeveralOptimizers, each, groups_of, owner, together
from holdfast.errors import NotExact, UsageError
from tests.unit.train.problems import assert_close, batches_of, loader_of, loss_of, net, plain, points

STEPS = 4  # in an epoch


class Pair:
    """A generator and a discriminator, with an optimizer each."""

    def __init__(self) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.made = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))
            self.told = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1))
        self.of_made = optim.Adam(self.made.parameters(), lr=0.01)
        self.of_told = optim.SGD(self.told.parameters(), lr=0.1, momentum=0.5)

    def prepare(self, run: hf.Run, **options: Any) -> Any:
        data = loader_of(points(), **options)
        return run.prepare(self.made, self.told, self.of_made, self.of_told, data)[-1]

    def loss_told(self, batch: Any) -> Tensor:
        x, y = batch
        return nn.functional.softplus(-self.told(y)).mean() + nn.functional.softplus(self.told(self.made(x))).mean()

    def loss_made(self, batch: Any) -> Tensor:
        return nn.functional.softplus(-self.told(self.made(batch[0]))).mean()


def by_hand(epochs: int) -> Pair:
    """The same pair trained in plain PyTorch."""
    pair = Pair()
    for batch in batches_of(points(), epochs=epochs):
        for loss, optimizer in ((pair.loss_told, pair.of_told), (pair.loss_made, pair.of_made)):
            pair.made.zero_grad()
            pair.told.zero_grad()
            loss(batch).backward()
            optimizer.step()
    return pair


def phase(step: Any, loss: Callable[[Any], Tensor], optimizer: optim.Optimizer) -> None:
    for batch in step:
        loss(batch).backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("lanes", [1, 3])
def test_two_phases_are_those_of_plain_pytorch(join, lanes: int) -> None:
    run, pair = join(lanes=lanes), Pair()
    loader = pair.prepare(run)
    seen: list[tuple[int, ...]] = []
    for _ in range(2):
        for step in run.steps(loader):
            before = [p.detach().clone() for p in (*pair.made.parameters(), *pair.told.parameters())]
            phase(step, pair.loss_told, pair.of_told)
            moved = [not torch.equal(p, old) for p, old in zip(
                (*pair.made.parameters(), *pair.told.parameters()), before, strict=True
            )]  # fmt: skip
            assert moved == [False] * 4 + [True] * 4, "only the parameters of that optimizer"
            told = step.loss
            phase(step, pair.loss_made, pair.of_made)
            assert step.loss != told == pytest.approx(told)
            seen.append((step.number, run.step))
    assert seen == [(n, n + 1) for n in range(2 * STEPS)] and run.result()["samples"] == 2 * 48
    other = by_hand(2)
    assert_close(pair.made, other.made, rtol=1e-3, atol=1e-5)
    assert_close(pair.told, other.told, rtol=1e-3, atol=1e-5)
    for mine, theirs in ((pair.of_made, other.of_made), (pair.of_told, other.of_told)):
        states = mine.state_dict()["state"], theirs.state_dict()["state"]
        assert states[0].keys() == states[1].keys()
        for number in states[0]:
            for key, value in states[1][number].items():
                torch.testing.assert_close(states[0][number][key], value, rtol=1e-3, atol=1e-5)


def test_gradients_may_be_set_to_zero_before_each_phase_by_the_models(join) -> None:
    run, pair = join(lanes=2), Pair()
    loader = pair.prepare(run)
    for step in run.steps(loader):
        for model, loss, optimizer in (
            (pair.told, pair.loss_told, pair.of_told), (pair.made, pair.loss_made, pair.of_made)
        ):  # fmt: skip
            model.zero_grad()
            for batch in step:
                loss(batch).backward()
            optimizer.step()
    other = by_hand(1)
    assert_close(pair.made, other.made, rtol=1e-3, atol=1e-5)
    assert_close(pair.told, other.told, rtol=1e-3, atol=1e-5)


def test_two_optimizers_may_use_one_gradient(join) -> None:
    run, model = join(lanes=2), net()
    first = optim.SGD(model[0].parameters(), lr=0.05, momentum=0.9)
    second = optim.AdamW(model[2].parameters(), lr=0.01)
    model, first, second, loader = run.prepare(model, first, second, loader_of(points()))
    for step in run.steps(loader):
        for batch in step:
            loss_of(model, batch).backward()
        loss = step.loss
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        gradient = model[2].weight.grad.clone()
        first.step()
        first.zero_grad()
        assert torch.equal(model[2].weight.grad, gradient)
        second.step()
        second.zero_grad()
        assert step.loss == run.loss == loss
    assert run.step == STEPS
    other = net()
    theirs = optim.SGD(other[0].parameters(), lr=0.05, momentum=0.9), optim.AdamW(other[2].parameters(), lr=0.01)
    for batch in batches_of(points(), epochs=1):
        loss_of(other, batch).backward()
        nn.utils.clip_grad_norm_(other.parameters(), 0.3)
        for optimizer in theirs:
            optimizer.step()
            optimizer.zero_grad()
    assert_close(model, other, rtol=1e-3, atol=1e-5)


def test_one_optimizer_may_go_through_the_same_samples_several_times(join) -> None:
    run, model = join(lanes=2), net()
    model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.05), loader_of(points()))
    for step in run.steps(loader):
        seen = []
        for _ in range(3):
            xs = []
            for batch in step:
                xs.append(batch[0])
                loss_of(model, batch).backward()
            seen.append(torch.cat(xs))
            optimizer.step()
            optimizer.zero_grad()
        assert torch.equal(seen[0], seen[1]) and torch.equal(seen[1], seen[2])
    assert run.step == STEPS
    other = net()
    thrice = [batch for batch in batches_of(points(), epochs=1) for _ in range(3)]
    assert_close(model, plain(other, optim.SGD(other.parameters(), lr=0.05), thrice), rtol=1e-3, atol=1e-5)


def test_a_phase_may_be_dropped_and_the_last_one_too(join) -> None:
    run, pair = join(lanes=2), Pair()
    loader = pair.prepare(run)
    for step in run.steps(loader):
        for batch in step:
            pair.loss_told(batch).backward()
        if step.number % 2:
            pair.of_told.step()
        pair.of_told.zero_grad()
        for batch in step:
            pair.loss_made(batch).backward()
        if step.number != 2:
            pair.of_made.step()
        pair.of_made.zero_grad()
    assert run.step == STEPS
    other = Pair()
    for number, batch in enumerate(batches_of(points(), epochs=1)):
        for loss, optimizer, go in (
            (other.loss_told, other.of_told, number % 2), (other.loss_made, other.of_made, number != 2)
        ):  # fmt: skip
            other.made.zero_grad()
            other.told.zero_grad()
            loss(batch).backward()
            if go:
                optimizer.step()
    assert_close(pair.made, other.made, rtol=1e-3, atol=1e-5)
    assert_close(pair.told, other.told, rtol=1e-3, atol=1e-5)


def test_a_phase_may_be_skipped(join) -> None:
    run, pair = join(lanes=2), Pair()
    loader = pair.prepare(run)
    for step in run.steps(loader):
        for batch in step:
            pair.loss_told(batch).backward()
        step.skip()
        pair.of_told.zero_grad()
        phase(step, pair.loss_made, pair.of_made)
    assert run.step == STEPS
    for mine, theirs in zip(pair.told.parameters(), Pair().told.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("where", ["between", "in the second"])
def test_a_loop_may_be_left_between_phases(join, where: str) -> None:
    run, pair = join(lanes=2), Pair()
    loader = pair.prepare(run)
    for step in run.steps(loader):
        phase(step, pair.loss_told, pair.of_told)
        if where == "between" and step.number == 2:
            break
        for batch in step:
            pair.loss_made(batch).backward()
        if step.number == 2:
            break
        pair.of_made.step()
        pair.of_made.zero_grad()
    assert run.step == 3
    for step in run.steps(loader):
        assert step.number == run.step
        phase(step, pair.loss_told, pair.of_told)
        phase(step, pair.loss_made, pair.of_made)
    assert run.step == 3 + STEPS


def test_phases_draw_numbers_of_their_own(join) -> None:
    def drawn(lanes: int) -> list[list[float]]:
        run, pair, out = join(lanes=lanes), Pair(), [[], []]
        loader = pair.prepare(run)
        for step in run.steps(loader):
            for loss, optimizer in ((pair.loss_told, pair.of_told), (pair.loss_made, pair.of_made)):
                for batch in step:
                    out[0].append(torch.rand(1).item())
                    loss(batch).backward()
                out[1].append(torch.rand(1).item())
                optimizer.step()
                out[1].append(torch.rand(1).item())
                optimizer.zero_grad()
        run.close()
        return out

    two, three = drawn(2), drawn(3)
    assert two[1] == three[1] and all(len(set(some)) == len(some) for some in (*two, *three))


@pytest.mark.parametrize("fetchers", [0, 2])
def test_fetching_processes_go_along_with_phases(join, fetchers: int) -> None:
    run, pair = join(lanes=2), Pair()
    loader, made = pair.prepare(run, num_workers=fetchers), 0
    streams = set()
    for step in run.steps(loader):
        phase(step, pair.loss_told, pair.of_told)
        phase(step, pair.loss_made, pair.of_made)
        streams.add(id(loader._batches._stream))
        made += 1
    assert made == STEPS and len(streams) <= 2, "after the first turn it is known how often units come"
    other = by_hand(1)
    assert_close(pair.made, other.made, rtol=1e-3, atol=1e-5)


def test_schedulers_of_several_optimizers_are_found(join) -> None:
    run, pair = join(lanes=2), Pair()
    made = optim.lr_scheduler.StepLR(pair.of_made, 1, gamma=0.5)
    told = optim.lr_scheduler.StepLR(pair.of_told, 2, gamma=0.1)
    loader = pair.prepare(run)
    for step in run.steps(loader):
        phase(step, pair.loss_told, pair.of_told)
        told.step()
        phase(step, pair.loss_made, pair.of_made)
        made.step()
    assert pair.of_made.param_groups[0]["lr"] == pytest.approx(0.01 / 16)
    assert pair.of_told.param_groups[0]["lr"] == pytest.approx(0.1 / 100)


# ---------------------------------------------------------------- misuse


def test_a_parameter_in_two_optimizers_is_refused(join) -> None:
    run, model = join(lanes=2), net()
    several = optim.SGD(model.parameters(), lr=0.1), optim.SGD(model[0].parameters(), lr=0.1)
    with pytest.raises(NotExact, match=r"parameter 0\.weight is in two optimizers\. Give it to one of them"):
        run.prepare(model, *several, loader_of(points()))


def test_a_plain_loop_with_several_optimizers_is_refused(join) -> None:
    run, pair = join(lanes=2), Pair()
    loader = pair.prepare(run)
    with pytest.raises(NotExact, match=r"a plain loop over a prepared loader was begun, with 2 optimizers\. Use the"):
        next(iter(loader))


def test_several_optimizers_in_a_relaxed_mode_are_refused(join) -> None:
    run, pair = join(lanes=2), Pair()
    run.mode = parse("async", 2)
    with pytest.raises(NotExact, match=r"run\.prepare got 2 optimizers with sync = async\. Put all parameters into"):
        pair.prepare(run)


def test_no_optimizer_is_refused(join) -> None:
    run = join(lanes=2)
    with pytest.raises(NotExact, match=r"run\.prepare got 1 models and 0 optimizers\. Hand over at least one of each"):
        run.prepare(net(), loader_of(points()))


@pytest.mark.parametrize("again", [False, True])
def test_a_gradient_that_was_used_and_left_is_not_used_again(join, again: bool) -> None:
    run, pair = join(lanes=2), Pair()
    loader = pair.prepare(run)
    message = r"step 0 would begin with the gradients of the step before it\. Call optimizer\.zero_grad"
    with pytest.raises(NotExact, match=message):
        for step in run.steps(loader):
            for _ in range(2):
                for batch in step:
                    pair.loss_told(batch).backward()
                pair.of_told.step()
                if again:
                    pair.of_made.zero_grad()  # that of the other one


def test_an_optimizer_uses_a_gradient_once(join) -> None:
    run, pair = join(lanes=2), Pair()
    loader = pair.prepare(run)
    with pytest.raises(UsageError, match=r"optimizer\.step\(\) was called in step 0 after the step had ended"):
        for step in run.steps(loader):
            for batch in step:
                pair.loss_told(batch).backward()
            pair.of_told.step()
            pair.of_made.step()
            pair.of_told.step()


def test_a_gradient_that_is_not_used_at_all_is_refused(join) -> None:
    run, pair = join(lanes=2), Pair()
    loader = pair.prepare(run)
    with pytest.raises(NotExact, match=r"the turn of step 0 ended without optimizer\.step\(\)"):
        for step in run.steps(loader):
            phase(step, pair.loss_told, pair.of_told)
            for batch in step:
                pair.loss_made(batch).backward()


# ---------------------------------------------------------------- several as one


def test_groups_are_numbered_through() -> None:
    first = optim.SGD([{"params": [torch.zeros(1)]}, {"params": [torch.zeros(1)], "lr": 0.5}], lr=0.1)
    second = optim.Adam([torch.zeros(1)], lr=0.2)
    both = together([first, second])
    assert isinstance(both, SeveralOptimizers) and each(both) == (first, second) and each(first) == (first,)
    assert [group["lr"] for group in both.param_groups] == [0.1, 0.5, 0.2]
    assert [owner(both, number) for number in range(3)] == [(first, 0), (first, 1), (second, 0)]
    assert list(groups_of(both, 1)) == [2] and together([first]) is first
    with pytest.raises(IndexError):
        owner(both, 3)
