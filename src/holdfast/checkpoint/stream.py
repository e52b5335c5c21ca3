"""Bytes to a file and from it, in pieces, hashed on their way.

A piece is some MiB: large enough for the disk, and small enough that other threads have their turn (hashing, writing
and reading let go of the interpreter).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from holdfast.checkpoint.content import Tensor
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.manifest import FileRecord, TensorRecord
from holdfast.checkpoint.tensor_file import layout

__all__ = [
    "copy_file", "flat", "hash_file", "pieces_of", "read_into", "sha256_of", "write_file", "write_tensors",
]  # fmt: skip

_PIECE = 4 << 20


def flat(data: memoryview | bytes) -> memoryview:
    """The bytes of a section, as they lie there."""
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")


def sha256_of(data: memoryview | bytes) -> str:
    """The hash of a section."""
    digest = hashlib.sha256()
    for piece in _pieces(flat(data)):
        digest.update(piece)
    return digest.hexdigest()


def write_file(disk: Disk, file: Path, data: bytes) -> None:
    """A new file with these bytes, safe from a loss of power. Raises OSError."""
    descriptor = disk.create(file)
    try:
        _write(disk, descriptor, memoryview(data))
        disk.sync(descriptor)
    finally:
        disk.close(descriptor)


def write_tensors(
    disk: Disk, file: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> tuple[FileRecord, dict[str, TensorRecord]]:
    """A new safetensors file, safe from a loss of power, and its hashes. Raises OSError."""
    plan = layout({name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}, metadata)
    whole, records = hashlib.sha256(plan.header), {}
    descriptor = disk.create(file)
    try:
        _write(disk, descriptor, memoryview(plan.header))
        for name, begin in plan.begins.items():
            tensor, digest = tensors[name], hashlib.sha256()
            data = flat(tensor.data)
            for piece in _pieces(data):
                digest.update(piece)
                whole.update(piece)
                _write(disk, descriptor, piece)
            records[name] = TensorRecord(
                file.name, tensor.dtype, tuple(tensor.shape), begin, data.nbytes, digest.hexdigest()
            )
        disk.sync(descriptor)
    finally:
        disk.close(descriptor)
    return FileRecord(file.name, plan.size, whole.hexdigest()), records


def copy_file(disk: Disk, file: Path, pieces: Iterable[bytes]) -> FileRecord:
    """A new file of bytes that come from elsewhere, safe from a loss of power. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    descriptor = disk.create(file)
    try:
        for piece in pieces:
            digest.update(piece)
            size += len(piece)
            _write(disk, descriptor, memoryview(piece))
        disk.sync(descriptor)
    finally:
        disk.close(descriptor)
    return FileRecord(file.name, size, digest.hexdigest())


def pieces_of(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """What a file's `read` gives, to its end."""
    while piece := read(_PIECE):
        yield piece


def hash_file(disk: Disk, file: Path) -> tuple[int, str]:
    """Size and hash of a file as it lies on the disk, not as the kernel has it in memory. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    piece = memoryview(bytearray(_PIECE))
    descriptor = disk.open(file)
    try:
        disk.forget(descriptor)
        while came := disk.read(descriptor, piece, size):
            digest.update(piece[:came])
            size += came
        disk.forget(descriptor)  # nobody needs it soon, and others need the memory
    finally:
        disk.close(descriptor)
    return size, digest.hexdigest()


def read_into(disk: Disk, file: Path, begin: int, into: memoryview) -> str:
    """Fill `into` from byte `begin` of a file on; the hash of what came. Raises OSError, EOFError."""
    digest, at = hashlib.sha256(), 0
    descriptor = disk.open(file)
    try:
        while at < into.nbytes:
            came = disk.read(descriptor, into[at : at + _PIECE], begin + at)
            if not came:
                raise EOFError(f"ends {into.nbytes - at} bytes too early")
            digest.update(into[at : at + came])
            at += came
    finally:
        disk.close(descriptor)
    return digest.hexdigest()


def _pieces(data: memoryview) -> Iterator[memoryview]:
    return (data[at : at + _PIECE] for at in range(0, data.nbytes, _PIECE))


def _write(disk: Disk, descriptor: int, data: memoryview) -> None:
    while data:
        taken = disk.write(descriptor, data)
        if taken <= 0:
            raise OSError(0, "the disk takes no bytes, and does not say why")
        data = data[taken:]
