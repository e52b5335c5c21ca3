"""Checkpoints that are there: finding them, and reading what is proven to be as it was written.

    best = newest(root)
    for sentence in best.passed_over:
        print(sentence)
    if best.checkpoint is not None:
        best.checkpoint.read_into("parameters/float32", arena)

Whatever is read is hashed on its way, so a bad byte is an error and never a weight.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from holdfast.checkpoint import manifest as manifests
from holdfast.checkpoint import place, stream
from holdfast.checkpoint.disk import DISK, Disk
from holdfast.checkpoint.manifest import CheckpointManifest, TensorRecord
from holdfast.errors import CheckpointError, DamagedCheckpoint, NotACheckpoint, UnreadableCheckpoint, UsageError

__all__ = ["Checkpoint", "Found", "Newest", "found", "newest", "open_checkpoint"]


class Found(NamedTuple):
    """A checkpoint, by its name; its bytes are not looked at."""

    path: Path
    step: int  #: by its name
    manifest: CheckpointManifest | None
    error: CheckpointError | None = None  #: why it cannot be used, where there is no manifest

    @property
    def why(self) -> str:
        """Why it cannot be used; empty where it seems that it can."""
        return str(self.error) if self.error else ""


class Newest(NamedTuple):
    """The newest checkpoint that is whole, and a sentence for each newer one that is not."""

    checkpoint: Checkpoint | None
    passed_over: list[str]


class Checkpoint:
    """One checkpoint; use `open_checkpoint`. Holds no file open."""

    def __init__(self, path: Path, manifest: CheckpointManifest, disk: Disk) -> None:
        self.path, self.manifest, self._disk = path, manifest, disk

    def verify(self) -> list[str]:
        """Read all of it. Gives a sentence for each file in it that is not its own; such a file is never read.

        Raises:
            DamagedCheckpoint: a file is missing, or has other bytes.
            UnreadableCheckpoint: the system does not let us.
        """
        for file in self.manifest.files:
            with _reading(self.path, file.name):
                size, sha256 = stream.hash_file(self._disk, self.path / file.name)
            if size != file.size:
                raise DamagedCheckpoint(self.path, file.name, f"has {size} bytes, and {file.size} were written")
            if sha256 != file.sha256:
                for name, tensor in self.manifest.tensors.items():
                    if tensor.file == file.name:
                        self.read(name)  # raises where it is this one
                raise DamagedCheckpoint(self.path, file.name, "has other bytes than were written, in its header")
        with _reading(self.path, "it"):
            names = self._disk.names(self.path)
        strange = sorted(set(names) - {manifests.NAME, *(file.name for file in self.manifest.files)})
        return [f"{self.path} has a file that is not part of it and is not read: {name}." for name in strange]

    def read(self, name: str) -> memoryview:
        """The bytes of a tensor. Raises what `read_into` does."""
        into = memoryview(bytearray(self._tensor(name).size))
        self.read_into(name, into)
        return into

    def read_into(self, name: str, into: memoryview) -> None:
        """Fill memory of its size with a tensor. What is in there after an error is undefined.

        Raises:
            DamagedCheckpoint: these are not the bytes that were written.
            UnreadableCheckpoint: the system does not let us.
        """
        tensor, into = self._tensor(name), stream.flat(into) if into.nbytes else memoryview(bytearray())
        if into.nbytes != tensor.size:
            raise UsageError(f"{name} of {self.path} has {tensor.size} bytes, and there is room for {into.nbytes}.")
        with _reading(self.path, tensor.file):
            try:
                sha256 = stream.read_into(self._disk, self.path / tensor.file, tensor.begin, into)
            except EOFError as error:
                raise DamagedCheckpoint(self.path, tensor.file, str(error), tensor=name) from None
        if sha256 != tensor.sha256:
            raise DamagedCheckpoint(self.path, tensor.file, "has other bytes than were written", tensor=name)

    def _tensor(self, name: str) -> TensorRecord:
        if name not in self.manifest.tensors:
            known = ", ".join(self.manifest.tensors) or "none"
            raise UsageError(f"{self.path} has no tensor {name!r}; it has {known}.")
        return self.manifest.tensors[name]


def open_checkpoint(path: Path, *, disk: Disk = DISK) -> Checkpoint:
    """Read what a checkpoint says of itself.

    Raises:
        NotACheckpoint: there is none.
        DamagedCheckpoint, NewerCheckpoint, UnreadableCheckpoint
    """
    try:
        size = disk.size(path / manifests.NAME)
        data = memoryview(bytearray(size))
        stream.read_into(disk, path / manifests.NAME, 0, data)
    except FileNotFoundError:
        try:
            disk.names(path)
        except OSError:
            raise NotACheckpoint(path, "there is nothing") from None
        raise NotACheckpoint(path, f"it has no {manifests.NAME}") from None
    except NotADirectoryError:
        raise NotACheckpoint(path, "it is a file") from None
    except EOFError as error:
        raise DamagedCheckpoint(path, manifests.NAME, str(error)) from None
    except OSError as error:
        raise UnreadableCheckpoint(path / manifests.NAME, error.strerror or str(error)) from None
    return Checkpoint(path, manifests.decode(bytes(data), path), disk)


def found(root: Path, *, disk: Disk = DISK) -> list[Found]:
    """The checkpoints in a folder, the newest first; none where it is not there.

    The newest is the one that was written last, also where a run went back to an earlier step. One that does not tell
    when it was written stands where its step would.
    """
    try:
        names = disk.names(root)
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        raise NotACheckpoint(root, "it is a file") from None
    except OSError as error:
        raise UnreadableCheckpoint(root, error.strerror or str(error)) from None
    good: list[tuple[int, tuple[int, int], Found]] = []
    bad: list[tuple[tuple[int, int], Found]] = []
    for name in names:
        if number := place.number_of(name):
            try:
                manifest = open_checkpoint(root / name, disk=disk).manifest
                good.append((manifest.number, number, Found(root / name, number[0], manifest)))
            except CheckpointError as error:
                bad.append((number, Found(root / name, number[0], None, error)))
    good.sort(key=lambda item: item[:2], reverse=True)
    ordered = [(number, item) for _, number, item in good]
    for number, item in sorted(bad, key=lambda item: item[0]):
        at = next((at for at, (other, _) in enumerate(ordered) if other < number), len(ordered))
        ordered.insert(at, (number, item))
    return [item for _, item in ordered]


def newest(root: Path, *, disk: Disk = DISK) -> Newest:
    """The newest checkpoint of which every byte is as it was written. Raises what `found` does."""
    passed_over: list[str] = []
    for item in found(root, disk=disk):
        if item.manifest is None:
            passed_over.append(item.why)
            continue
        checkpoint = Checkpoint(item.path, item.manifest, disk)
        try:
            checkpoint.verify()
        except CheckpointError as error:
            passed_over.append(str(error))
            continue
        return Newest(checkpoint, passed_over)
    return Newest(None, passed_over)


@contextlib.contextmanager
def _reading(path: Path, file: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise DamagedCheckpoint(path, file, "is missing") from None
    except OSError as error:
        raise UnreadableCheckpoint(path / file, error.strerror or str(error)) from None
