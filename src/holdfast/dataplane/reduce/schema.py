"""What an optimizer keeps per parameter, found by trying it on a few numbers.

An optimizer can be cut into slices when it is *elementwise*: the new value of each element follows
from that element's own gradient and state. That is not declared anywhere, so it is probed: the
optimizer is run on a small matrix as a whole and again cut into two flat pieces; only when both give
the same numbers is it accepted. So the optimizers of `torch.optim` and a stranger's are treated alike.

The probe also shows the names and kinds of the optimizer's state, from which the arena is laid out.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.dataplane.reduce.several_optimizers import each, owner
from holdfast.errors import NotExact

__all__ = ["Schema", "Schemas", "clone", "initial_state", "optimizer_parts", "pin", "probe"]

_SUPPORTED = (
    "Use an elementwise optimizer: SGD, Adam, AdamW, RMSprop, Adagrad, Adadelta, Adamax, NAdam, RAdam, Rprop or ASGD."
)


@dataclass(frozen=True, slots=True)
class Schema:
    """The state of one parameter group's optimizer: name -> dtype."""

    tensors: dict[str, torch.dtype]  #: as long as the parameter
    scalars: dict[str, torch.dtype]  #: one number per piece, held as a 0-dim tensor
    numbers: dict[str, type]  #: one plain Python number per piece
    rebinds: bool  #: a step may put new tensors in place of the old ones, which must be copied back


Schemas = dict[tuple[int, str], Schema]  #: by group and dtype


def optimizer_parts(optimizer: torch.optim.Optimizer, schemas: Schemas) -> list[tuple[str, str]]:
    """What two workers must agree on (see `fitness`): the class, and each group's options and state."""
    told = (f"{type(one).__name__} with {_counted(len(one.param_groups))}" for one in each(optimizer))
    parts = [("optimizer", ", ".join(told))]
    for number, group in enumerate(optimizer.param_groups):
        parts.append((f"optimizer options of group {number}", ", ".join(sorted(k for k in group if k != "params"))))
    for (number, dtype), schema in schemas.items():
        kept = ", ".join(sorted([*schema.tensors, *schema.scalars, *schema.numbers])) or "nothing"
        parts.append((f"optimizer state of group {number}, {dtype}", kept))
    return parts


def _counted(groups: int) -> str:
    return f"{groups} group{'s' * (groups != 1)}"


def pin(optimizer: torch.optim.Optimizer) -> None:
    """Choose one implementation, because loop, foreach and fused differ in their last bits.

    What the user chose stays. Where nothing was chosen: fused where the class has it, else foreach. In half
    precision never fused: torch's fused SGD for the CPU gives wrong numbers there (seen in 2.13).
    """
    options = inspect.signature(type(optimizer).__init__).parameters
    for group in optimizer.param_groups:
        if group.get("fused") or group.get("foreach") or group.get("differentiable") or group.get("capturable"):
            continue
        wide = all(parameter.element_size() >= 4 for parameter in group["params"])
        if wide and group.get("fused") is None and "fused" in options and group.get("foreach") is None:
            group["fused"] = True
        elif group.get("foreach") is None and "foreach" in options:
            group["foreach"] = True


