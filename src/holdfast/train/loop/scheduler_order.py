"""In which order a script has made its schedulers, so that every worker has the same order of those that it finds.

A scheduler that was not handed over is found among all objects of the process, whose order is the garbage collector's:
it differs from process to process. So schedulers are numbered as they are made, from before the script's first line in
a worker, and from `join` on elsewhere. Those made before that are told apart by what they are.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

__all__ = ["in_order", "number_schedulers"]

_numbers: weakref.WeakKeyDictionary[LRScheduler, int] = weakref.WeakKeyDictionary()
_count = itertools.count()


def number_schedulers() -> None:
    """Number every scheduler that is made from now on; for the life of the process."""
    if "__new__" in LRScheduler.__dict__:
        return

    # Not in __init__: schedulers of their own kind (ReduceLROnPlateau) do not call that of their base.
    def made(cls: type[LRScheduler], *_: Any, **__: Any) -> LRScheduler:
        scheduler = object.__new__(cls)
        _numbers[scheduler] = next(_count)
        return scheduler

    LRScheduler.__new__ = staticmethod(made)  # type: ignore[method-assign,assignment]


def in_order(schedulers: Iterable[LRScheduler]) -> list[LRScheduler]:
    """As the script has made them."""
    return sorted(schedulers, key=lambda one: (_numbers.get(one, -1), *_described(one)))


def _described(scheduler: LRScheduler) -> tuple[str, str]:
    kind = type(scheduler)
    state = {name: value for name, value in vars(scheduler).items() if isinstance(value, int | float | str | list)}
    return f"{kind.__module__}.{kind.__qualname__}", repr(sorted(state.items()))
