"""Modules that are prepared and not trained: kept, like what `run.keep` is given, and no unit may change them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim

from holdfast.dataplane.memory.arena import Arena, Sections
from holdfast.errors import NotExact
from holdfast.train.loop.keeping import Keeping
from holdfast.train.loop.kept_modules import KeptModule, KeptModules
from tests.unit.train.problems import assert_close, batches_of, loader_of, loss_of, net, points

Update = Callable[[nn.Module, nn.Module], None]


def averaged(target: nn.Module, model: nn.Module) -> None:
    with torch.no_grad():
        for theirs, mine in zip(target.parameters(), model.parameters(), strict=True):
            theirs.mul_(0.9).add_(mine, alpha=0.1)


def by_data(target: nn.Module, model: nn.Module) -> None:
    for theirs, mine in zip(target.parameters(), model.parameters(), strict=True):
        theirs.data = theirs.data * 0.9 + mine.data * 0.1


def in_place_by_data(target: nn.Module, model: nn.Module) -> None:
    for theirs, mine in zip(target.parameters(), model.parameters(), strict=True):
        theirs.data.lerp_(mine.data, 0.1)


def copied(target: nn.Module, model: nn.Module) -> None:
    target.load_state_dict(model.state_dict())


UPDATES = [averaged, by_data, in_place_by_data, copied]


def distilled(model: nn.Module, target: nn.Module, batch: Any) -> torch.Tensor:
    x, _ = batch
    return loss_of(model, batch) + nn.functional.mse_loss(model(x), target(x).detach())


@pytest.mark.parametrize("update", UPDATES)
def test_a_target_network_follows_as_on_one_machine(join, update: Update) -> None:
    run, model = join(lanes=4), net()
    target = copy.deepcopy(model)
    target, model, optimizer, loader = run.prepare(
        target, model, optim.SGD(model.parameters(), lr=0.05), loader_of(points())
    )
    for step in run.steps(loader):
        for batch in step:
            distilled(model, target, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        update(target, model)
    other = net()
    theirs, follows = optim.SGD(other.parameters(), lr=0.05), copy.deepcopy(other)
    for batch in batches_of(points(), epochs=1):
        distilled(other, follows, batch).backward()
        theirs.step()
        theirs.zero_grad()
        update(follows, other)
    assert_close(model, other, rtol=1e-3, atol=1e-5)
    assert_close(target, follows, rtol=1e-3, atol=1e-5)


def test_a_unit_that_changes_it_is_refused(join) -> None:
    run, model = join(lanes=2), net()
    teacher = nn.Sequential(net(), nn.BatchNorm1d(2))
    model, teacher, _optimizer, loader = run.prepare(
        model, teacher, optim.SGD(model.parameters(), lr=0.05), loader_of(points())
    )
    text = (
        r"1\.1\.num_batches_tracked was written to before the end of unit \(step 0, lane 0\), and no optimizer was "
        r"prepared for the module it is of\. Change such a module in the turn, after the inner loop; and call its eval"
    )
    with pytest.raises(NotExact, match=text):
        for turn in run.steps(loader):
            for batch in turn:
                distilled(model, teacher, batch).backward()


def test_in_a_plain_loop_it_may_be_changed_after_the_step(join) -> None:
    run, model, teacher = join(lanes=2), net(), net()
    model, teacher, optimizer, loader = run.prepare(
        model, teacher, optim.SGD(model.parameters(), lr=0.05), loader_of(points())
    )
    other, follows = net(), net()
    theirs = optim.SGD(other.parameters(), lr=0.05)
    for batch, same in zip(loader, batches_of(points(), epochs=1), strict=True):
        distilled(model, teacher, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        averaged(teacher, model)
        distilled(other, follows, same).backward()
        theirs.step()
        theirs.zero_grad()
        averaged(follows, other)
    assert run.step == 4
    assert_close(teacher, follows)


@pytest.mark.parametrize("update", UPDATES)
def test_what_was_changed_is_handed_over_and_what_was_not_is_not(update: Update) -> None:
    def keeping(module: nn.Module, sections: Sections) -> Keeping:
        kept = Keeping()
        kept.add_modules(KeptModules([("", module)]))
        sections.add("kept", kept.nbytes())
        return kept

    mine, late = net(), net()
    sections = Sections()
    kept, theirs = keeping(mine, sections), keeping(late, Sections())
    arena = Arena(sections)
    for one in (kept, theirs):
        one.attach(arena)
        one.modules.settle(lambda: None)
    kept.write(1, 0)
    assert theirs.load(1) and KeptModule("", mine).nbytes() > 0
    assert kept.modules[0].state_dict() == {}, "nothing is copied as long as nothing moves"
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
    update(mine, model)
    kept.write(2, 1)
    assert theirs.load(2)
    assert_close(late, mine, rtol=0.0, atol=0.0)
    assert theirs.modules[0].state_dict().keys() == kept.modules[0].state_dict().keys() != set()
