"""The library: the versions of a model in a folder, and reading what is proven to be as it was written. No torch.

    for found in versions(Path("models/lenet")):
        print(found.number, found.why or found.manifest.created)
    manifest = open_version(Path("models/lenet"))

`model.json` says what belongs to a version, and is believed only where every hash in it is right. A version is a folder
of ordinary files: a link in it is refused, whatever it points to.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import NamedTuple

from holdfast.checkpoint import stream
from holdfast.checkpoint.disk import DISK, Disk
from holdfast.errors import DamagedModel, ModelError, NotAModel, UnreadableModel
from holdfast.model.manifest import NAME, ModelFile, ModelManifest, decode

__all__ = ["FoundVersion", "Version", "number_of", "open_version", "resolve", "version_at", "versions"]

_NUMBER = re.compile(r"[1-9]\d{0,8}")
_PIECE = 4 << 20
_MOST = 64 << 20  #: bytes of a manifest


class FoundVersion(NamedTuple):
    """A version, by its manifest; the bytes of its files are not looked at."""

    number: int
    path: Path
    manifest: ModelManifest | None
    error: ModelError | None = None  #: why it cannot be used, where there is no manifest

    @property
    def why(self) -> str:
        """Why it cannot be used; empty where it seems that it can."""
        return str(self.error) if self.error else ""


class Version:
    """One version whose manifest was read; use `version_at` or `resolve`. Holds no file open."""

    def __init__(self, path: Path, manifest: ModelManifest, disk: Disk = DISK) -> None:
        self.path, self.manifest, self._disk = path, manifest, disk
        self._kept: dict[str, memoryview] = {}

    def read(self, name: str) -> memoryview:
        """The bytes of one of its files, proven by their hash. Raises DamagedModel, UnreadableModel."""
        if name in self._kept:
            return self._kept.pop(name)
        if name not in self.manifest.files:
            raise DamagedModel(self.path, NAME, f"names no file {name}, which a model of this kind has")
        record = self.manifest.files[name]
        self._check(name, record)
        into = memoryview(bytearray(record.bytes))
        try:
            sha256 = stream.read_into(self._disk, self.path / name, 0, into)
        except EOFError as error:
            raise DamagedModel(self.path, name, str(error)) from None
        except OSError as error:
            raise UnreadableModel(self.path / name, error.strerror or str(error)) from None
        if sha256 != record.sha256:
            raise DamagedModel(self.path, name, "has other bytes than were written")
        return into

    def verify(self, *, keep: bool = False) -> None:
        """Read all its files; those that you `keep` the next `read` gives. What else is in the folder is no part of it.

        Raises:
            DamagedModel: a file is missing, is no ordinary file, or has other bytes.
            UnreadableModel: the system does not let us.
        """
        for name, record in self.manifest.files.items():
            if keep:
                self._kept[name] = self.read(name)
                continue
            self._check(name, record)
            if self._hash(name, record) != record.sha256:
                raise DamagedModel(self.path, name, "has other bytes than were written")

    def _check(self, name: str, record: ModelFile) -> None:
        file = self.path / name
        try:
            if not self._disk.ordinary(file):
                raise DamagedModel(self.path, name, "is no ordinary file, such as a link")
            size = self._disk.size(file)
        except FileNotFoundError:
            raise DamagedModel(self.path, name, "is missing") from None
        except OSError as error:
            raise UnreadableModel(file, error.strerror or str(error)) from None
        if size != record.bytes:
            raise DamagedModel(self.path, name, f"has {size} bytes, and {record.bytes} were written")

    def _hash(self, name: str, record: ModelFile) -> str:
        """Piece by piece; unlike a checkpoint's, the file stays in the kernel's memory: it is needed soon."""
        digest, at, piece = hashlib.sha256(), 0, memoryview(bytearray(min(_PIECE, record.bytes) or 1))
        try:
            descriptor = self._disk.open(self.path / name)
            try:
                while came := self._disk.read(descriptor, piece, at):
                    digest.update(piece[:came])
                    at += came
            finally:
                self._disk.close(descriptor)
        except OSError as error:
            raise UnreadableModel(self.path / name, error.strerror or str(error)) from None
        return digest.hexdigest()


def number_of(name: str) -> int:
    """The number of a version's folder; 0: it is another name.

    >>> number_of("12"), number_of("012"), number_of(".new-12-ab")
    (12, 0, 0)
    """
    return int(name) if _NUMBER.fullmatch(name) else 0


def versions(root: Path, *, disk: Disk = DISK) -> list[FoundVersion]:
    """Those in a folder, the newest first; none where it is not there. Raises NotAModel, UnreadableModel."""
    found: list[FoundVersion] = []
    for name in _names(root, disk):
        if number := number_of(name):
            try:
                found.append(FoundVersion(number, root / name, version_at(root / name, disk=disk).manifest))
            except ModelError as error:
                found.append(FoundVersion(number, root / name, None, error))
    return sorted(found, reverse=True, key=lambda version: version.number)


def version_at(path: Path, *, disk: Disk = DISK) -> Version:
    """One version, by its own folder. Only its manifest is read.

    Raises:
        NotAModel: there is none.
        DamagedModel, NewerModel, UnreadableModel
    """
    file = path / NAME
    try:
        if not disk.ordinary(file):
            raise DamagedModel(path, NAME, "is no ordinary file, such as a link")
        size = disk.size(file)
        if size > _MOST:
            raise DamagedModel(path, NAME, f"has {size} bytes")
        data = memoryview(bytearray(size))
        stream.read_into(disk, file, 0, data)
    except FileNotFoundError:
        raise NotAModel(path, f"it has no {NAME}") from None
    except NotADirectoryError:
        raise NotAModel(path, "it is a file") from None
    except EOFError as error:
        raise DamagedModel(path, NAME, str(error)) from None
    except OSError as error:
        raise UnreadableModel(file, error.strerror or str(error)) from None
    manifest = decode(bytes(data), path)
    number = number_of(Path(os.path.abspath(path)).name)
    if number != manifest.version:
        raise NotAModel(path, f"its {NAME} says that it is version {manifest.version}; let its folder be called so")
    return Version(path, manifest, disk)


def resolve(path: Path, *, keep: bool = False, disk: Disk = DISK) -> tuple[Version, list[str]]:
    """The version that a path means, proven whole, and a sentence for each newer one that is not.

    With `keep` what was read for that is used, so that a large file is read once; not of kind `python`, whose files are
    opened by the user's code.

    Raises:
        NotAModel: there is none.
        ModelError: the one that was named, or every one in the folder, cannot be used.
    """
    names = _names(path, disk, there=True)
    if NAME in names or (number_of(Path(os.path.abspath(path)).name) and not any(map(number_of, names))):
        version = version_at(path, disk=disk)
        version.verify(keep=keep and version.manifest.kind != "python")
        return version, []
    passed_over: list[str] = []
    for found in versions(path, disk=disk):
        if found.manifest is None:
            passed_over.append(found.why)
            continue
        version = Version(found.path, found.manifest, disk)
        try:
            version.verify(keep=keep and found.manifest.kind != "python")
        except ModelError as error:
            passed_over.append(str(error))
            continue
        return version, passed_over
    if passed_over:
        raise ModelError(f"No version of the model in {path} is whole. {' '.join(passed_over)}")
    raise NotAModel(path, "there is no version in it")


def open_version(path: Path, *, disk: Disk = DISK) -> ModelManifest:
    """The manifest of DIR/3, or of the newest version in DIR that is whole; every hash in it is right.

    Raises what `resolve` does.
    """
    return resolve(path, disk=disk)[0].manifest


def _names(root: Path, disk: Disk, *, there: bool = False) -> list[str]:
    """What is in a folder; nothing where it is not there, unless it has to be."""
    try:
        return disk.names(root)
    except FileNotFoundError:
        if there:
            raise NotAModel(root, "there is nothing") from None
        return []
    except NotADirectoryError:
        raise NotAModel(root, "it is a file") from None
    except OSError as error:
        raise UnreadableModel(root, error.strerror or str(error)) from None
