"""Optimizers that were not handed to `run.prepare` and are stepped in a loop over a prepared loader: refused.

Each worker would step such a one by itself, on the gradients of its own units. torch calls a hook before any
optimizer's step; ours do not count, which run on slices of the prepared one's parameters.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from holdfast.errors import NotExact

__all__ = ["refuse_stray_optimizers"]

_OURS, _TORCH = (str(path) + os.sep for path in (Path(__file__).parents[1], Path(torch.__file__).parent))


def refuse_stray_optimizers(where: Callable[[], str]) -> Callable[[], None]:
    """Refuse them from now on. `where` says in which step the script is; nothing: in no loop. Returns what ends it."""

    def look(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        caller: FrameType | None = sys._getframe(1)
        while caller is not None and (
            caller.f_code.co_filename.startswith(_TORCH) or caller.f_locals.get("self") is optimizer
        ):  # past its own methods: a class of the script's may call the step of the one that it extends
            caller = caller.f_back
        if caller is None or caller.f_code.co_filename.startswith(_OURS) or not (place := where()):
            return
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        raise NotExact(
            f"{_named(optimizer, caller)} over {count} parameter{'s' * (count != 1)} was stepped in {place} and was "
            "not handed to run.prepare(...), so each worker would step it by itself",
            "Put its parameters into groups of the prepared optimizer, and their modules into run.prepare(...).",
        )

    return register_optimizer_step_pre_hook(look).remove


def _named(optimizer: torch.optim.Optimizer, caller: FrameType) -> str:
    """What the script calls it, if one can see that from where it is stepped."""
    kind = type(optimizer).__name__
    names = [name for name, value in {**caller.f_globals, **caller.f_locals}.items() if value is optimizer]
    return f"the optimizer {names[0]} ({kind})" if names else f"an optimizer ({kind})"
