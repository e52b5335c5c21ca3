"""Copies of checkpoints elsewhere: any URL that fsspec knows, such as s3://bucket/runs/mine.

An object store has no rename. There, a checkpoint is complete when its manifest is there, which is sent last, after
everything else was read back and had the right hashes; and it goes first when the copy is removed. Nothing here is
trusted: what is sent is hashed as it is read from the disk, and what comes back as it arrives.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.checkpoint import manifest as manifests
from holdfast.checkpoint import place, stream
from holdfast.checkpoint.disk import DISK, Disk
from holdfast.checkpoint.manifest import CheckpointManifest, FileRecord
from holdfast.checkpoint.reader import open_checkpoint
from holdfast.errors import (
    CheckpointError,
    CheckpointFailed,
    DamagedCheckpoint,
    NotACheckpoint,
    UnreadableCheckpoint,
    UsageError,
)

__all__ = ["RemoteFound", "Uploaded", "download", "found", "upload"]


#: Where folders are only a part of names, and making one would make a bucket that nobody asked for.
_BUCKETS = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oci"}


class RemoteFound(NamedTuple):
    """A complete copy."""

    url: str
    name: str
    manifest: CheckpointManifest


class Uploaded(NamedTuple):
    """What was copied."""

    url: str
    bytes: int  #: that were sent; 0 where the same copy was there already
    seconds: float


def upload(path: Path, url: str, *, keep: int = 0) -> Uploaded:
    """Copy a checkpoint below a URL; with `keep`, remove all but the newest so many copies there afterwards.

    Raises:
        CheckpointFailed: it could not be copied; copies that were there before are as they were.
        DamagedCheckpoint: the checkpoint itself is not whole.
    """
    began = time.monotonic()
    manifest = open_checkpoint(path).manifest
    data = (path / manifests.NAME).read_bytes()
    with _failing(url):
        store = _Store(url)
        name, there = _target(store, path.name, manifest.facts.step, data)
        if not there:
            for file in manifest.files:
                store.send(name, file, path)
            store.write(name, manifests.NAME, data)
        if keep:
            for old in _found(store)[keep:]:
                if old.name != name:
                    store.remove(old.name)
    size = 0 if there else manifest.size + len(data)
    return Uploaded(store.url_of(name), size, time.monotonic() - began)


def found(url: str) -> list[RemoteFound]:
    """The complete copies below a URL, the newest first. Raises UnreadableCheckpoint."""
    with _unreadable(url):
        return _found(_Store(url))


def download(url: str, root: Path, *, disk: Disk = DISK) -> Path:
    """Fetch one copy, or of all below a URL the newest that is whole, into the folder `root`.

    Raises:
        NotACheckpoint: there is none.
        DamagedCheckpoint, UnreadableCheckpoint
        CheckpointFailed: it could not be written here.
    """
    above, _, last = url.rstrip("/").rpartition("/")
    one = place.number_of(last) is not None
    with _unreadable(url):
        store = _Store(above if one else url)
        copies = [copy for copy in _found(store) if not one or copy.name == last]
    if not copies:
        raise NotACheckpoint(url, "there is no complete copy of one")
    for copy in copies:
        try:
            return _fetch(store, copy, root, disk)
        except DamagedCheckpoint:
            if copy is copies[-1]:
                raise
    raise AssertionError("unreachable")


def _fetch(store: _Store, copy: RemoteFound, root: Path, disk: Disk) -> Path:
    with _unreadable(copy.url):
        data = store.read(copy.name, manifests.NAME)
    step = copy.manifest.facts.step
    new = root / f"{place.NEW}{copy.name}-{secrets.token_hex(4)}"
    try:
        place.make(root, disk)
        with place.taken(root, disk):
            for name in disk.names(root):
                if (place.number_of(name) or (-1,))[0] == step and _manifest_of(root / name) == data:
                    return root / name
            try:
                disk.make_folder(new)
                for file in copy.manifest.files:
                    with store.reading(copy.name, file.name, copy.url) as pieces:
                        came = stream.copy_file(disk, new / file.name, pieces)
                    if came != file:
                        raise DamagedCheckpoint(copy.url, file.name, "has other bytes than were written")
                stream.write_file(disk, new / manifests.NAME, data)
                disk.sync_folder(new)
                target = root / place.free_name(step, disk.names(root))
                disk.rename(new, target)
                disk.sync_folder(root)
            except BaseException:
                with contextlib.suppress(OSError):
                    place.remove(new, disk)
                raise
            return target
    except OSError as error:
        raise CheckpointFailed(root, (error.strerror or str(error)).lower()) from error


def _manifest_of(path: Path) -> bytes:
    try:
        return (path / manifests.NAME).read_bytes()
    except OSError:
        return b""


def _target(store: _Store, name: str, step: int, manifest: bytes) -> tuple[str, bool]:
    """Under which name a copy goes, and whether it is there already."""
    names = store.names()
    for other in names:
        if (place.number_of(other) or (-1,))[0] == step and store.read(other, manifests.NAME) == manifest:
            return other, True
    if name not in names or not store.read(name, manifests.NAME):
        return name, False
    return place.free_name(step, names), False


def _found(store: _Store) -> list[RemoteFound]:
    copies = []
    for name in store.names():
        data = store.read(name, manifests.NAME)
        with contextlib.suppress(CheckpointError):
            if data:
                copies.append(RemoteFound(store.url_of(name), name, manifests.decode(data, store.url_of(name))))
    return sorted(copies, key=lambda copy: (copy.manifest.number, place.number_of(copy.name)), reverse=True)


class _Store:
    """The place behind a URL."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec.core

            self._files, root = fsspec.core.url_to_fs(url)
        except ImportError as error:
            raise UsageError(f"{url} cannot be reached: {error}. pip install 'holdfast[remote]'.") from None
        except ValueError as error:
            raise UsageError(f"{url} cannot be reached: {error}.") from None
        self._root = root.rstrip("/")
        self._url = url.rstrip("/")

    def url_of(self, name: str) -> str:
        """The URL of one copy."""
        return f"{self._url}/{name}"

    def names(self) -> list[str]:
        """The folders that have the name of a checkpoint."""
        self._files.invalidate_cache()
        try:
            paths = self._files.ls(self._root, detail=False)
        except FileNotFoundError:
            return []
        names = {str(path).rstrip("/").rpartition("/")[2] for path in paths}
        return sorted(name for name in names if place.number_of(name))

    def read(self, name: str, file: str) -> bytes:
        """A small file; empty where there is none."""
        try:
            data: bytes = self._files.cat_file(self._at(name, file))
        except FileNotFoundError:
            return b""
        return data

    def write(self, name: str, file: str, data: bytes) -> None:
        """A small file."""
        self._make(name)
        self._files.pipe_file(self._at(name, file), data)

    def send(self, name: str, file: FileRecord, path: Path) -> None:
        """A file of a checkpoint, read back. Raises DamagedCheckpoint where it is not what was once written here."""
        digest = hashlib.sha256()
        self._make(name)
        with open(path / file.name, "rb") as here, self._files.open(self._at(name, file.name), "wb") as there:
            for piece in stream.pieces_of(here.read):
                digest.update(piece)
                there.write(piece)
        if digest.hexdigest() != file.sha256:
            raise DamagedCheckpoint(path, file.name, "has other bytes than were written")
        digest = hashlib.sha256()
        with self.reading(name, file.name, self.url_of(name)) as pieces:
            for piece in pieces:
                digest.update(piece)
        if digest.hexdigest() != file.sha256:
            raise CheckpointFailed(
                self._url, f"{file.name} was read back with other bytes than were sent", "Send it again."
            )

    @contextlib.contextmanager
    def reading(self, name: str, file: str, url: str) -> Iterator[Iterator[bytes]]:
        """The bytes of a file."""
        with _unreadable(url):
            opened = self._files.open(self._at(name, file), "rb")
        with opened:
            yield _telling(stream.pieces_of(opened.read), url)

    def remove(self, name: str) -> None:
        """Remove a copy; from the first moment on it is none."""
        self._files.rm_file(self._at(name, manifests.NAME))
        self._files.rm(self._at(name), recursive=True)
        self._files.invalidate_cache()

    def _make(self, name: str) -> None:
        protocols = self._files.protocol
        if not _BUCKETS & {protocols, *(protocols if isinstance(protocols, tuple) else ())}:
            self._files.makedirs(self._at(name), exist_ok=True)

    def _at(self, *parts: str) -> str:
        return "/".join([self._root, *parts])


def _telling(pieces: Iterator[bytes], url: str) -> Iterator[bytes]:
    """Pieces whose failures are told from those of our own disk."""
    while True:
        with _unreadable(url):
            piece = next(pieces, b"")
        if not piece:
            return
        yield piece


# Each store has a library of its own, which raises what it likes.


@contextlib.contextmanager
def _failing(url: str) -> Iterator[None]:
    try:
        yield
    except (CheckpointFailed, DamagedCheckpoint, UsageError):
        raise
    except Exception as error:
        raise CheckpointFailed(url, _why(error), "Look at the address, its permissions and the network.") from error


@contextlib.contextmanager
def _unreadable(url: str) -> Iterator[None]:
    try:
        yield
    except (CheckpointError, UsageError):
        raise
    except Exception as error:
        raise UnreadableCheckpoint(url, _why(error)) from error


def _why(error: Exception) -> str:
    text: Any = getattr(error, "strerror", None) or error
    return f"{type(error).__name__}: {str(text).rstrip('.')}"
