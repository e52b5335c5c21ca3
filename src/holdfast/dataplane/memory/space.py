"""The flat space of a torch model: which tensor lies where in the arena.

Four kinds of tensors make up the state of a model, and each has a section:

* trainable parameters, flat per dtype, cut into slices that owners update;
* fixed parameters (frozen, or not handed to the optimizer), shared but never written;
* buffers (BatchNorm statistics and the like), each in its own place;
* optimizer state, flat like the parameters it belongs to (see `optimizer`).

The space depends on model and optimizer only, never on the crew, so every worker computes the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from holdfast.core.slices import Layout, Slice, TensorEntry, layout
from holdfast.dataplane.memory.manifest import ModelEntry
from holdfast.dataplane.memory.sections import ModeRoom
from holdfast.errors import NotExact

__all__ = ["Space", "dtype_name", "typed"]


def dtype_name(dtype: torch.dtype) -> str:
    """`torch.float32` -> "float32"."""
    return str(dtype).removeprefix("torch.")


def _kind(tensor: Tensor) -> str:
    """Shape and dtype, as a sentence shows them."""
    return f"{list(tensor.shape)} {dtype_name(tensor.dtype)}"


def typed(memory: memoryview, dtype: torch.dtype) -> Tensor:
    """A section's bytes as a flat tensor; writes go to the arena."""
    return torch.frombuffer(memory, dtype=dtype)


