"""Loaded weights: what models take over from a file by the names of their state_dict, and what of it does not fit.

A tensor of the same name, shape and dtype is copied; whatever else there is on either side is told, and stays. Where a
model has one tensor under several names, any of them will do.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from holdfast.checkpoint.forms.weights import TensorKind, Weights, locate_weights, open_weights
from holdfast.dataplane.memory.space import dtype_name
from holdfast.errors import OtherModel

__all__ = ["Loaded", "load_weights", "named_tensors", "take_over", "tell"]

_MOST = 10  #: of each kind are told by name
_NOTHING = memoryview(b"")


class Loaded(NamedTuple):
    """What did not fit, by name; all of it empty: everything did."""

    missing: tuple[str, ...] = ()  #: of the models, not in the file: as they were
    unexpected: tuple[str, ...] = ()  #: in the file, and nothing of the models
    differing: tuple[str, ...] = ()  #: in both, and not alike: as they were


def load_weights(models: Sequence[nn.Module], path: Path) -> Loaded:
    """Take over what a path means, and say what did not fit: in this worker's log, and on the screen if it is the lead.

    Raises CheckpointError.
    """
    found, passed_over = locate_weights(path)
    weights = open_weights(found)
    loaded = take_over(models, weights)
    for line in (*passed_over, *tell(loaded, models, weights)):
        print(f"holdfast: {line}", file=sys.stderr)
    sys.stderr.flush()
    return loaded


def named_tensors(models: Sequence[nn.Module]) -> Iterator[tuple[str, Tensor]]:
    """Parameters and persistent buffers by the names in state_dict; of several models each with its number before it.

    Of a module's extra state nothing is given: it is neither.
    """
    for index, model in enumerate(models):
        prefix = f"{index}." if len(models) > 1 else ""
        for name, tensor in model.state_dict(keep_vars=True).items():
            if isinstance(tensor, Tensor):
                yield prefix + name, tensor


def take_over(models: Sequence[nn.Module], weights: Weights) -> Loaded:
    """Copy what fits into the models.

    Raises:
        OtherModel: nothing does.
        DamagedCheckpoint, UnreadableCheckpoint, NoWeights: it cannot be read, or is not as it was written.
    """
    ours, theirs = dict(named_tensors(models)), weights.kinds
    fitting = [name for name, tensor in ours.items() if theirs.get(name) == _kind(tensor)]
    if not fitting:
        raise OtherModel(weights.path, _apart(ours, theirs))
    given = {id(ours[name]) for name in ours if name in theirs}
    missing = tuple(name for name in ours if name not in theirs and id(ours[name]) not in given)
    differing = {name for name in ours if name in theirs and theirs[name] != _kind(ours[name])}
    read: dict[int, memoryview] = {}  # all of it, before the first is changed
    for name in fitting:
        data = weights.read(name)
        if read.setdefault(id(ours[name]), data) != data:
            differing.add(name)
    with torch.no_grad():
        for tensor in ours.values():
            if len(data := read.get(id(tensor), _NOTHING)):
                tensor.copy_(torch.frombuffer(data, dtype=torch.uint8).view(tensor.dtype).reshape(tensor.shape))
    unexpected = tuple(name for name in theirs if name not in ours)
    return Loaded(missing, unexpected, tuple(name for name in ours if name in differing))


def tell(loaded: Loaded, models: Sequence[nn.Module], weights: Weights) -> list[str]:
    """What was taken over, and one by one what was not; the first of each kind, and how many more there are."""
    ours, theirs = dict(named_tensors(models)), weights.kinds
    taken = len(ours) - len({*loaded.missing, *loaded.differing})
    lines = [f"weights: {taken} of the {len(ours)} tensors of the models are those of {weights.path}"]
    told = [
        [f"{name} is not in the file; it stays as the script has made it" for name in loaded.missing],
        [_difference(name, _kind(ours[name]), theirs[name]) for name in loaded.differing],
        [f"{name} of the file is not in the models" for name in loaded.unexpected],
    ]
    for sentences in told:
        lines += [f"weights: {sentence}" for sentence in sentences[:_MOST]]
        if len(sentences) > _MOST:
            lines.append(f"weights: and so are {len(sentences) - _MOST} more ({len(sentences)} in all)")
    return lines


def _kind(tensor: Tensor) -> TensorKind:
    return TensorKind(dtype_name(tensor.dtype), tuple(tensor.shape))


def _difference(name: str, here: TensorKind, there: TensorKind) -> str:
    if here == there:
        return f"{name} is another name of one tensor here, and in the file it has other numbers: not taken"
    return f"{name} is {here} here and {there} in the file; it stays as the script has made it"


def _apart(ours: dict[str, Tensor], theirs: Mapping[str, TensorKind]) -> str:
    """Why nothing fits."""
    both = [name for name in ours if name in theirs]
    if both:
        told = [f"{name} is {_kind(ours[name])} here and {theirs[name]} there" for name in both[:_MOST]]
        return ", ".join(told) + f" and {len(both) - _MOST} more" * (len(both) > _MOST)
    return f"here they are called {_few(list(ours))}, there {_few(list(theirs))}"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST]) + f" and {len(names) - _MOST} more" * (len(names) > _MOST) if names else "nothing"
