"""`hf.fit`: the short road for those without a loop. Built on `prepare` and on nothing private."""

from __future__ import annotations

import difflib
import operator
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader

from holdfast.errors import ConfigError
from holdfast.quantities import Duration
from holdfast.train.run import Run, join

__all__ = ["Epoch", "Fitted", "fit"]

Metric = Callable[[torch.Tensor, torch.Tensor], torch.Tensor | float]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_COMPARE = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one epoch gave. `metrics` are those of the evaluation data, empty without any."""

    epoch: int
    step: int
    loss: float
    metrics: Mapping[str, float]
    seconds: float


@dataclass(slots=True)
class Fitted:
    """What `fit` returns."""

    run: Run
    model: nn.Module
    reason: str = "all epochs are done"
    epochs: list[Epoch] = field(default_factory=list)

    @property
    def metrics(self) -> Mapping[str, float]:
        """The newest evaluation."""
        return self.epochs[-1].metrics if self.epochs else {}


def accuracy(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The share of rows whose largest score is at the target."""
    return (prediction.argmax(dim=-1) == target).float().mean()


_METRICS: dict[str, Metric] = {"accuracy": accuracy}


class Options(TypedDict, total=False):
    """What `fit` can do besides training; all of it by keyword."""

    evaluate: DataLoader[Any]  #: evaluated on after each epoch
    metrics: Sequence[str] | Mapping[str, Metric]  #: names ("accuracy") or functions of (prediction, target)
    until: str  #: "accuracy >= 0.9": stop when an evaluation says so
    time_limit: str | float | Duration  #: (a number: seconds) stop after the epoch in which this is over
    clip_norm: float  #: clip the gradient to this norm
    schedulers: Sequence[Any]  #: LR schedulers, stepped after each epoch
    callbacks: Sequence[Callable[[Epoch], None]]  #: called after each epoch, in every worker
    run: Run  #: use this one instead of joining


def fit(
    model: nn.Module,
    data: DataLoader[Any],
    *,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    epochs: int = 1,
    **options: Unpack[Options],
) -> Fitted:
    """Train `model` on `data` for some epochs, or until `options` say that it is enough.

    >>> fitted = fit(model, data, loss=F.cross_entropy, optimizer=optimizer, epochs=3,   # doctest: +SKIP
    ...              evaluate=test, metrics=["accuracy"], until="accuracy >= 0.9", time_limit="10m")

    Args:
        data: a DataLoader of (input, target) pairs; its batch is the global batch.
        loss: `loss(model(input), target)`, a mean over the batch.
        epochs: at most so many.
        options: see `Options`.

    Raises:
        ConfigError: an unknown option, or `until` names a metric that is not measured.
    """
    _check(options)
    evaluation, until = options.get("evaluate"), options.get("until", "")
    measured = _measured(options.get("metrics", ()))
    goal = _goal(until, measured, evaluation)
    limit = options.get("time_limit")
    if limit is not None and not isinstance(limit, Duration):
        limit = Duration(limit)
    schedulers = options.get("schedulers", ())
    if evaluation is None and any(isinstance(scheduler, ReduceLROnPlateau) for scheduler in schedulers):
        raise ConfigError(
            "schedulers", "ReduceLROnPlateau", "needs the loss of an evaluation", source="fit",
            fix="Give evaluate=a DataLoader, or use another scheduler.",
        )  # fmt: skip
    run = options.get("run") or join()
    model, optimizer, loader, *_ = run.prepare(model, optimizer, data, *schedulers)
    fitted, started = Fitted(run, model), time.monotonic()
    train = _train_by_steps if run.mode.exact else _train_by_units
    for epoch in run.epochs(epochs):
        begun = time.monotonic()
        model.train()
        train(run, model, loss, optimizer, loader, options.get("clip_norm", 0.0))
        results = _evaluate(run, model, loss, measured, evaluation) if evaluation is not None else {}
        for scheduler in schedulers:
            scheduler.step(results["loss"]) if isinstance(scheduler, ReduceLROnPlateau) else scheduler.step()
        done = Epoch(epoch, run.step, run.loss, results, time.monotonic() - begun)
        fitted.epochs.append(done)
        for callback in options.get("callbacks", ()):
            callback(done)
        if goal is not None and goal(results):
            fitted.reason = f"{until} is reached ({results[_name(until)]:.4g})"
            break
        # Clocks differ between workers; one of them decides for all whether time is up.
        if limit is not None and run.agree(time.monotonic() - started) >= limit.seconds:
            fitted.reason = f"the time limit of {limit} is over"
            break
        if run.stopping:
            fitted.reason = "the run was asked to stop"
            break
    return fitted


def _train_by_steps(
    run: Run, model: nn.Module, loss: Loss, optimizer: torch.optim.Optimizer, loader: Any, clip_norm: float
) -> None:
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for step in run.steps(loader):
        for inputs, targets in step:
            loss(model(inputs), targets).backward()
        if clip_norm:  # torch's own, on the whole batch's gradient; `run.grad_norm` has the norm
            run.clip_grad_norm_(trained, clip_norm)
        optimizer.step()
        optimizer.zero_grad()


def _train_by_units(
    run: Run, model: nn.Module, loss: Loss, optimizer: torch.optim.Optimizer, loader: Any, clip_norm: float
) -> None:
    """In relaxed modes, where lanes are at different steps and no worker has a whole batch's gradient."""
    for inputs, targets in loader:
        loss(model(inputs), targets).backward()
        if clip_norm:
            run.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
        optimizer.zero_grad()


def _check(options: Options) -> None:
    known = Options.__annotations__
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise ConfigError(
                name, options[name], "no option of fit", source="fit",  # type: ignore[literal-required]
                fix=f"Did you mean {near[0]}?" if near else f"There are {', '.join(known)}.",
            )  # fmt: skip


def _measured(metrics: Sequence[str] | Mapping[str, Metric]) -> dict[str, Metric]:
    if isinstance(metrics, Mapping):
        return dict(metrics)
    for name in metrics:
        if name not in _METRICS:
            raise ConfigError(
                "metrics", name, f"not one of {', '.join(_METRICS)}", source="fit",
                fix='Give a function instead: metrics={"name": lambda prediction, target: ...}.',
            )  # fmt: skip
    return {name: _METRICS[name] for name in metrics}


def _name(until: str) -> str:
    return re.split(r"[<>]", until)[0].strip()


def _goal(
    until: str, measured: Mapping[str, Metric], evaluate: DataLoader[Any] | None
) -> Callable[[Mapping[str, float]], bool] | None:
    if not until:
        return None
    match = re.fullmatch(r"\s*(\w+)\s*(>=|<=|>|<)\s*([-+.\deE]+)\s*", until)
    if match is None:
        raise ConfigError("until", repr(until), "not of the form 'metric >= number'", source="fit")
    name, compare, number = match.groups()
    if name not in (*measured, "loss") or evaluate is None:
        have = ", ".join((*measured, "loss")) if evaluate is not None else "nothing, because evaluate is missing"
        raise ConfigError("until", repr(until), f"names {name!r}; measured is {have}", source="fit")
    bound = float(number)
    return lambda results: bool(_COMPARE[compare](results[name], bound))


def _evaluate(
    run: Run, model: nn.Module, loss: Loss, measured: Mapping[str, Metric], data: DataLoader[Any]
) -> dict[str, float]:
    model.eval()

    def measure(inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor | float]:
        prediction = model(inputs)
        return {"loss": loss(prediction, targets), **{name: m(prediction, targets) for name, m in measured.items()}}

    return run.evaluate(measure, data)