class Space:
    """The tensors of models and optimizer, in the order that every worker agrees on."""

    def __init__(self, models: Sequence[nn.Module], optimizer: torch.optim.Optimizer) -> None:
        self._models = models
        names = {id(p): n for n, p in _named(models, "parameters")}
        self.trainable: list[nn.Parameter] = []
        self.groups: list[int] = []
        taken: set[int] = set()
        for index, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                if id(parameter) not in names:
                    shape = tuple(parameter.shape)
                    raise NotExact(
                        f"the optimizer holds a parameter of shape {shape} that is in no prepared model",
                        "Hand every model whose parameters are trained to run.prepare(...).",
                    )
                if id(parameter) in taken:
                    raise NotExact(
                        f"parameter {names[id(parameter)]} is in two optimizers", "Give it to one of them."
                    )
                taken.add(id(parameter))
                if parameter.requires_grad:
                    _check(names[id(parameter)], parameter)
                    self.trainable.append(parameter)
                    self.groups.append(index)
        if not self.trainable:
            raise NotExact("no parameter of the optimizer requires a gradient", "Unfreeze what is to be trained.")
        chosen = {id(p) for p in self.trainable}
        self.names = [names[id(p)] for p in self.trainable]
        self.fixed = [p for _, p in _named(models, "parameters") if id(p) not in chosen]
        self._names = names
        #: Models of which the optimizer holds no parameter, each with what its names begin with (`train.loop.keeping`).
        self.kept = _untrained(models, {id(p) for group in optimizer.param_groups for p in group["params"]})
        apart = {id(t) for _, model in self.kept for t in (*model.parameters(), *model.buffers())}
        #: What nothing but the optimizer may change.
        self.still = [p for p in (*self.trainable, *self.fixed) if id(p) not in apart]
        buffers = list(_named(models, "buffers"))
        self.kept_buffers = [(name, b) for name, b in buffers if id(b) in apart]
        self.buffers = [(name, b) for name, b in buffers if id(b) not in apart]
        entries = [
            TensorEntry(name=name, numel=p.numel(), dtype=dtype_name(p.dtype), itemsize=p.element_size(), group=group)
            for name, p, group in zip(self.names, self.trainable, self.groups, strict=True)
        ]
        self.layout: Layout = layout(entries)
        self.dtypes = {dtype_name(p.dtype): p.dtype for p in self.trainable}
        self.kinds = [p.dtype for p in self.trainable]  #: whatever became of them since

    def check_dtypes(self) -> None:
        """Raise where a trainable parameter is of another dtype than its place in the layout."""
        for name, parameter, dtype in zip(self.names, self.trainable, self.kinds, strict=True):
            if parameter.dtype != dtype:
                raise NotExact(
                    f"parameter {name} was {dtype_name(dtype)} at run.prepare(...) and is "
                    f"{dtype_name(parameter.dtype)} now",
                    "Convert the model (model.double(), .half(), .to(dtype)) before run.prepare(...), and make the "
                    "optimizer after that.",
                )

    def name_of(self, parameter: nn.Parameter) -> str:
        """What a parameter, trained or fixed, is called."""
        return self._names[id(parameter)]

    def few(self, indices: Sequence[int]) -> str:
        """The first of these parameters by name, for a sentence."""
        return ", ".join(self.names[index] for index in indices[:3]) + " ..." * (len(indices) > 3)

    def within(self, piece: Slice) -> str:
        """The first parameters of a slice by name, for a sentence."""
        return ", ".join(dict.fromkeys(self.names[part.entry] for part in piece.pieces[:3]))

    def parts(self) -> list[tuple[str, str]]:
        """What the model is made of, each part with what two workers must agree on (`control.membership.blueprint`)."""
        trained = zip(self.names, self.trainable, self.groups, strict=True)
        return [
            *((f"parameter {name}", _kind(p) + f" in group {group}" * bool(group)) for name, p, group in trained),
            *((f"parameter {self.name_of(p)}", f"{_kind(p)}, not trained") for p in self.fixed),
            *((f"buffer {name}", _kind(buffer)) for name, buffer in (*self.buffers, *self.kept_buffers)),
        ]

    def room(self, lanes: int, *, reads: bool = False) -> ModeRoom:
        """What decides how much memory a mode takes in which lanes need not keep step."""
        flats = {name: total * self.dtypes[name].itemsize for name, total in self.layout.totals.items()}
        return ModeRoom(lanes, flats, len(self.trainable), reads)

    def placed(self) -> tuple[list[int], int]:
        """(offset of every buffer in a copy of all of them, size of a copy)."""
        offsets, size = [], 0
        for _, buffer in self.buffers:
            offsets.append(size)
            size += -(-buffer.numel() * buffer.element_size() // 64) * 64
        return offsets, size

    def buffer_spans(self) -> list[tuple[int, int]]:
        """(begin, bytes) of every buffer in a copy of all of them."""
        offsets, _ = self.placed()
        return [(at, b.numel() * b.element_size()) for at, (_, b) in zip(offsets, self.buffers, strict=True)]

    def model_entries(self) -> list[ModelEntry]:
        """What the models' state_dicts hold, in order, with where it lies. Modules that are kept are left out."""
        offsets, _ = self.placed()
        places: dict[int, tuple[str, int]] = {}
        for parameter, start in zip(self.trainable, self.layout.offsets, strict=True):
            places[id(parameter)] = f"parameters/{dtype_name(parameter.dtype)}", start * parameter.element_size()
        places |= {id(parameter): (f"fixed/{index}", 0) for index, parameter in enumerate(self.fixed)}
        places |= {id(buffer): ("buffers", at) for at, (_, buffer) in zip(offsets, self.buffers, strict=True)}
        kept = {id(module) for _, module in self.kept}
        found = []
        for index, model in enumerate(self._models):
            prefix = f"{index}." if len(self._models) > 1 else ""
            state = {} if id(model) in kept else model.state_dict(keep_vars=True)
            for name, tensor in state.items():
                if id(tensor) in places:
                    shape, (section, begin) = list(tensor.shape), places[id(tensor)]
                    found.append(ModelEntry(prefix + name, dtype_name(tensor.dtype), shape, section, begin))
        return found

    def views(self, flats: dict[str, Tensor]) -> list[Tensor]:
        """For each trainable parameter its window into flat tensors (one per dtype)."""
        windows = []
        for parameter, start in zip(self.trainable, self.layout.offsets, strict=True):
            flat = flats[dtype_name(parameter.dtype)]
            windows.append(flat[start : start + parameter.numel()].view(parameter.shape))
        return windows


def _named(models: Sequence[nn.Module], kind: str) -> Iterable[tuple[str, nn.Parameter]]:
    seen: set[int] = set()
    for index, model in enumerate(models):
        prefix = f"{index}." if len(models) > 1 else ""
        for name, tensor in getattr(model, f"named_{kind}")():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield prefix + name, tensor


def _untrained(models: Sequence[nn.Module], held: set[int]) -> list[tuple[str, nn.Module]]:
    found = []
    for index, model in enumerate(models):
        ids = {id(p) for p in model.parameters()}
        if ids and not ids & held:
            found.append((f"{index}." if len(models) > 1 else "", model))
    return found


def _check(name: str, parameter: nn.Parameter) -> None:
    if parameter.device.type != "cpu":
        raise NotExact(
            f"parameter {name} lives on {parameter.device}, and this build keeps parameters in host memory",
            "Leave the model on the CPU.",
        )
    if parameter.layout != torch.strided or parameter.is_complex():
        raise NotExact(
            f"parameter {name} is {parameter.layout}, {parameter.dtype}; only dense real tensors have slices",
            "Use a dense real parameter.",
        )
