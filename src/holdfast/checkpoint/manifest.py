"""The manifest of a checkpoint: what it is, what its files and tensors are, and their hashes. Pure.

It is sealed JSON (see `seal`): a byte that has changed anywhere in it is noticed. Every later format keeps that ending,
and the entry `format`.

JSON has no NaN and no infinity; here they are {"$float": "nan"}, and a name that begins with $ gets another one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.checkpoint.content import RunFacts, Script, StateEntry
from holdfast.checkpoint.dtypes import nbytes
from holdfast.checkpoint.seal import sealed, unsealed
from holdfast.errors import DamagedCheckpoint, NewerCheckpoint

__all__ = ["FORMAT", "NAME", "CheckpointManifest", "FileRecord", "TensorRecord", "decode", "encode", "problem"]

FORMAT = 1
NAME = "manifest.json"


class FileRecord(msgspec.Struct, frozen=True):
    """One file of a checkpoint."""

    name: str
    size: int
    sha256: str


class TensorRecord(msgspec.Struct, frozen=True):
    """Where a tensor lies."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    begin: int  #: bytes from the beginning of the file
    size: int
    sha256: str


class CheckpointManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a checkpoint but its bytes."""

    format: int = FORMAT
    holdfast: str  #: the version that wrote it
    created: float  #: Unix time
    number: int  #: of those that were written to one root; the newest has the greatest, whatever clocks say
    facts: RunFacts
    script: Script
    config: dict[str, Any]
    control: dict[str, Any]
    files: list[FileRecord]
    tensors: dict[str, TensorRecord]
    state: list[StateEntry]

    @property
    def size(self) -> int:
        """Bytes of all its files but this one."""
        return sum(file.size for file in self.files)

    def weights(self) -> list[str]:
        """The sections that the model itself lies in; all, where nothing is said of a model."""
        return sorted({entry.tensor for entry in self.state} or self.tensors)


def encode(manifest: CheckpointManifest) -> bytes:
    """The file. Raises TypeError where a value is nothing that JSON can say."""
    tree = msgspec.to_builtins(
        msgspec.structs.replace(manifest, config=_plain(manifest.config), control=_plain(manifest.control))
    )
    tree["facts"] = _plain(tree["facts"])
    return sealed(tree)


def decode(data: bytes, path: object) -> CheckpointManifest:
    """What `encode` wrote, of the checkpoint `path`.

    Raises:
        DamagedCheckpoint: a byte is another one, or some are missing.
        NewerCheckpoint: a later version of Holdfast has written it.
    """
    try:
        tree = unsealed(data)
    except ValueError as error:
        raise DamagedCheckpoint(path, NAME, str(error)) from None
    try:
        if tree["format"] > FORMAT:
            raise NewerCheckpoint(path, format=tree["format"], known=FORMAT, version=str(tree.get("holdfast")))
        for name in ("facts", "config", "control"):
            tree[name] = _meant(tree[name])
        manifest = msgspec.convert(tree, CheckpointManifest)
    except (ValueError, TypeError, KeyError, RecursionError) as error:  # msgspec's are ValueErrors
        raise DamagedCheckpoint(path, NAME, f"is none that Holdfast has written ({error})") from None
    if wrong := problem(manifest):
        raise DamagedCheckpoint(path, NAME, f"does not fit together: {wrong}")
    return manifest


def problem(manifest: CheckpointManifest) -> str:
    """What does not fit together; empty if all does. A manifest may come from anybody, and nothing may be read by it
    that is not part of the checkpoint."""
    files = {file.name: file for file in manifest.files}
    for name in files:
        if "/" in name or "\0" in name or name.startswith(".") or name in ("", NAME):
            return f"{name!r} cannot be the name of a file in it"
    if len(files) < len(manifest.files):
        return "a file is in it twice"
    for name, tensor in manifest.tensors.items():
        size = nbytes(tensor.dtype, tensor.shape)
        if size < 0 or size != tensor.size:
            return f"tensor {name!r} of {tensor.dtype} and shape {list(tensor.shape)} has {tensor.size} bytes"
        if tensor.file not in files:
            return f"tensor {name!r} is in {tensor.file!r}, which is no file of it"
        if tensor.begin < 0 or tensor.begin + size > files[tensor.file].size:
            return f"tensor {name!r} ends at byte {tensor.begin + size} of {tensor.file}, which ends before"
    for entry in manifest.state:
        size = nbytes(entry.dtype, entry.shape)
        room = manifest.tensors[entry.tensor].size if entry.tensor in manifest.tensors else -1
        if size < 0 or entry.begin < 0 or entry.begin + size > room:
            return f"{entry.name!r} of the model is not where it shall be, in tensor {entry.tensor!r}"
    return ""


def _plain(value: Any) -> Any:
    """A value as strict JSON says it."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(float(value))}
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise TypeError(f"{name!r} is the name of a value in a checkpoint, and no text")
        return {"$" + name if name.startswith("$") else name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"A {type(value).__name__} cannot be kept in the manifest of a checkpoint")


def _meant(value: Any) -> Any:
    """What `_plain` was given."""
    if isinstance(value, dict):
        if value.keys() == {"$float"}:
            return float(value["$float"])
        return {name[1:] if name.startswith("$$") else name: _meant(item) for name, item in value.items()}
    return [_meant(item) for item in value] if isinstance(value, list) else value
