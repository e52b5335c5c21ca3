"""The safetensors format: eight bytes, that many bytes of JSON, and the tensors' bytes without gaps. Pure.

https://huggingface.co/docs/safetensors: the header names dtype, shape and place of each tensor. Written here rather
than by that library because sections are streamed from shared memory and hashed on their way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from holdfast.checkpoint.dtypes import DTYPES, nbytes

__all__ = ["Layout", "layout"]

_ALIGNMENT = 8


class Layout(NamedTuple):
    """A file that is to be written."""

    header: bytes
    begins: dict[str, int]  #: tensor -> where its bytes begin in the file, in the order in which they are written
    size: int


def layout(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str] | None = None
) -> Layout:
    """Where everything goes. Larger numbers come first, so that each lies where a mapped file can be read as such.

    >>> made = layout({"flags": ("bool", (3,)), "w": ("float32", (2, 2))})
    >>> made.begins["w"] % 8, made.begins["flags"] - made.begins["w"], made.size - len(made.header)
    (0, 16, 19)
    """
    order = sorted(tensors, key=lambda name: -DTYPES[tensors[name][0]].size)
    tree: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    begins, at = {}, 0
    for name in order:
        dtype, shape = tensors[name]
        size = nbytes(dtype, shape)
        code = DTYPES[dtype].code
        tree[name] = {
            "dtype": code or "U8", "shape": list(shape) if code else [size], "data_offsets": [at, at + size]
        }  # fmt: skip
        begins[name], at = at, at + size
    text = json.dumps(tree, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    header = len(text).to_bytes(8, "little") + text
    return Layout(header, {name: len(header) + begin for name, begin in begins.items()}, len(header) + at)
