"""Clipping is that of the whole batch's gradient, whatever the lanes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from holdfast.errors import ConfigError, NotExact
from tests.unit.dataplane.members import LANES, Worker, install, work_of
from tests.unit.train.problems import assert_close, batches_of, loader_of, loss_of, net, points


def plain(model: nn.Module, clip: Any) -> tuple[nn.Module, list[float]]:
    optimizer, norms = optim.SGD(model.parameters(), lr=0.1), []
    for batch in batches_of(points(), epochs=1):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        norms.append(float(clip(model.parameters(), 0.3) or math.nan))
        optimizer.step()
    return model, norms


def clipped(join, model: nn.Module, lanes: int, clip: str) -> tuple[nn.Module, list[float]]:
    run = join(lanes=lanes)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, loader_of(points()))
    norms = []
    for step in run.steps(loader):
        optimizer.zero_grad()
        for batch in step:
            loss_of(model, batch).backward()
        getattr(run, clip)(model.parameters(), 0.3)
        norms.append(run.grad_norm)
        optimizer.step()
    run.close()
    return model, norms


@pytest.mark.parametrize("lanes", [1, 4, 5])
def test_by_norm(join, lanes: int) -> None:
    expected, norms = plain(net(), clip_grad_norm_)
    model, seen = clipped(join, net(), lanes, "clip_grad_norm_")
    assert_close(model, expected, rtol=1e-3, atol=1e-5)
    assert seen == pytest.approx(norms, rel=1e-3) and min(norms) > 0.3


@pytest.mark.parametrize("lanes", [1, 4])
def test_by_value(join, lanes: int) -> None:
    expected, _ = plain(net(), clip_grad_value_)
    assert_close(clipped(join, net(), lanes, "clip_grad_value_")[0], expected, rtol=1e-3, atol=1e-5)


def test_by_norm_over_several_dtypes(join) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            with torch.random.fork_rng():
                torch.manual_seed(3)
                self.short, self.long = nn.Linear(5, 4), nn.Linear(4, 2, dtype=torch.float64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.long(self.short(x).double()).float()

    expected, _ = plain(Mixed(), clip_grad_norm_)
    assert_close(clipped(join, Mixed(), 4, "clip_grad_norm_")[0], expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("clip", [clip_grad_norm_, clip_grad_value_, nn.utils.clip_grad_norm_])
def test_torchs_own_functions_are_refused_with_several_lanes(join, clip: Any) -> None:
    run, model = join(lanes=2), net()
    model, _, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.1), loader_of(points()))
    with pytest.raises(NotExact, match=r"would clip each lane's gradient by itself.*Call run\.clip_grad_norm_"):
        for step in run.steps(loader):
            for batch in step:
                loss_of(model, batch).backward()
                assert nn.utils.get_total_norm([p.grad for p in model.parameters()]) > 0, "looking is no clipping"
                clip(model.parameters(), 1.0)
    run.close()
    clip(model.parameters(), 1.0)


def test_torchs_own_functions_are_allowed_where_a_unit_is_the_whole_batch(join) -> None:
    run, model = join(lanes=1), net()
    model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.1), loader_of(points()))
    for step in run.steps(loader):
        optimizer.zero_grad()
        for batch in step:
            loss_of(model, batch).backward()
            clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
    assert_close(model, plain(net(), clip_grad_norm_)[0])


@pytest.mark.parametrize("clip", ["clip_grad_norm_", "clip_grad_value_"])
def test_in_a_plain_loop_alone_it_is_done_at_once(join, clip: str) -> None:
    expected, norms = plain(net(), getattr(nn.utils, clip))
    run, model, seen = join(lanes=4), net(), []
    model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.1), loader_of(points()))
    for batch in loader:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        getattr(run, clip)(model.parameters(), 0.3)
        seen.append(run.grad_norm)
        optimizer.step()
    assert_close(model, expected)
    assert seen == pytest.approx(norms, nan_ok=True)


def test_a_part_of_the_parameters_is_refused(join) -> None:
    run, model = join(), net()
    run.prepare(model, optim.SGD(model.parameters(), lr=0.1), loader_of(points()))
    with pytest.raises(NotExact, match=r"clipping was asked for without 2\.weight, 2\.bias. Hand over model\.p"):
        run.clip_grad_norm_(model[0].parameters(), 1.0)
    with pytest.raises(ConfigError, match=r"max_norm = 0: must be above 0 \(set by clip_grad\)"):
        run.clip_grad_norm_(model.parameters(), 0)


def test_units_that_disagree_about_clipping_are_refused() -> None:
    worker, work = Worker(0, 0), work_of(0)
    install([worker], [0] * LANES)
    worker.clip = 1.0
    assert worker.turn(work) == "computed"
    worker.clip = 0.0
    text = r"in step 0 lane 0 asked for clipping to \(norm, value\) = \(1.0, 0.0\) and lane 1 to \(0.0, 0.0\) "
    with pytest.raises(NotExact, match=text):
        for _ in range(LANES):
            worker.turn(work)
