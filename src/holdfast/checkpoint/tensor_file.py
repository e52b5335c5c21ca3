"""The safetensors format: eight bytes, that many bytes of JSON, and the tensors' bytes without gaps. Pure.

https://huggingface.co/docs/safetensors: the header names dtype, shape and place of each tensor. Written here rather
than by that library because sections are streamed from shared memory and hashed on their way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.checkpoint.dtypes import DTYPES, nbytes

__all__ = ["HEAD", "FileLayout", "Placed", "header_size", "layout", "placed"]

HEAD = 8  #: bytes that say how long the header is
_ALIGNMENT = 8
_MOST = 100_000_000  #: bytes of a header, as that library has it
_METADATA = "__metadata__"
_NAMES = {dtype.code: name for name, dtype in DTYPES.items() if dtype.code}


class FileLayout(NamedTuple):
    """A file that is to be written."""

    header: bytes
    begins: dict[str, int]  #: tensor -> where its bytes begin in the file, in the order in which they are written
    size: int


class Placed(NamedTuple):
    """A tensor of a file that is there."""

    dtype: str  #: as torch calls it
    shape: tuple[int, ...]
    begin: int  #: bytes from the beginning of the file
    size: int


def layout(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str] | None = None
) -> FileLayout:
    """Where everything goes. Larger numbers come first, so that each lies where a mapped file can be read as such.

    >>> made = layout({"flags": ("bool", (3,)), "w": ("float32", (2, 2))})
    >>> made.begins["w"] % 8, made.begins["flags"] - made.begins["w"], made.size - len(made.header)
    (0, 16, 19)
    """
    order = sorted(tensors, key=lambda name: -DTYPES[tensors[name][0]].size)
    tree: dict[str, object] = {_METADATA: dict(metadata)} if metadata else {}
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
    return FileLayout(header, {name: len(header) + begin for name, begin in begins.items()}, len(header) + at)


def header_size(head: bytes, size: int) -> int:
    """How many bytes of JSON follow the first eight in a file of this size.

    Raises ValueError, which says what is wrong with the file.
    """
    if len(head) < HEAD:
        raise ValueError(f"it has {len(head)} bytes, and the length of its header alone takes {HEAD}")
    length = int.from_bytes(head[:HEAD], "little")
    if length > min(size - HEAD, _MOST):
        raise ValueError(f"its header is to be {length} bytes long, and {size - HEAD} follow")
    return length


def placed(header: bytes, size: int) -> dict[str, Placed]:
    """The tensors by their names, of a file of this size whose header, without the first eight bytes, is this.

    A file may come from anybody. So each tensor has to lie in the file, right behind the one before it, with as many
    bytes as its numbers take, and the last one has to end where the file does. Raises ValueError, as `header_size`.

    >>> made = layout({"flags": ("bool", (3,)), "w": ("float32", (2, 2))})
    >>> placed(made.header[8:], made.size)["w"].shape, placed(made.header[8:], made.size)["flags"].size
    ((2, 2), 3)
    """
    try:
        tree = json.loads(header, object_pairs_hook=_unique)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"its header is not JSON ({error})") from None
    if not isinstance(tree, dict):
        raise ValueError(f"its header is a {type(tree).__name__}, and has to name tensors")
    tree.pop(_METADATA, None)
    tensors = {name: _placed(name, entry, HEAD + len(header)) for name, entry in tree.items()}
    at = HEAD + len(header)
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].size)):
        if tensor.begin != at:
            what = "lies over the one before it" if tensor.begin < at else "leaves a gap before it"
            raise ValueError(f"tensor {name!r} begins at byte {tensor.begin}, and {what}, which ends at byte {at}")
        at += tensor.size
    if at != size:
        what = "cut off" if at > size else "followed by something else"
        raise ValueError(f"its tensors end at byte {at}, and the file at byte {size}: it is {what}")
    return tensors


def _placed(name: str, entry: object, begin: int) -> Placed:
    if not isinstance(entry, dict):
        raise ValueError(f"its header does not say where tensor {name!r} is")
    code: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    if not isinstance(code, str) or code not in _NAMES:
        raise ValueError(f"tensor {name!r} is of the type {code!r}, which is not known here")
    if not _whole(shape) or not _whole(offsets) or len(offsets) != 2:
        raise ValueError(f"its header does not say where tensor {name!r} is")
    size = offsets[1] - offsets[0]
    if size != nbytes(_NAMES[code], shape):
        raise ValueError(f"tensor {name!r} of {_NAMES[code]} and shape {shape} has {size} bytes")
    return Placed(_NAMES[code], tuple(shape), begin + offsets[0], size)


def _whole(numbers: Any) -> bool:
    return isinstance(numbers, list) and all(type(number) is int and number >= 0 for number in numbers)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"its header has {twice!r} twice")
    return dict(pairs)
