"""Writing a version so that, whenever power or process goes, it is there whole or not at all.

    take the lock, sweep up what a kill has left, choose the next number
    put        files, then the manifest, each synced; then the folder's names
    read back  from the disk, not from memory: every hash must be right
    try        whoever writes it loads and asks it, if that was asked for
    publish    rename to its number, sync the names of the root
"""

from __future__ import annotations

import contextlib
import errno
import platform
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from holdfast.checkpoint import place, stream
from holdfast.checkpoint.content import Tensor
from holdfast.checkpoint.disk import DISK, Disk
from holdfast.errors import CheckpointFailed, ModelFailed
from holdfast.model import manifest as manifests
from holdfast.model.library import Version, number_of
from holdfast.model.manifest import Kind, ModelFile, ModelManifest
from holdfast.model.signature import Signature

__all__ = ["Draft", "FileContent", "frameworks", "write_version"]

_FIXES = {
    errno.ENOSPC: "Make room there.",
    errno.EDQUOT: "Make room there.",
    errno.EACCES: "Look at its permissions.",
    errno.EPERM: "Look at its permissions.",
    errno.EROFS: "Mount it so that it can be written.",
}

#: Bytes, or tensors for a .safetensors file.
FileContent = bytes | memoryview | Mapping[str, Tensor]


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A version that has no number yet."""

    name: str
    kind: Kind
    signature: Signature
    files: dict[str, Any]  #: name -> FileContent
    classes: tuple[str, ...] = ()
    source: dict[str, Any] = {}
    frameworks: dict[str, str] = {}
    build: dict[str, Any] = {}
    idempotent: bool = True
    finite: bool = True


def frameworks(*packages: str) -> dict[str, str]:
    """The versions of these, of Python, NumPy and Holdfast, as a manifest has them."""
    told = {"python": platform.python_version()}
    for package in ("holdfast", "numpy", *packages):
        with contextlib.suppress(metadata.PackageNotFoundError):
            told[package] = metadata.version(package)
    return told


def write_version(
    root: Path, draft: Draft, *, attempt: Callable[[Version], None] | None = None, disk: Disk = DISK
) -> Version:
    """Write a version into `root` under the next number. It appears there once `attempt` has returned, if there is one.

    Raises:
        ModelFailed: it could not be written; those before are as they were.
        Whatever `attempt` raises: nothing is left of it then.
    """
    try:
        place.make(root, disk)
        with place.taken(root, disk) as locked:
            if locked:
                place.sweep(root, disk)
            return _write(root, draft, attempt, disk)
    except CheckpointFailed as error:  # what writes checkpoints says what the place is like
        fix = "Wait until it is done." if "another process" in error.why else "Use a folder on a local disk."
        raise ModelFailed(root, error.why, fix) from None
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ModelFailed(root, why, _FIXES.get(error.errno or 0, "Look at the disk.")) from error


def _write(root: Path, draft: Draft, attempt: Callable[[Version], None] | None, disk: Disk) -> Version:
    at_once = place.renames_at_once(root, disk)
    number = 1 + max(map(number_of, disk.names(root)), default=0)
    new = root / f"{place.NEW}{number}-{secrets.token_hex(4)}"
    with _removed_if_it_fails(new, disk):
        disk.make_folder(new)
        records = {name: _put(disk, new / name, content) for name, content in draft.files.items()}
        manifest, data = _described(root, draft, number, records)
        stream.write_file(disk, new / manifests.NAME, data)
        disk.sync_folder(new)
        _read_back(root, new, manifest, data, disk)
        if attempt is not None:
            attempt(Version(new, manifest, disk))
        disk.rename(new, root / str(number))
        disk.sync_folder(root)
    if not at_once:  # it was copied: a kill meanwhile leaves half, which its hashes tell
        _read_back(root, root / str(number), manifest, data, disk)
    return Version(root / str(number), manifest, disk)


def _put(disk: Disk, file: Path, content: FileContent) -> ModelFile:
    if isinstance(content, Mapping):
        record, _ = stream.write_tensors(disk, file, content, {"format": "pt"})
        return ModelFile(record.sha256, record.size)
    data = bytes(content)
    stream.write_file(disk, file, data)
    return ModelFile(stream.sha256_of(data), len(data))


def _described(root: Path, draft: Draft, number: int, files: dict[str, ModelFile]) -> tuple[ModelManifest, bytes]:
    manifest = ModelManifest(
        name=draft.name, version=number, kind=draft.kind, platform=manifests.PLATFORMS[draft.kind],
        signature=draft.signature, classes=draft.classes, files=files, source=draft.source, build=draft.build,
        frameworks=draft.frameworks, created=time.time(), idempotent=draft.idempotent, finite=draft.finite,
    )  # fmt: skip
    if wrong := manifests.problem(manifest):
        raise ModelFailed(root, f"it does not fit together: {wrong}", "Give it another one.")
    try:
        return manifest, manifests.encode(manifest)
    except (TypeError, ValueError) as error:
        raise ModelFailed(root, f"JSON cannot say how it is built ({error})", "Use plain values.") from error


def _read_back(root: Path, folder: Path, manifest: ModelManifest, data: bytes, disk: Disk) -> None:
    own = {manifests.NAME: ModelFile(stream.sha256_of(data), len(data))}
    for name, file in {**manifest.files, **own}.items():
        if stream.hash_file(disk, folder / name) != (file.bytes, file.sha256):
            raise ModelFailed(
                root, f"{name} was read back from the disk with other bytes than were written",
                "The disk or the memory of this machine is failing: look at the kernel's log.",
            )  # fmt: skip


@contextlib.contextmanager
def _removed_if_it_fails(folder: Path, disk: Disk) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            place.remove(folder, disk)
        raise
