"""Calls of a module: which tensors go in by which names, what else goes in, and what the outputs are called."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from torch import Tensor, nn

from holdfast.errors import NotExportable

__all__ = ["Argument", "Call", "call_of", "outputs_of"]

_PLAIN = (bool, int, float, str, type(None))


class Argument(msgspec.Struct, frozen=True, omit_defaults=True):
    """One argument: an `input` of the model, or a `value` that is always the same; by `keyword`, or by its place."""

    input: str = ""
    value: bool | int | float | str | None = None
    keyword: str = ""


class Call(msgspec.Struct, frozen=True):
    """How `forward` is called."""

    arguments: tuple[Argument, ...]

    @property
    def inputs(self) -> list[str]:
        """Names of what goes in."""
        return [argument.input for argument in self.arguments if argument.input]

    def apply(self, module: nn.Module, tensors: Mapping[str, Tensor]) -> Any:
        """Call it."""
        args, kwargs = [], {}
        for argument in self.arguments:
            value = tensors[argument.input] if argument.input else argument.value
            if argument.keyword:
                kwargs[argument.keyword] = value
            else:
                args.append(value)
        return module(*args, **kwargs)


def call_of(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> tuple[Call, dict[str, Tensor]]:
    """How a module was called, and the tensors that it was called with by their names in `forward`.

    Raises NotExportable where an argument is neither a tensor nor a plain value.
    """
    names = _positional(module, len(args))
    arguments, tensors = [], {}
    for name, value, keyword in (
        *((name, value, "") for name, value in zip(names, args, strict=True)),
        *((name, value, name) for name, value in (kwargs or {}).items()),
    ):
        if isinstance(value, Tensor):
            tensors[name] = value
            arguments.append(Argument(input=name, keyword=keyword))
        elif isinstance(value, _PLAIN):
            arguments.append(Argument(value=value, keyword=keyword))
        else:
            raise NotExportable(
                type(module).__name__, f"its argument {name} is a {type(value).__name__}, and a request has tensors",
                "Put a module around it whose forward takes tensors, each by a name, and export that.",
            )  # fmt: skip
    if not tensors:
        raise NotExportable(
            type(module).__name__, "it was called without a tensor", "Give an example of what goes in."
        )
    return Call(tuple(arguments)), tensors


def outputs_of(value: Any, name: str = "") -> dict[str, Tensor]:
    """All tensors in what a module has returned, by name: their keys or fields, else `output`, or `output_0`, ...

    >>> x = Tensor([1.0])
    >>> list(outputs_of(x)), list(outputs_of((x, {"z": x})))
    (['output'], ['output_0', 'output_1_z'])
    """
    if isinstance(value, Tensor):
        return {name or "output": value}
    if isinstance(value, Mapping):
        parts = {str(key): item for key, item in value.items()}
        prefix = f"{name}_" if name else ""
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        parts, prefix = dict(zip(value._fields, value, strict=True)), f"{name}_" if name else ""
    elif isinstance(value, (tuple, list)):
        if len(value) == 1 and not name:
            return outputs_of(value[0], name)
        parts, prefix = {str(at): item for at, item in enumerate(value)}, f"{name or 'output'}_"
    elif value is None:
        return {}
    else:
        raise NotExportable(
            "The model", f"it returns a {type(value).__name__} and answers are tensors",
            "Let forward return a tensor, or a tuple or dict of tensors.",
        )  # fmt: skip
    found: dict[str, Tensor] = {}
    for part, item in parts.items():
        found |= outputs_of(item, prefix + part)
    return found


def _positional(module: nn.Module, count: int) -> list[str]:
    """What `forward` calls its first arguments."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        names = [name for name, one in inspect.signature(module.forward).parameters.items() if one.kind in kinds]
    except (TypeError, ValueError):
        names = []
    return [names[at] if at < len(names) else f"input_{at}" for at in range(count)]
