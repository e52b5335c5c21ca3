"""Losses that are sums: the gradient of a step is the sum over its batch; what is asked for and what is seen agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from holdfast.config.worker_spec import WorkerSpec
from holdfast.errors import ConfigError, NotExact
from holdfast.train import run as runs
from holdfast.train.loss_reduction import kind_of
from tests.unit.train.problems import assert_close, batches_of, loader_of, net, points

Loss = Callable[[Tensor, Tensor], Tensor]


def summed(prediction: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(prediction, target, reduction="sum")


def train(run: Any, loss: Loss, batch: int = 12) -> tuple[nn.Module, list[float]]:
    model, losses = net(), []
    model, optimizer, loader = run.prepare(model, optim.SGD(model.parameters(), lr=0.002), loader_of(points(), batch))
    for step in run.steps(loader):
        for x, y in step:
            loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(step.loss)
    return model, losses


@pytest.mark.parametrize(("lanes", "batch"), [(1, 12), (4, 12), (5, 12), (4, 20)])
def test_the_gradient_is_the_sum_over_the_batch(join, lanes: int, batch: int) -> None:
    """Lanes of one size or several (5 lanes), and a last batch of 8."""
    run = join(lanes=lanes, reduction="sum")
    model, losses = train(run, summed, batch)
    other, theirs = net(), []
    optimizer = optim.SGD(other.parameters(), lr=0.002)
    for x, y in batches_of(points(), batch, epochs=1):
        loss = summed(other(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        theirs.append(loss.item())
    assert_close(model, other)
    assert losses == pytest.approx(theirs, rel=1e-5), "step.loss is that of the batch on one machine"
    assert run.loss == losses[-1] and run.result()["reduction"] == "sum"


SUMS: dict[str, Loss] = {
    "mse": summed,
    "cross entropy": lambda p, y: F.cross_entropy(p, y.argmax(1), reduction="sum"),
    "of samples": lambda p, y: F.cross_entropy(p, y.argmax(1), reduction="none").sum(),
    "along dimensions": lambda p, y: ((p - y) ** 2).sum(1).sum(0),
    "half": lambda p, y: 0.5 * ((p - y) ** 2).sum(),
    "negative": lambda p, y: -((p - y) ** 2).sum(),
    "several": lambda p, y: summed(p, y) + 2.0 * (p**2).sum() - (p - y).abs().sum(),
    "over the batch's size": lambda p, y: ((p - y) ** 2).sum() / 30,
    "a mean times its samples": lambda p, y: F.mse_loss(p, y) * p.numel(),
    "scaled": lambda p, y: summed(p, y) * torch.tensor(65536.0),
}
MEANS: dict[str, Loss] = {
    "mse": F.mse_loss,
    "cross entropy": lambda p, y: F.cross_entropy(p, y.argmax(1)),
    "of samples": lambda p, y: ((p - y) ** 2).sum(1).mean(),
    "by hand": lambda p, y: ((p - y) ** 2).sum() / len(p),
    "by hand, of all": lambda p, y: ((p - y) ** 2).sum() * (1.0 / p.numel()),
    "batchmean": lambda p, y: F.kl_div(p.log_softmax(1), y.softmax(1), reduction="batchmean"),
    "weighed": lambda p, y: 0.3 * F.mse_loss(p, y) + 2.0 * F.l1_loss(p, y),
}
UNKNOWN: dict[str, Loss] = {
    "a mean and a penalty": lambda p, y: F.mse_loss(p, y) + 1e-4 * (p**2).sum(),
    "a sum of means": lambda p, y: ((p - y) ** 2).mean(0).sum(),
    "a stack of means": lambda p, y: torch.stack([F.mse_loss(p, y), F.l1_loss(p, y)] * 2).sum(),
    "by tokens": lambda p, y: ((p - y) ** 2).sum() / (p > 0).sum().clamp(min=5),
    "by weights": lambda p, y: (((p - y) ** 2).mean(1) * y[:, 0].abs()).sum() / p.sum(),
    "smoothed": lambda p, y: F.cross_entropy(p, y.argmax(1), label_smoothing=0.1).exp(),
    "made otherwise": lambda p, y: torch.linalg.vector_norm(p - y),
}


KINDS = {"sum": SUMS, "mean": MEANS, "": UNKNOWN}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, losses in KINDS.items() for name in losses])
def test_what_a_loss_is(kind: str, name: str) -> None:
    loss = KINDS[kind][name]
    source = torch.Generator().manual_seed(1)
    prediction, target = (torch.randn(3, 4, generator=source) for _ in range(2))
    assert kind_of(loss(prediction.requires_grad_() * 2.0, target), 3, 30)[0] == kind


def test_a_sum_is_named_where_gradients_are_averaged(join) -> None:
    text = (
        r"the loss of unit \(step 0, lane 0\) is a sum over its samples \(MseLossBackward0\), and the gradient of a "
        r"step is the mean of its lanes' gradients\. Use hf\.join\(reduction=\"sum\"\), with which they are added up; "
        r"or make the loss a mean\. If it is one, say so: hf\.join\(reduction=\"mean\"\)\.$"
    )
    with pytest.raises(NotExact, match=text):
        train(join(lanes=4), summed)


def test_a_mean_is_named_where_gradients_are_added_up(join) -> None:
    text = (
        r"the loss of unit \(step 0, lane 0\) is a mean over its samples \(MseLossBackward0\), and with reduction = "
        r'"sum" the gradients of lanes are added up\. Leave `reduction` out of hf\.join\(\), or make the loss a sum\.$'
    )
    with pytest.raises(NotExact, match=text):
        train(join(lanes=4, reduction="sum"), F.mse_loss)


def test_what_the_script_says_is_believed_and_one_lane_is_a_whole_batch(join) -> None:
    run = join(lanes=4, reduction="mean")
    train(run, summed)
    run.close()
    train(join(lanes=1), summed)


def test_bad_values(join, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r'^reduction = max: must be "mean" or "sum" \(set by hf\.join\)\.$'):
        join(reduction="max")
    spec = WorkerSpec(0, 0, "script.py", (), "", sync="bounded:2")
    monkeypatch.setattr(runs, "_enlisted", (spec, None))
    text = r"^reduction = sum: with sync = bounded:2 a push counts by its samples, which only a mean can \(set by hf"
    with pytest.raises(ConfigError, match=text):
        join(reduction="sum")
