"""What is changed on the user's own objects, and put back when the run closes. All of it is here.

* `optimizer.step` ends the unit instead of applying its gradient; `zero_grad` does the same with less ado;
  `state_dict` shows the state from the arena, and `load_state_dict` is refused once the state is there.
* `scheduler.step` and `state_dict` are in `optimizer_settings`, with what they do.
* `torch.Tensor.backward` also notes the value it was called on: that is the loss that progress shows.
* `torch.nn.utils.clip_grad_norm_` and `clip_grad_value_` would clip each lane by itself, which no single
  machine does; while a run with several lanes is on, they say so and name what to call instead.

The optimizer and the model stay the user's own objects: `isinstance`, schedulers made before or after,
and references held elsewhere go on working.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.utils.clip_grad as clip_grad
from torch import Tensor

from holdfast.errors import NotExact

__all__ = ["LossTap", "refuse_lane_clipping", "take_optimizer"]

Undo = Callable[[], None]


def take_optimizer(
    optimizer: torch.optim.Optimizer,
    end_unit: Callable[[], None],
    own: Callable[[], Callable[..., Any] | None],
    zeroed: Callable[[], None],
    fill_state: Callable[[], None],
    refuse_load: Callable[[], None],
) -> Undo:
    """Make `optimizer.step` end the unit, or do what `own` gives, if that is something. Returns what puts it back."""
    ours = ("step", "zero_grad", "state_dict", "load_state_dict", "_step_supports_amp_scaling")
    before = {name: optimizer.__dict__.get(name) for name in ours}

    def step(self: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """End the unit: its gradient goes to the crew; the parameters move when the step is complete."""
        if (mine := own()) is not None:
            self._opt_called = True  # type: ignore[attr-defined]
            return mine(self, closure)
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        self._opt_called = True  # type: ignore[attr-defined]
        end_unit()
        return value

    def zero_grad(self: torch.optim.Optimizer, set_to_none: bool = True) -> None:
        """As torch does it, without its profiler range: in small models that takes longer than the work."""
        zeroed()
        if not set_to_none:
            type(self).zero_grad(self, set_to_none=False)
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def state_dict(self: torch.optim.Optimizer) -> dict[str, Any]:
        """The optimizer's state, read from the arena."""
        fill_state()
        return type(self).state_dict(self)

    def load_state_dict(self: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
        """As torch does it, before the first loop; refused once the state is the crew's."""
        refuse_load()
        type(self).load_state_dict(self, state_dict)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]  # scalers look at gradients themselves
    optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
    optimizer.zero_grad = types.MethodType(zero_grad, optimizer)  # type: ignore[method-assign]
    optimizer.state_dict = types.MethodType(state_dict, optimizer)  # type: ignore[method-assign]
    optimizer.load_state_dict = types.MethodType(load_state_dict, optimizer)  # type: ignore[method-assign]

    def undo() -> None:
        for name, value in before.items():
            if value is None:
                optimizer.__dict__.pop(name, None)
            else:
                setattr(optimizer, name, value)

    return undo


class LossTap:
    """Notes the scalars on which `backward` is called; their sum within a unit is its loss."""

    def __init__(
        self, guard: Callable[[], Undo | None] = lambda: None, look: Callable[[Tensor], None] = lambda _: None
    ) -> None:
        """`guard` is called before every backward; what it returns is called after it. `look` is shown the loss."""
        self._guard, self._look = guard, look
        self._values: list[Tensor] = []
        self.scale = 1.0  #: by which the unit's loss was multiplied (a gradient scaler)
        self._parts = 0.0  # the loss of the unit's parts that are through
        self._original: Any = None
        self.backwards = 0
        self.muted = False  #: what backward makes is zeros, as the samples are those of others

    def open(self) -> None:
        """Begin to note."""
        original: Callable[..., Any] = Tensor.backward
        self._original = original
        tap = self

        def backward(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            tap._look(self)
            unguard = tap._guard()
            if tap.muted:
                args = (torch.zeros_like(self), *args[1:])
                kwargs.pop("gradient", None)
            elif self.numel() == 1:
                tap._values.append(self.detach())
            tap.backwards += 1
            if unguard is None:
                return original(self, *args, **kwargs)
            try:
                return original(self, *args, **kwargs)
            finally:
                unguard()

        backward.__doc__ = original.__doc__
        Tensor.backward = backward  # type: ignore[method-assign]

    def reset(self) -> None:
        """A unit begins."""
        self._values.clear()
        self._parts, self.scale, self.backwards = 0.0, 1.0, 0

    def end_part(self, weight: float) -> None:
        """A part of the unit is through, which counts so much in its mean."""
        parts = self._parts + weight * self._value()
        self.reset()
        self._parts = parts

    def value(self) -> float:
        """The unit's loss."""
        return self._parts + self._value()

    def _value(self) -> float:
        return float(sum(v.item() for v in self._values)) / self.scale

    def close(self) -> None:
        """Put `backward` back."""
        if self._original is not None:
            Tensor.backward = self._original  # type: ignore[method-assign]
            self._original = None


def refuse_lane_clipping(in_unit: Callable[[], bool]) -> Undo:
    """Make torch's own clipping functions say in a unit what to use instead. Returns what puts them back."""
    module: Any = clip_grad
    norm, group = module._clip_grads_with_norm_, module._group_tensors_by_device_and_dtype

    def refuse() -> None:
        if not in_unit():
            return
        raise NotExact(
            "torch.nn.utils.clip_grad_norm_ would clip each lane's gradient by itself, before they are summed",
            "Call run.clip_grad_norm_(model.parameters(), max_norm) (or run.clip_grad_value_) in its place; in a loop "
            "by steps, call torch's after the loop over the step's units.",
        )

    def scaled(*args: Any, **kwargs: Any) -> Any:
        refuse()
        return norm(*args, **kwargs)

    def grouped(*args: Any, **kwargs: Any) -> Any:
        # Scripts import the functions by name before they join, so what those call is replaced, not they.
        if sys._getframe(1).f_code.co_name == "clip_grad_value_":
            refuse()
        return group(*args, **kwargs)

    module._clip_grads_with_norm_ = scaled
    module._group_tensors_by_device_and_dtype = grouped

    def undo() -> None:
        module._clip_grads_with_norm_ = norm
        module._group_tensors_by_device_and_dtype = group

    return undo
