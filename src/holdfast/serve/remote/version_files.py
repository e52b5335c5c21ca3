"""The versions of models that a machine holds for its replicas only, each fetched once.

    DIR/<first digits of the manifest's hash>/3/model.json    and its files

Nothing is under its own name before every hash in its manifest was found right.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.errors import DamagedModel, ResourceError
from holdfast.model.manifest import NAME, ModelFile, decode

__all__ = ["VersionFiles"]

_DIGITS = 24
_KEPT = 2  # versions that no replica uses: one may be rolled back to

#: Gives the bytes of a file, piece by piece.
Fetch = Callable[[str], Iterator[bytes | memoryview]]


class VersionFiles:
    """Fetches, proves and keeps. Any thread may ask. Whoever owns the folder removes it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._fetching: dict[str, threading.Lock] = {}
        self._users: dict[str, int] = {}  # by digits, the latest asked for last

    def obtain(self, manifest: bytes, fetch: Fetch) -> Path:
        """The folder of a version, which stays until `release`; what is not here yet is fetched.

        Raises DamagedModel, NewerModel, ResourceError, and what `fetch` raises.
        """
        digits = hashlib.sha256(manifest).hexdigest()[:_DIGITS]
        what = decode(manifest, "that was sent")
        folder = self._root / digits / str(what.version)
        with self._lock:
            fetching = self._fetching.setdefault(digits, threading.Lock())
            self._users[digits] = self._users.pop(digits, 0) + 1
        try:
            with fetching:  # two replicas may be started at once
                if not folder.exists():
                    self._remove_unused()
                    self._fetch(folder, manifest, what.files, fetch)
        except BaseException:
            self.release(folder)
            raise
        return folder

    def release(self, folder: Path) -> None:
        """A replica uses it no more."""
        with self._lock:
            self._users[folder.parent.name] -= 1

    def _fetch(self, folder: Path, manifest: bytes, files: dict[str, ModelFile], fetch: Fetch) -> None:
        building = folder.with_name("new")
        shutil.rmtree(building, ignore_errors=True)
        try:
            building.mkdir(parents=True)
            for name, record in files.items():
                _receive(building / name, record, fetch(name))
            (building / NAME).write_bytes(manifest)
            os.rename(building, folder)
        except OSError as error:
            raise ResourceError(
                f"This machine cannot keep the version's files in {self._root}: {error.strerror}. Make room there, or "
                "set TMPDIR to another place."
            ) from None
        finally:
            shutil.rmtree(building, ignore_errors=True)

    def _remove_unused(self) -> None:
        """Make room: of the versions that nobody uses the oldest go."""
        with self._lock:
            unused = [digits for digits, users in self._users.items() if not users]
            for digits in unused[: max(0, len(unused) - _KEPT)]:
                del self._users[digits]
                self._fetching.pop(digits, None)
                shutil.rmtree(self._root / digits, ignore_errors=True)


def _receive(path: Path, record: ModelFile, pieces: Iterator[bytes | memoryview]) -> None:
    digest, size = hashlib.sha256(), 0
    with open(path, "xb") as file:
        for piece in pieces:
            size += len(piece)
            if size > record.bytes:
                break  # no more is written than its manifest says
            digest.update(piece)
            file.write(piece)
    if size != record.bytes or digest.hexdigest() != record.sha256:
        raise DamagedModel("that was sent", path.name, "has other bytes than were written")
