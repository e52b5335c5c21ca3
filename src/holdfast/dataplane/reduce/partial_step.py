"""A part of a step: the learning rate scaled by it, and whether an optimizer then moves that part of the way.

An optimizer takes half a step when, with half its `lr`, it moves half as far. That is not declared anywhere, so it is
probed, as in `schema`: on a few numbers, fresh and after some steps. Of `torch.optim`, Rprop reads `lr` only when it
makes its state, and ASGD moves by the `lr` of the step before: neither can. Nor can one without `lr`, or whose weight
decay does not hang on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from holdfast.dataplane.reduce.schema import clone, initial_state
from holdfast.dataplane.reduce.several_optimizers import owner

__all__ = ["scaled", "wholly"]

#: The rate that is tried, whatever the script's is, which may be 0 while it warms up. Small, as most are.
_LR = 2.0**-10
#: By how much of the longest way half of it may be missed: of a way that is not quite straight in `lr`.
_NEAR = 0.01
_WARM = 3  # steps


def scaled(groups: Sequence[dict[str, Any]], part: float) -> list[dict[str, Any]]:
    """The settings of each group for a part of a step."""
    return [group if part == 1.0 else {**group, "lr": group["lr"] * part} for group in groups]


def wholly(optimizer: torch.optim.Optimizer) -> str:
    """Why this optimizer takes whole steps only; empty where it takes parts."""
    tried: set[str] = set()
    for number, group in enumerate(optimizer.param_groups):
        name = type(owner(optimizer, number)[0]).__name__
        which = f" (group {number})" if len(optimizer.param_groups) > 1 else ""
        if "lr" not in group:
            return f"{name} has no lr{which}"
        options = name + repr(sorted((key, value) for key, value in group.items() if key not in _ALIKE))
        if options in tried:  # there may be one for each layer
            continue
        tried.add(options)
        try:
            halved = all(_halved(optimizer, number, warm) for warm in (0, _WARM))
        except Exception as error:
            return f"{name} cannot be tried on a few numbers{which} ({type(error).__name__}: {str(error)[:120]})"
        if not halved:
            return f"{name} does not move half as far with half its lr{which}"
    return ""


#: What says nothing about how an optimizer moves.
_ALIKE = ("params", "param_names", "lr", "initial_lr")


def _halved(optimizer: torch.optim.Optimizer, group: int, warm: int) -> bool:
    """Does it move half as far with half the rate, after so many steps with all of it?"""
    whole, half = (_moved(optimizer, group, warm, last) for last in (_LR, _LR / 2))
    return bool(((half - whole / 2).abs() <= _NEAR / 2 * whole.abs().max()).all())


def _moved(optimizer: torch.optim.Optimizer, group: int, warm: int, last: float) -> Tensor:
    """How far the last step goes, which is made with this rate."""
    source = torch.Generator().manual_seed(0)
    parameter = torch.randn(6, 7, generator=source, dtype=torch.float64)  # so exact that rounding is no matter
    twin = clone(optimizer, group, [parameter])
    initial_state(optimizer, group, twin, parameter)
    before = parameter.clone()
    for rate in (*[_LR] * warm, last):
        before.copy_(parameter)
        parameter.grad = torch.randn(6, 7, generator=source, dtype=torch.float64)
        lr = twin.param_groups[0]["lr"]
        twin.param_groups[0]["lr"] = torch.full_like(lr, rate) if isinstance(lr, Tensor) else rate
        type(twin).step(twin)
    return parameter - before
