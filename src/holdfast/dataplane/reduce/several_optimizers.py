"""Several optimizers of a script as one: their parameter groups in a row, numbered through.

Slices, settings and state know groups only. What has to be asked of an optimizer itself (its class, its own attributes,
the state of a parameter) is asked of the `owner` of a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["SeveralOptimizers", "each", "groups_of", "owner", "together"]

Optimizer = torch.optim.Optimizer


class SeveralOptimizers(Optimizer):
    """Shows the groups of several optimizers. It has no state and makes no step of its own."""

    def __init__(self, several: Sequence[Optimizer]) -> None:
        self.several = tuple(several)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Those of all, as they are now."""
        return [group for one in self.several for group in one.param_groups]

    def __setattr__(self, name: str, value: Any) -> None:
        """What torch's schedulers look for on an optimizer is said of each."""
        if name == "_opt_called":
            for one in self.several:
                setattr(one, name, value)
        else:
            object.__setattr__(self, name, value)


def together(optimizers: Sequence[Optimizer]) -> Optimizer:
    """One as it is; several as one."""
    return optimizers[0] if len(optimizers) == 1 else SeveralOptimizers(optimizers)


def each(optimizer: Optimizer) -> tuple[Optimizer, ...]:
    """The script's own optimizers."""
    return optimizer.several if isinstance(optimizer, SeveralOptimizers) else (optimizer,)


def owner(optimizer: Optimizer, group: int) -> tuple[Optimizer, int]:
    """Whose group this is, and which of its own.

    >>> first, second = (torch.optim.SGD([torch.zeros(1)]) for _ in range(2))
    >>> owner(together([first, second]), 1) == (second, 0)
    True
    """
    for one in each(optimizer):
        if group < len(one.param_groups):
            return one, group
        group -= len(one.param_groups)
    raise IndexError(group)


def groups_of(optimizer: Optimizer, number: int) -> range:
    """The groups of one of several optimizers, as they are numbered through."""
    counts = [len(one.param_groups) for one in each(optimizer)]
    return range(sum(counts[:number]), sum(counts[: number + 1]))