def clone(optimizer: torch.optim.Optimizer, group: int, parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
    """The same optimizer over other tensors, with empty state."""
    optimizer, group = owner(optimizer, group)
    twin = type(optimizer).__new__(type(optimizer))
    ours = ("step", "zero_grad", "state_dict", "load_state_dict")
    twin.__dict__.update({k: v for k, v in optimizer.__dict__.items() if k not in ours})
    twin.param_groups = [{**optimizer.param_groups[group], "params": list(parameters)}]
    twin.state = defaultdict(dict)
    return twin


def probe(optimizer: torch.optim.Optimizer, group: int, dtype: torch.dtype) -> Schema:
    """Try the optimizer on a few numbers. Raises NotExact when it cannot be cut into slices."""
    optimizer, group = owner(optimizer, group)
    name = type(optimizer).__name__
    for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        if getattr(optimizer, hooks, None):
            raise NotExact(f"{name} has step hooks, which would run on slices instead of steps", "Remove the hooks.")
    source = torch.Generator().manual_seed(0)
    # Numbers are compared in single precision or better: in bfloat16 the end of a vector loop rounds otherwise
    # than its middle. (Where slices end depends on the model alone, so that harms nothing later.)
    for precision in dict.fromkeys((torch.promote_types(dtype, torch.float32), dtype)):
        whole = torch.randn(6, 7, generator=source).to(precision)
        pieces = [whole.flatten()[:20].clone(), whole.flatten()[20:].clone()]
        try:
            as_one, rebinds = _try(optimizer, group, [whole], source.clone_state())
            as_two, _ = _try(optimizer, group, pieces, source.clone_state())
        except NotExact:
            raise
        except Exception as error:
            raise NotExact(
                f"{name} cannot run on a slice of a parameter ({type(error).__name__}: {str(error)[:120]})", _SUPPORTED
            ) from error
        rtol, atol = (1e-4, 1e-6) if precision.itemsize >= 4 else (0.05, 0.01)
        if not torch.allclose(whole.flatten(), torch.cat(pieces), rtol=rtol, atol=atol):
            raise NotExact(f"{name} mixes the elements of a parameter, so it gives other numbers on slices", _SUPPORTED)
    tensors: dict[str, torch.dtype] = {}
    scalars: dict[str, torch.dtype] = {}
    numbers: dict[str, type] = {}
    for key, value in as_one[0].items():
        if isinstance(value, Tensor) and value.shape == whole.shape:
            tensors[key] = value.dtype
        elif isinstance(value, Tensor) and value.dim() == 0:
            scalars[key] = value.dtype
        elif isinstance(value, bool | int | float):
            numbers[key] = type(value)
        elif value is not None:
            kind = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise NotExact(f"{name} keeps {key!r} as {kind} for a parameter of shape (6, 7)", _SUPPORTED)
    if {k for k, v in as_two[0].items() if v is not None} != {*tensors, *scalars, *numbers}:
        raise NotExact(f"{name} keeps other state for a slice than for a whole parameter", _SUPPORTED)
    return Schema(tensors, scalars, numbers, rebinds)


def _try(
    optimizer: torch.optim.Optimizer, group: int, parameters: list[Tensor], source: torch.Generator
) -> tuple[list[dict[str, Any]], bool]:
    """(state of each parameter after three steps, whether a step put new tensors in place of old ones)."""
    twin = clone(optimizer, group, parameters)
    places, outside = [p.data_ptr() for p in parameters], _outside(twin)
    state_places: set[int] = set()
    rebinds = False
    total = sum(p.numel() for p in parameters)
    for parameter in parameters:
        initial_state(optimizer, group, twin, parameter)
    for turn in range(3):
        gradient = torch.randn(total, generator=source).to(parameters[0].dtype)
        start = 0
        for parameter in parameters:
            parameter.grad = gradient[start : start + parameter.numel()].view(parameter.shape)
            start += parameter.numel()
        type(twin).step(twin)
        held = {v.data_ptr() for p in parameters for v in twin.state[p].values() if isinstance(v, Tensor)}
        rebinds = rebinds or (turn > 0 and held != state_places)
        state_places = held
    name = type(optimizer).__name__
    if [p.data_ptr() for p in parameters] != places:
        raise NotExact(f"{name} puts new memory in place of a parameter's, which leaves the arena", _SUPPORTED)
    if changed := [key for key, value in _outside(twin).items() if outside.get(key) != value]:
        raise NotExact(
            f"{name} changes {', '.join(map(repr, changed))} of its own with every step, where another owner of a "
            "slice would not see it",
            "Keep such numbers in the optimizer's state of each parameter.",
        )
    return [twin.state[p] for p in parameters], rebinds


def _outside(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What an optimizer keeps besides the state of its parameters, as far as it is plain."""
    plain = (bool, int, float, str)
    kept = {k: v for k, v in optimizer.param_groups[0].items() if isinstance(v, plain)}
    own = {k: v for k, v in optimizer.__dict__.items() if isinstance(v, plain) and not k.startswith("_")}
    return {**{f"group {k}": v for k, v in kept.items()}, **own}


def initial_state(optimizer: torch.optim.Optimizer, group: int, twin: torch.optim.Optimizer, like: Tensor) -> None:
    """Some optimizers (Adagrad) make their state in the constructor: carry its shape over to the probe."""
    optimizer, group = owner(optimizer, group)
    for parameter in optimizer.param_groups[group]["params"]:
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.dim() > 0:
                twin.state[like][key] = torch.full_like(like, float(value.flatten()[0]) if value.numel() else 0.0)
            else:
                twin.state[like][key] = value.clone() if isinstance(value, Tensor) else value
        return
