"""Gradient scalers (`torch.amp.GradScaler`): in a loop by steps, and in the plain loop of a run of one process.

In a loop by steps a scaler decides after the units, on the gradient of the whole batch, which is the same in every
worker: so all decide alike, and it stays torch's own code. What is added:

* a step that it leaves out ends the step all the same, as `step.skip()` does;
* what it holds is kept (`run.keep`), so that a worker that comes late goes on with it. For that it must be known when
  training begins, so scalers are noted as they are made;
* a worker without lanes has called `scale` for no loss: its scaler is made ready where it is asked for;
* units and sums may be infinite: it looks at them;
* the loss that is told is the one before it was scaled.

In a plain loop `.grad` is that of a worker's share, and each scaler would decide by itself: so it is refused in a crew.
Alone, the share is the whole batch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.amp.grad_scaler import GradScaler

from holdfast.dataplane.reduce.several_optimizers import each
from holdfast.errors import NotExact
from holdfast.train.loop.plain.alone import AloneTurns

if TYPE_CHECKING:
    from holdfast.train.training import Training

__all__ = ["Scalers"]


class Scalers:
    """The gradient scalers of one process. `training` gives what the script has prepared, if it has."""

    def __init__(self, training: Callable[[], Training | None]) -> None:
        self._training = training
        self._made: list[weakref.ref[GradScaler]] = []

    def made(self) -> list[Any]:
        """Those that are there, in the order in which they were made, and in use."""
        return [scaler for one in self._made if (scaler := one()) is not None and scaler.is_enabled()]

    def watch(self) -> Callable[[], None]:
        """Look at what scalers do from now on. Returns what ends it."""
        kind: Any = GradScaler
        ours = {
            "__init__": self._init(kind.__init__), "scale": self._scale(kind.scale),
            "_check_scale_growth_tracker": self._ready(kind._check_scale_growth_tracker),
            "_maybe_opt_step": self._step(kind._maybe_opt_step),
        }  # fmt: skip
        before = {name: getattr(kind, name) for name in ours}
        for name, function in ours.items():
            setattr(kind, name, function)

        def undo() -> None:
            for name, function in before.items():
                setattr(kind, name, function)

        return undo

    def _init(self, original: Callable[..., None]) -> Callable[..., None]:
        def __init__(scaler: GradScaler, *args: Any, **kwargs: Any) -> None:
            original(scaler, *args, **kwargs)
            self._made.append(weakref.ref(scaler))

        return __init__

    def _scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scale(scaler: GradScaler, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            training = self._training()
            if not scaler.is_enabled() or training is None or not training.begun:
                return scaled
            if training.turns.in_units and not training.turns.keeping.holds(scaler):
                raise NotExact(
                    "a GradScaler is used that was made before hf.join(), or after training had begun, so a worker "
                    "that comes late would have another one",
                    "Make it between them, or hand it to run.keep(scaler) before the first loop.",
                )
            if training.in_plain_loop and training.steered is not None:
                raise NotExact(
                    f"a GradScaler is used in a plain loop, at step {training.step}, where each worker has the "
                    "gradient of its own share, so one would leave out a step that others make",
                    "Use the loop by steps, `for step in run.steps(loader)`, where it decides on the gradient of the "
                    "whole batch; or bfloat16, which needs no scaler: GradScaler(enabled=False).",
                )
            training.tap.scale = scaler.get_scale()
            return scaled

        return scale

    def _ready(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _check_scale_growth_tracker(scaler: Any, name: str) -> Any:
            training = self._training()
            if scaler._scale is None and training is not None and training.turns.keeping.holds(scaler):
                scaler._lazy_init_scale_growth_tracker(torch.device("cpu"))
            return original(scaler, name)

        return _check_scale_growth_tracker

    def _step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def _maybe_opt_step(
            scaler: GradScaler, optimizer: torch.optim.Optimizer, state: dict[str, Any], *args: Any, **kwargs: Any
        ) -> Any:
            value = original(scaler, optimizer, state, *args, **kwargs)
            training = self._training()
            several = each(training.optimizer) if training is not None else []
            if optimizer not in several or not any(found.item() for found in state["found_inf_per_device"].values()):
                return value
            assert training is not None
            if training.turns.turn is not None:
                training.turns.turn.end("scaler.step()", several.index(optimizer), drop=True)
            elif isinstance(training.shares, AloneTurns) and not training.shares.between:
                training.shares.drop()
            return value

        return _maybe_opt_step
