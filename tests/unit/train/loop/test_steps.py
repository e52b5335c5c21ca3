"""The loop by steps: what a turn means, and misuse that gets a sentence."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader

import holdfast as hf
from holdfast.errors import NonFinite, NotExact, OutOfSync, UsageError
from holdfast.train.loop.script_position import NONE
from tests.unit.train.problems import assert_close, batches_of, loader_of, loss_of, net, plain, points, turn

STEPS = 4  # in an epoch
Script = Callable[[Any, nn.Module, optim.Optimizer], None]


def prepared(run: hf.Run, make: Any = None, **options: Any) -> tuple[nn.Module, optim.Optimizer, Any]:
    model = net()
    optimizer = make(model.parameters()) if make else optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return run.prepare(model, optimizer, loader_of(points(), **options))


def expected(steps: int) -> nn.Module:
    model = net()
    taken = list(batches_of(points(), epochs=9))[:steps]
    return plain(model, optim.SGD(model.parameters(), lr=0.05, momentum=0.9), taken)


# ---------------------------------------------------------------- meaning


def test_one_turn_is_one_step_and_the_gradient_is_that_of_the_whole_batch(join) -> None:
    run = join(lanes=3)
    model, optimizer, loader = prepared(run)
    numbers, losses = [], []
    for epoch in run.epochs(2):
        for step in run.steps(loader):
            seen = []
            for batch in step:
                assert run.unit[0] == step.number == run.step
                seen.append(batch)
                loss_of(model, batch).backward()
            whole = [torch.cat(parts) for parts in zip(*seen, strict=True)]
            loss = loss_of(model, whole)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                torch.testing.assert_close(parameter.grad, gradient)
            assert step.loss == pytest.approx(loss.item(), rel=1e-5)
            before = [p.detach().clone() for p in model.parameters()]
            optimizer.step()
            assert all(not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True)), "moved"
            assert run.step == step.number + 1 and run.loss == step.loss
            optimizer.zero_grad()
            numbers.append(step.number)
            losses.append(step.loss)
        assert run.epoch == epoch
    assert numbers == list(range(2 * STEPS)) and losses[-1] < losses[0]
    assert_close(model, expected(2 * STEPS), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("lanes", [1, 4, 6])
def test_gradients_may_be_edited_in_every_way(join, lanes: int) -> None:
    def edit(model: nn.Module) -> Tensor:
        first, *others = model.parameters()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        nn.utils.clip_grad_value_(others, 0.05)
        first.grad.mul_(0.5)
        first.grad.data[0] = 0.0
        others[0].grad = others[0].grad + 0.01
        others[-1].grad = None
        return norm

    def make(parameters: Any) -> optim.Optimizer:
        return optim.AdamW(parameters, lr=0.02)

    run, norms = join(lanes=lanes), []
    model, optimizer, loader = prepared(run, make)
    for step in run.steps(loader):
        for batch in step:
            loss_of(model, batch).backward()
        norms.append(edit(model).item())
        optimizer.step()
        optimizer.zero_grad()
    other = net()
    theirs = make(other.parameters())
    for batch, norm in zip(batches_of(points(), epochs=1), norms, strict=True):
        loss_of(other, batch).backward()
        assert edit(other).item() == pytest.approx(norm, rel=1e-4)
        theirs.step()
        theirs.zero_grad()
    assert_close(model, other, rtol=1e-3, atol=1e-4)
    assert torch.equal(list(model.parameters())[-1], list(net().parameters())[-1]), "it had no gradient"


def test_buffers_are_merged_before_the_end_of_the_step(join) -> None:
    run = join(lanes=2)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    norm = model[1]
    model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.05), loader_of(points()))
    for step in run.steps(loader):
        before, means = norm.running_mean.clone(), []
        for x, y in step:
            assert torch.equal(norm.running_mean, before), "each unit begins with the step's"
            nn.functional.mse_loss(model(x), y).backward()
            means.append(norm.running_mean.clone())
        torch.testing.assert_close(norm.running_mean, torch.stack(means).mean(0))
        merged = norm.running_mean.clone()
        assert norm.num_batches_tracked == step.number + 1
        optimizer.step()
        optimizer.zero_grad()
        assert torch.equal(norm.running_mean, merged)


@pytest.mark.parametrize("how", ["none", "next", "a loop that is left"])
def test_a_glance_at_a_batch_before_training_changes_nothing(join, how: str) -> None:
    run = join(lanes=2)
    model, optimizer, loader = prepared(run)
    kept = run.keep(turns=0)
    if how == "next":
        x, _ = next(iter(loader))
        assert x.shape[1] == 5
    for x, _ in loader if how == "a loop that is left" else []:
        assert x.shape[1] == 5
        break
    for _ in run.epochs(2):
        for step in run.steps(loader):
            turn(step, model, optimizer)
            kept.turns += 1
    assert_close(model, expected(2 * STEPS), rtol=1e-3, atol=1e-5)
    assert kept.turns == 2 * STEPS


def test_schedulers_move_at_once(join) -> None:
    run = join(lanes=2)
    model, optimizer, loader = prepared(run)
    schedule = optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    rates = []
    for step in run.steps(loader):
        turn(step, model, optimizer)
        schedule.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [0.05 * 0.5**n for n in range(1, STEPS + 1)]


def test_a_skipped_step_uses_its_batch_and_moves_nothing(join) -> None:
    run = join(lanes=2)
    model, optimizer, loader = prepared(run)
    for step in run.steps(loader):
        for batch in step:
            loss_of(model, batch).backward()
        before = [p.detach().clone() for p in model.parameters()]
        if step.number == 1:
            step.skip()
            assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
        else:
            optimizer.step()
        optimizer.zero_grad()
    assert run.step == STEPS
    batches = list(batches_of(points(), epochs=1))
    del batches[1]
    other = net()
    assert_close(model, plain(other, optim.SGD(other.parameters(), lr=0.05, momentum=0.9), batches), rtol=1e-3)


@pytest.mark.parametrize("where", ["top", "before the end", "after the end"])
def test_a_loop_may_be_left_anywhere_in_a_turn(join, where: str) -> None:
    run = join(lanes=2)
    model, optimizer, loader = prepared(run)
    for step in run.steps(loader):
        if where == "top" and step.number == 2:
            break
        for batch in step:
            loss_of(model, batch).backward()
        if where == "before the end" and step.number == 2:
            break
        optimizer.step()
        optimizer.zero_grad()
        if where == "after the end" and step.number == 1:
            break
    assert run.step == 2
    for step in run.steps(loader):  # the next loop begins anew, with the same parameters and a batch of its own
        assert step.number == run.step and step.number in range(2, 2 + STEPS)
        turn(step, model, optimizer)
    assert run.step == 2 + STEPS
    batches = list(batches_of(points(), epochs=2))
    other = net()
    assert_close(
        model, plain(other, optim.SGD(other.parameters(), lr=0.05, momentum=0.9), batches[:2] + batches[STEPS:]),
        rtol=1e-3, atol=1e-5,
    )  # fmt: skip


def test_an_evaluation_may_stand_anywhere_in_a_turn(join) -> None:
    run = join(lanes=2)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    test = DataLoader(points(), batch_size=16)
    model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.05), loader_of(points()))
    losses: list[float] = []

    def evaluated() -> None:
        model.eval()
        losses.append(run.evaluate(lambda x, y: {"loss": loss_of(model, (x, y))}, test)["loss"])
        model.train()

    for _ in range(2):
        for step in run.steps(loader):
            evaluated()
            for batch in step:
                loss_of(model, batch).backward()
            mean = model[1].running_mean.clone()
            evaluated()
            assert torch.equal(model[1].running_mean, mean)
            optimizer.step()
            optimizer.zero_grad()
            evaluated()
        evaluated()
    assert run.step == 2 * STEPS and len(losses) == 2 * (3 * STEPS + 1)
    assert losses[2] == losses[3], "nothing moved between the end of one step and the top of the next"
    assert losses[0] != losses[1] != losses[2], "buffers moved, then parameters did"


def test_what_is_drawn_outside_of_units_follows_from_the_place(join) -> None:
    def drawn(lanes: int) -> list[float]:
        run, out = join(lanes=lanes), list[float]()
        model, optimizer, loader = prepared(run)
        for _ in range(2):
            for step in run.steps(loader):
                out.append(torch.rand(1).item())
                for batch in step:
                    torch.rand(3)
                    loss_of(model, batch).backward()
                out.append(torch.rand(1).item())
                optimizer.step()
                optimizer.zero_grad()
                out.append(torch.rand(1).item())
            out.append(torch.rand(1).item())
        run.close()
        return out

    first = drawn(2)
    assert first == drawn(4) and len(set(first)) == len(first)


# ---------------------------------------------------------------- misuse


def misuse(join: Any, script: Script, error: type[Exception], match: str) -> None:
    run = join(lanes=2)
    model, optimizer, loader = prepared(run)
    with pytest.raises(error, match=match):
        for step in run.steps(loader):
            script(step, model, optimizer)


def in_unit(act: Callable[[nn.Module, optim.Optimizer], Any]) -> Script:
    def script(step: Any, model: nn.Module, optimizer: optim.Optimizer) -> None:
        for batch in step:
            loss_of(model, batch).backward()
            act(model, optimizer)

    return script


def after_units(act: Callable[[Any, nn.Module, optim.Optimizer], Any]) -> Script:
    def script(step: Any, model: nn.Module, optimizer: optim.Optimizer) -> None:
        for batch in step:
            loss_of(model, batch).backward()
        act(step, model, optimizer)

    return script


def leaves_units(step: Any, model: nn.Module, optimizer: optim.Optimizer) -> None:
    for batch in step:
        loss_of(model, batch).backward()
        break


def no_backward(step: Any, model: nn.Module, optimizer: optim.Optimizer) -> None:
    for batch in step:
        loss_of(model, batch)
    optimizer.step()


def twice(step: Any, model: nn.Module, optimizer: optim.Optimizer) -> None:
    for _ in range(2):
        for batch in step:
            loss_of(model, batch).backward()


def in_units_again(step: Any, model: nn.Module, optimizer: optim.Optimizer) -> None:
    for batch in step:
        loss_of(model, batch).backward()
        for other in step:
            loss_of(model, other).backward()


def written(model: nn.Module) -> None:
    with torch.no_grad():
        next(model.parameters()).clamp_(-0.1, 0.1)


MISUSES: dict[str, tuple[Script, type[Exception], str]] = {
    "the end inside of the units": (
        in_unit(lambda _, optimizer: optimizer.step()), UsageError,
        r"optimizer\.step\(\) was called before the end of the loop over the units of step 0\. Call it once, after",
    ),
    "units left early": (leaves_units, UsageError, r"units of step 0 was left before its end, so the gradient of the"),
    "units never entered": (
        lambda step, model, optimizer: optimizer.step(), UsageError,
        r"optimizer\.step\(\) was called in step 0 before its units\. Go through them first",
    ),
    "a turn without units": (
        lambda step, model, optimizer: None, NotExact,
        r"the turn of step 0 ended without its units and optimizer\.step\(\)",
    ),
    "a turn without an end": (
        after_units(lambda step, model, optimizer: None), NotExact,
        r"the turn of step 0 ended without optimizer\.step\(\), and the loop at line \d+ of the script went on\. Call "
        r"it once a turn.*step\.skip\(\) ends a step",
    ),
    "two ends": (
        after_units(lambda step, model, optimizer: [optimizer.step(), optimizer.step()]), UsageError,
        r"optimizer\.step\(\) was called in step 0 after the step had ended\. A turn ends once",
    ),
    "an end and a skip": (
        after_units(lambda step, model, optimizer: [optimizer.step(), step.skip()]), UsageError,
        r"step\.skip\(\) was called in step 0 after the step had ended",
    ),
    "units twice": (
        twice, UsageError,
        r"Step 0 was iterated over again \(with its gradient\)\. Use the gradient of the first time before: with",
    ),
    "units in units": (
        in_units_again, UsageError, r"Step 0 was iterated over again \(in its units\)\. Use the gradient of the first",
    ),
    "no backward": (no_backward, NotExact, r"unit \(step 0, lane 0\) called no backward\(\)"),
    "backward outside of the units": (
        after_units(lambda step, model, optimizer: (model[0].weight ** 2).sum().backward()), UsageError,
        r"backward\(\) was called outside of the loop over the units of step 0, and reached 0\.weight",
    ),
    "gradients that are left": (
        after_units(lambda step, model, optimizer: optimizer.step()), NotExact,
        r"step 1 would begin with the gradients of the step before it\. Call optimizer\.zero_grad\(\) once a turn",
    ),
    "parameters written to after the units": (
        after_units(lambda step, model, optimizer: [written(model), optimizer.step()]), NotExact,
        r"parameter 0\.weight was written to in the turn of step 0\. Parameters belong to the whole crew",
    ),
    "parameters written to after the end": (
        after_units(lambda step, model, optimizer: [optimizer.step(), optimizer.zero_grad(), written(model)]), NotExact,
        r"parameter 0\.weight was written to before the turn of step 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISUSES)
def test_misuse_is_named(join, name: str) -> None:
    misuse(join, *MISUSES[name])


def test_a_scheduler_in_a_unit_is_refused(join) -> None:
    run = join(lanes=2)
    model, optimizer, loader = prepared(run)
    schedule = optim.lr_scheduler.StepLR(optimizer, 1)
    with pytest.raises(NotExact, match=r"StepLR was stepped inside of the loop over the units of a step"):
        for step in run.steps(loader):
            for batch in step:
                loss_of(model, batch).backward()
                schedule.step()


def test_an_evaluation_in_a_unit_is_refused(join) -> None:
    run = join(lanes=2)
    model, _, loader = prepared(run)
    with pytest.raises(UsageError, match=r"run\.evaluate or run\.agree was called inside of the loop over the units"):
        for step in run.steps(loader):
            for batch in step:
                loss_of(model, batch).backward()
                run.evaluate(lambda x, y: {"loss": loss_of(model, (x, y))}, loader_of(points()))


def test_a_loop_in_a_loop_is_refused(join) -> None:
    run = join(lanes=2)
    model, optimizer, loader = prepared(run)
    with pytest.raises(UsageError, match=r"Another loop over a prepared loader was begun inside of this one"):
        for step in run.steps(loader):
            turn(step, model, optimizer)
            for inner in run.steps(loader):
                turn(inner, model, optimizer)


def test_two_loops_at_once_over_a_loader_are_refused(join) -> None:
    run = join(lanes=2)
    model, optimizer, loader = prepared(run)
    with pytest.raises(UsageError, match=r"Another loop over a prepared loader was begun inside of this one"):
        for one, other in zip(run.steps(loader), run.steps(loader), strict=True):
            turn(one, model, optimizer)
            turn(other, model, optimizer)


def test_what_comes_to_be_kept_and_cannot_be_stored_is_named_in_its_turn(join) -> None:
    run = join(lanes=2)
    model, optimizer, loader = prepared(run)
    kept = run.keep(best=1.0)
    with pytest.raises(UsageError, match=r"run\.keep cannot store best: a set\. What is kept are numbers, strings"):
        for step in run.steps(loader):
            turn(step, model, optimizer)
            kept.best = {1, 2}


def test_an_old_step_is_over(join) -> None:
    run = join(lanes=2)
    model, optimizer, loader = prepared(run)
    old = None
    for step in run.steps(loader):
        turn(step, model, optimizer)
        if old is not None:
            with pytest.raises(UsageError, match=r"Step 0 is over: iterate over the step of the turn at hand"):
                iter(old)
            with pytest.raises(UsageError, match=r"step\.skip\(\) was called for step 0, which is over"):
                old.skip()
            break
        old = step


def test_a_loader_that_was_not_prepared_is_refused(join) -> None:
    run = join(lanes=2)
    prepared(run)
    with pytest.raises(UsageError, match=r"run\.steps got a DataLoader\. Hand it a loader that run\.prepare"):
        run.steps(loader_of(points()))


def test_clipping_in_a_unit_is_refused_and_around_it_is_torchs_own(join) -> None:
    misuse(
        join, in_unit(lambda model, _: nn.utils.clip_grad_norm_(model.parameters(), 1.0)), NotExact,
        r"would clip each lane's gradient by itself.*in a loop by steps, call torch's after the loop over",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["clip_grad_norm_", "clip_grad_value_"])
def test_run_clipping_in_a_unit_is_refused(join, name: str) -> None:
    run = join(lanes=2)
    model, _, loader = prepared(run)
    with pytest.raises(NotExact, match=rf"run\.{name} was called inside of the loop over the units of a step"):
        for step in run.steps(loader):
            for batch in step:
                loss_of(model, batch).backward()
                getattr(run, name)(model.parameters(), 1.0)


def test_what_is_not_trained_has_no_gradient_after_the_units(join) -> None:
    run, model = join(lanes=2), net()
    optimizer = optim.SGD(model[2].parameters(), lr=0.1)  # the first layer requires a gradient, too
    model, optimizer, loader = run.prepare(model, optimizer, loader_of(points()))
    for step in run.steps(loader):
        for batch in step:
            loss_of(model, batch).backward()
            assert model[0].weight.grad is not None
        assert model[0].weight.grad is None and model[2].weight.grad is not None
        optimizer.step()
        optimizer.zero_grad()


def test_a_look_at_the_weights_ends_no_turn(join) -> None:
    run = join(lanes=2)
    model, optimizer, loader = prepared(run)
    seen = []
    for step in run.steps(loader):
        for batch in step:
            loss_of(model, batch).backward()
        seen.append(run.weights_sha256())
        optimizer.step()
        optimizer.zero_grad()
        seen.append(run.weights_sha256())
    assert run.step == STEPS and len(set(seen)) == STEPS + 1


def test_a_gradient_that_is_not_finite_is_named(join) -> None:
    run = join(lanes=2)
    model, optimizer, loader = prepared(run)
    with pytest.raises(NonFinite, match=r"Step 0: the gradient of 0\.weight.* is not finite \(lanes none alone"):
        for step in run.steps(loader):
            for batch in step:
                loss_of(model, batch).backward()
            model[0].weight.grad[0, 0] = float("nan")
            optimizer.step()


def test_run_clipping_clips_at_once(join) -> None:
    run = join(lanes=2)
    model, optimizer, loader = prepared(run)
    for step in run.steps(loader):
        for batch in step:
            loss_of(model, batch).backward()
        norm = torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in model.parameters()])).item()
        run.clip_grad_norm_(model.parameters(), 0.1)
        assert run.grad_norm == pytest.approx(norm, rel=1e-5)
        run.clip_grad_value_(model.parameters(), 0.01)
        assert max(p.grad.abs().max().item() for p in model.parameters()) <= 0.01
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("handed", [True, False])
def test_a_plateau_scheduler_alone_is_found_and_stepped_after_the_loop(join, handed: bool) -> None:
    run, model = join(lanes=2), net()
    optimizer = optim.SGD(model.parameters(), lr=0.05)
    plateau = optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    assert isinstance(plateau, optim.lr_scheduler.LRScheduler), "what prepare and the search for schedulers go by"
    model, optimizer, loader = run.prepare(model, optimizer, loader_of(points()), *[plateau][:handed])[:3]
    test, rates = DataLoader(points(), batch_size=16), []
    for _ in run.epochs(3):
        for step in run.steps(loader):
            turn(step, model, optimizer)
        plateau.step(run.evaluate(lambda x, y: {"loss": 1.0 + 0.0 * x.sum()}, test)["loss"])
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.05, 0.005, 0.0005])
    assert run._training.bound.settings._schedulers == [plateau]


def test_numbers_drawn_after_a_loop_follow_from_the_place_whatever_was_evaluated_in_it(join) -> None:
    def drawn(lanes: int) -> list[float]:
        run, out = join(lanes=lanes), list[float]()
        model, optimizer, loader = prepared(run)
        for _ in range(2):
            for step in run.steps(loader):
                turn(step, model, optimizer)
                run.evaluate(lambda x, y: {"loss": loss_of(model, (x, y))}, loader_of(points()))
            out += [torch.rand(1).item(), float(numpy.random.rand()), random.random()]
        run.close()
        return out

    first = drawn(2)
    assert first == drawn(4) and len(set(first)) == len(first)


def test_a_late_worker_that_finds_no_turn_of_a_loop_under_way_says_so(join) -> None:
    run = join(lanes=2)
    model, optimizer, loader = prepared(run)
    for step in run.steps(loader):
        turn(step, model, optimizer)
        if step.number == 1:
            break
    training = run._training
    training.turns.leave()
    left = training.bound.arena.section("settings")
    left[:] = bytes(len(left))
    training.op, training.bound.late = NONE, True  # as one whose script begins now
    with pytest.raises(OutOfSync, match="Nothing is left of the turns before step 2, where this worker comes to"):
        run.steps(loader)
