"""How two checkpoints differ: the model entry by entry, other sections by their hashes, script and configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from holdfast.checkpoint.content import Tensor
from holdfast.checkpoint.dtypes import DTYPES
from holdfast.checkpoint.forms.export import state_dict
from holdfast.checkpoint.manifest import CheckpointManifest
from holdfast.checkpoint.reader import Checkpoint

__all__ = ["Comparison", "EntryDifference", "compare", "flattened"]


class EntryDifference(NamedTuple):
    """One entry of the model that is not the same in both."""

    name: str
    what: str  #: where it is not only its numbers: 'only in the first', 'shape [2] and [3]'
    numbers: int = 0  #: that differ
    largest: float | None = None  #: difference of two numbers; None: not to be told


class Comparison(NamedTuple):
    """All that differs."""

    entries: int  #: of the model, in either
    model: list[EntryDifference]
    sections: list[str]  #: other ones whose bytes differ, or that only one has
    script: list[tuple[str, Any, Any]]  #: what, in the first, in the second
    config: list[tuple[str, Any, Any]]

    @property
    def largest(self) -> float | None:
        """The largest difference of two numbers in the model."""
        return max((entry.largest for entry in self.model if entry.largest is not None), default=None)


def compare(first: Checkpoint, second: Checkpoint) -> Comparison:
    """Read both models and compare. Raises DamagedCheckpoint, UnreadableCheckpoint."""
    ours, theirs = state_dict(first), state_dict(second)
    names = [*ours, *(name for name in theirs if name not in ours)]
    differences = [_entry(name, ours.get(name), theirs.get(name)) for name in names]
    one, other = first.manifest, second.manifest
    return Comparison(
        len(names), [item for item in differences if item is not None], _sections(one, other),
        _values(msgspec.to_builtins(one.script), msgspec.to_builtins(other.script)), _values(one.config, other.config),
    )  # fmt: skip


def flattened(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Settings by their full names.

    >>> flattened({"lanes": 4, "crew": {"settle": 1.0}})
    {'lanes': 4, 'crew.settle': 1.0}
    """
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            flat |= flattened(value, f"{above}{name}.")
        else:
            flat[above + name] = value
    return flat


def _values(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    ours, theirs = flattened(first), flattened(second)
    names = [*ours, *(name for name in theirs if name not in ours)]
    return [
        (name, ours.get(name), theirs.get(name)) for name in names if repr(ours.get(name)) != repr(theirs.get(name))
    ]


def _sections(first: CheckpointManifest, second: CheckpointManifest) -> list[str]:
    """Sections beside the model that are not the same."""
    model = {*first.weights(), *second.weights()} if first.state or second.state else set()
    hashes = [{name: tensor.sha256 for name, tensor in each.tensors.items()} for each in (first, second)]
    return sorted(name for name in {*hashes[0], *hashes[1]} - model if hashes[0].get(name) != hashes[1].get(name))


def _entry(name: str, first: Tensor | None, second: Tensor | None) -> EntryDifference | None:
    if first is None or second is None:
        return EntryDifference(name, "only in the second" if first is None else "only in the first")
    if first.dtype != second.dtype:
        return EntryDifference(name, f"{first.dtype} and {second.dtype}")
    if first.shape != second.shape:
        return EntryDifference(name, f"shape {list(first.shape)} and {list(second.shape)}")
    if first.data == second.data:
        return None
    return EntryDifference(name, "", *_difference(first, second))


def _difference(first: Tensor, second: Tensor) -> tuple[int, float | None]:
    """How many numbers differ, and by how much at most; infinite where one of two is NaN."""
    import numpy as np

    size = DTYPES[first.dtype].size
    raw = [np.frombuffer(each.data, np.uint8).reshape(-1, size) for each in (first, second)]
    differing = (raw[0] != raw[1]).any(axis=1)
    count = int(differing.sum())
    if first.dtype == "bfloat16":  # the upper half of a float32
        halves = [np.frombuffer(each.data, np.uint16).astype(np.uint32) for each in (first, second)]
        numbers = [(half << 16).view(np.float32) for half in halves]
    elif first.dtype.startswith("float8") or first.dtype == "complex32":
        return count, None
    else:
        numbers = [np.frombuffer(each.data, np.dtype(first.dtype)) for each in (first, second)]
    wide = np.complex128 if first.dtype.startswith("complex") else np.float64
    with np.errstate(invalid="ignore"):
        apart = np.abs(numbers[0][differing].astype(wide) - numbers[1][differing].astype(wide))
    apart[np.isnan(apart)] = np.inf
    return count, float(apart.max(initial=0.0))
