"""Digests: hashes of tensors, batches and named things, by which two computations are compared bit for bit."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy
import torch

__all__ = ["Digests", "differing", "digest", "few", "of_all", "of_batch"]

Digests = dict[str, int]


def differing(first: Mapping[str, int], second: Mapping[str, int]) -> list[str]:
    """The names of what is not the same in both."""
    return [name for name in {**first, **second} if first.get(name) != second.get(name)]


def few(names: Sequence[str]) -> str:
    """The first of these, for a sentence.

    >>> few(["the loss", "a", "b", "c"]), few(["a"])
    ('the loss, a, b, ...', 'a')
    """
    return ", ".join([*names[:3], *["..."] * (len(names) > 3)])


def digest(tensor: torch.Tensor) -> int:
    """Of what is in a tensor, bit for bit."""
    if tensor.layout != torch.strided:
        return 0  # such a gradient is refused where it is taken
    plain = tensor.detach().cpu().contiguous()
    return zlib.crc32(plain.reshape(-1).view(torch.uint8).numpy().data) if plain.numel() else 0


def of_all(several: Mapping[str, int]) -> int:
    """Of all of these together, names included."""
    return zlib.crc32(msgspec.msgpack.encode(list(several.items())))


def of_batch(batch: Any, found: int) -> int:
    """Of the tensors, arrays and plain values of a batch, after what was found; what else is in it is not looked at."""
    for leaf in _leaves(batch):
        if isinstance(leaf, torch.Tensor):
            found = zlib.crc32(digest(leaf).to_bytes(4, "little"), found)
        elif isinstance(leaf, numpy.ndarray) and leaf.dtype != object:
            found = zlib.crc32(leaf.tobytes(), found)
        elif isinstance(leaf, int | float | str | bytes):
            found = zlib.crc32(repr(leaf).encode(), found)
    return found


def _leaves(batch: Any) -> Iterator[Any]:
    if isinstance(batch, Mapping):
        for item in batch.values():
            yield from _leaves(item)
    elif isinstance(batch, list | tuple):
        for item in batch:
            yield from _leaves(item)
    else:
        yield batch
