"""The gradient of a phase that is over, in a worker that came late: it is not there any more.

Such a worker runs the code of the earlier phases of its first turn, for the sake of what else that code does; what it
keeps and its settings are put right when its own phase begins. So whatever that code does to the gradient is let be.
But what comes of it must not get into the gradient of a later phase, as it does where a script sets one aside: this
worker alone would make another step. Hence what is computed from it is marked, too, and refused there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from holdfast.errors import NotKept

__all__ = ["GoneGradient", "check_none_is_gone", "show_as_gone"]


class GoneGradient(Tensor):
    """A tensor whose values say nothing, or one that was computed from such."""

    #: Where they must not get: the parameters' gradients, with their names, and the step.
    _guarded: tuple[Sequence[nn.Parameter], Sequence[str], int] = ((), (), -1)

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """As for any tensor; what is written to is marked."""
        result = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        written = [*_written(func, args), *_listed((kwargs or {}).get("out"))]
        for tensor in written:
            if type(tensor) is Tensor:
                parameters, names, step = GoneGradient._guarded
                for parameter, name in zip(parameters, names, strict=True):
                    if parameter.grad is tensor:
                        raise NotKept.gradient(name, step)
                tensor.__class__ = cls
        return result


def show_as_gone(parameters: Sequence[nn.Parameter], names: Sequence[str], step: int) -> None:
    """Mark the gradients that are shown, in this step."""
    GoneGradient._guarded = parameters, names, step
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad = parameter.grad.detach().as_subclass(GoneGradient)


def check_none_is_gone(parameters: Sequence[nn.Parameter], names: Sequence[str], step: int) -> None:
    """Raise NotKept where a gradient that is to be used comes from one that is gone."""
    for parameter, name in zip(parameters, names, strict=True):
        if isinstance(parameter.grad, GoneGradient):
            raise NotKept.gradient(name, step)


def _written(func: Callable[..., Any], args: Any) -> list[Any]:
    """What a function writes to: torch's in-place functions say so in their names."""
    name = getattr(func, "__name__", "")
    in_place = (name.endswith("_") and not name.endswith("__")) or (name.startswith("__i") and name.endswith("__"))
    return _listed(args[0]) if in_place and args else []


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
