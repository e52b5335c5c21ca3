"""Gradient scalers in a loop by steps: torch's own code, deciding on the gradient of the whole batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn, optim

from holdfast.errors import NonFinite, NotExact
from tests.unit.train.problems import assert_close, batches_of, loader_of, loss_of, net, points

GradScaler = torch.amp.GradScaler
HUGE = 2.0**127  #: makes every loss infinite, and with it the gradients


def scaled_step(scaler: Any, model: nn.Module, optimizer: optim.Optimizer, *, clip: bool) -> None:
    if clip:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("fused", [None, True])
def test_it_scales_skips_and_grows_as_in_plain_pytorch(join, lanes: int, clip: bool, fused: bool | None) -> None:
    def make(model: nn.Module) -> tuple[optim.Optimizer, Any]:
        optimizer = optim.Adam(model.parameters(), lr=0.01, fused=fused)
        return optimizer, GradScaler("cpu", init_scale=HUGE, growth_interval=3, backoff_factor=2.0**-20)

    run, model, rates = join(lanes=lanes), net(), []
    optimizer, scaler = make(model)
    model, optimizer, loader = run.prepare(model, optimizer, loader_of(points()))
    for _ in range(3):
        for step in run.steps(loader):
            for batch in step:
                scaler.scale(16 * loss_of(model, batch)).backward()
            loss = step.loss
            scaled_step(scaler, model, optimizer, clip=clip)
            rates.append((scaler.get_scale(), loss))
    assert run.step == 12
    other = net()
    theirs, scaling = make(other)
    wanted = []
    for batch in batches_of(points(), epochs=3):
        value = 16 * loss_of(other, batch)
        scaling.scale(value).backward()
        scaled_step(scaling, other, theirs, clip=clip)
        wanted.append((scaling.get_scale(), value.item()))
    assert [rate for rate, _ in rates] == [rate for rate, _ in wanted] and len({rate for rate, _ in rates}) > 3
    assert wanted[0][0] == HUGE * 2.0**-20, "the first step was left out"
    for (_, loss), (_, value) in zip(rates[1:], wanted[1:], strict=True):
        assert loss == pytest.approx(value, rel=1e-4)
    assert_close(model, other, rtol=1e-3, atol=1e-5)


def test_two_optimizers_with_one_scaler(join) -> None:
    run, model = join(lanes=2), net()
    optimizers = optim.SGD(model[0].parameters(), lr=0.05), optim.SGD(model[2].parameters(), lr=0.05)
    scaler = GradScaler("cpu", init_scale=4.0)
    model, *optimizers, loader = run.prepare(model, *optimizers, loader_of(points()))
    first = [p.detach().clone() for p in model[0].parameters()]
    for step in run.steps(loader):
        for batch in step:
            scaler.scale(loss_of(model, batch)).backward()
        model[0].weight.grad[0, 0] = float("inf")
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        for optimizer in optimizers:
            optimizer.zero_grad()
    assert run.step == 4 and scaler.get_scale() == 4.0 / 16
    assert all(torch.equal(p, old) for p, old in zip(model[0].parameters(), first, strict=True)), "left out"
    assert not torch.equal(model[2].weight, net()[2].weight), "the other one moved"


def test_a_disabled_scaler_is_none(join) -> None:
    run, model = join(lanes=2), net()
    scaler = GradScaler("cpu", enabled=False)
    model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.05), loader_of(points()))
    for step in run.steps(loader):
        for batch in step:
            scaler.scale(loss_of(model, batch)).backward()
        scaled_step(scaler, model, optimizer, clip=True)
    assert run.step == 4


def test_without_one_what_is_not_finite_is_named(join) -> None:
    run, model = join(lanes=2), net()
    model, _, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.05), loader_of(points()))
    with pytest.raises(NonFinite, match="the loss is inf"):
        for step in run.steps(loader):
            for batch in step:
                (loss_of(model, batch) * HUGE * 8.0).backward()


@pytest.mark.parametrize("when", ["before", "kept", "in a turn"])
def test_one_that_was_made_at_another_time_is_to_be_kept(join, when: str) -> None:
    scaler, run, model = GradScaler("cpu"), join(lanes=2), net()
    model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.05), loader_of(points()))
    if when == "kept":
        run.keep(scaler)

    def loop() -> None:
        for step in run.steps(loader):
            used = GradScaler("cpu") if when == "in a turn" else scaler
            for batch in step:
                used.scale(loss_of(model, batch)).backward()
            scaled_step(used, model, optimizer, clip=True)

    if when == "kept":
        loop()
        assert run.step == 4
        return
    with pytest.raises(NotExact, match=r"a GradScaler is used that was made before hf\.join\(\), or after training"):
        loop()


def test_what_was_changed_in_torch_is_put_back(join) -> None:
    names = ("__init__", "scale", "_check_scale_growth_tracker", "_maybe_opt_step")
    before = [getattr(GradScaler, name) for name in names]
    run, model = join(lanes=2), net()
    optimizer = optim.Adam(model.parameters(), fused=True)
    run.prepare(model, optimizer, loader_of(points()))
    assert [getattr(GradScaler, name) for name in names] != before and not optimizer._step_supports_amp_scaling
    run.close()
    assert [getattr(GradScaler, name) for name in names] == before and optimizer._step_supports_amp_scaling
