"""Writing a checkpoint so that, whenever power or process goes, a whole one can be read: this one or the one before.

    take the lock, sweep up, try to rename
    put        files, then the manifest, each synced; then the folder's names
    read back  from the disk, not from memory: every hash must be right
    publish    rename to the final name, sync the names of the root
    retire     only now: rename those beyond `keep`, and remove them

A save that fails removes what it had begun and says why; what was there before is as it was. A file system that copies
where it should rename is asked for a second reading under the final name.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from holdfast.checkpoint import manifest as manifests
from holdfast.checkpoint import place, stream
from holdfast.checkpoint.content import Content
from holdfast.checkpoint.disk import DISK, Disk
from holdfast.checkpoint.dtypes import nbytes
from holdfast.checkpoint.manifest import CheckpointManifest, FileRecord
from holdfast.checkpoint.reader import Checkpoint, found
from holdfast.errors import CheckpointError, CheckpointFailed, DamagedCheckpoint, UnreadableCheckpoint, UsageError

__all__ = ["DATA", "Save", "Written", "write"]

DATA = "state.safetensors"
_OUR_BUG = "This is a bug of Holdfast: please report it."
_FIXES = {
    errno.ENOSPC: "Make room there; `--keep` says how many checkpoints stay.",
    errno.EDQUOT: "Make room there; `--keep` says how many checkpoints stay.",
    errno.EACCES: "Look at its permissions.",
    errno.EPERM: "Look at its permissions.",
    errno.EROFS: "Mount it so that it can be written.",
    errno.EIO: "Look at the disk: the kernel's log says more.",
}


class Written(NamedTuple):
    """What a save did."""

    path: Path
    bytes: int  #: that were written; 0 where the same checkpoint was there already
    seconds: float
    notes: tuple[str, ...] = ()  #: what somebody should know, though all is well


def write(root: Path, content: Content, *, keep: int, disk: Disk = DISK) -> Written:
    """Write a checkpoint into `root`, and remove all but the newest `keep` afterwards.

    Where one of the same step with the same weights is there and whole, that one stays and nothing is written.

    Raises:
        CheckpointFailed: it could not be written; what was there before is as it was.
    """
    if keep < 1:
        raise UsageError(f"keep = {keep}: the newest checkpoint is never removed. Use 1 or more.")
    began = time.monotonic()
    try:
        place.make(root, disk)
        with place.taken(root, disk) as locked:
            if locked:
                place.sweep(root, disk)
            save = Save(root, content, keep, disk)
            save.check()
            save.keep_same() if save.same() else save.run()
            return Written(save.path, save.bytes, time.monotonic() - began, tuple(save.notes))
    except UnreadableCheckpoint as error:
        raise CheckpointFailed(root, f"{error.path} cannot be read ({error.why})", "Look at the disk.") from error
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise CheckpointFailed(root, why, _FIXES.get(error.errno or 0, "Look at the disk.")) from error


class Save:
    """One save, in a root that is ours. Its steps, in the order in which `run` does them."""

    def __init__(self, root: Path, content: Content, keep: int, disk: Disk) -> None:
        self._root, self._content, self._keep, self._disk = root, content, keep, disk
        self._before = found(root, disk=disk)
        name = place.free_name(content.facts.step, disk.names(root))
        self._new = root / f"{place.NEW}{name}-{secrets.token_hex(4)}"
        self._files: list[FileRecord] = []
        self._manifest = b""
        self.path = root / name
        self.bytes = 0
        self.notes: list[str] = []

    def check(self) -> None:
        """Refuse what could not be read again. Raises CheckpointFailed."""
        for name, tensor in self._content.tensors.items():
            size = nbytes(tensor.dtype, tensor.shape)
            if size < 0 or size != memoryview(tensor.data).nbytes:
                raise CheckpointFailed(
                    self._root, f"tensor {name} of {tensor.dtype} and shape {list(tensor.shape)} was given as "
                    f"{memoryview(tensor.data).nbytes} bytes", _OUR_BUG,
                )  # fmt: skip
        if missing := sorted(set(self._content.weights()) - set(self._content.tensors)):
            raise CheckpointFailed(self._root, f"the model lies in {missing[0]}, which was not given", _OUR_BUG)

    def same(self) -> bool:
        """Is the newest one there of this step, with these weights, at the same place of the run, and whole?"""
        content, item = self._content, next((item for item in self._before if item.manifest is not None), None)
        if item is None or item.manifest is None or item.step != content.facts.step:
            return False
        if item.manifest.facts.training != content.facts.training:
            return False
        theirs = item.manifest.tensors
        if item.manifest.control != content.control or item.manifest.weights() != content.weights() or any(
            theirs[name].sha256 != stream.sha256_of(content.tensors[name].data) for name in content.weights()
        ):
            return False
        try:
            Checkpoint(item.path, item.manifest, self._disk).verify()
        except CheckpointError:
            return False
        self.path = item.path
        return True

    def keep_same(self) -> None:
        """Stay with the one that is there. Whoever wrote it may have been killed right after its rename."""
        self._disk.sync_folder(self._root)
        self.retire()

    def run(self) -> None:
        """All of it."""
        at_once = place.renames_at_once(self._root, self._disk)
        try:
            self.put()
            self.read_back(self._new)
            self.publish()
        except BaseException:
            with contextlib.suppress(OSError):
                place.remove(self._new, self._disk)
            raise
        if not at_once:
            self.read_back(self.path)
            self.notes.append(
                f"{self._root} is on a file system that copies a folder where it should rename it. A kill in the "
                "middle of a save may leave half a checkpoint there; its hashes tell, and the one before is used."
            )
        self.retire()

    def put(self) -> None:
        """Write all files under a name that nobody reads."""
        disk, content = self._disk, self._content
        disk.make_folder(self._new)
        file, tensors = stream.write_tensors(disk, self._new / DATA, content.tensors)
        self._files = [file]
        self._manifest = self._encoded(tensors)
        stream.write_file(disk, self._new / manifests.NAME, self._manifest)
        disk.sync_folder(self._new)
        self.bytes = file.size + len(self._manifest)

    def read_back(self, folder: Path) -> None:
        """Compare what is on the disk with what was meant. Raises CheckpointFailed where it differs."""
        manifest = FileRecord(manifests.NAME, len(self._manifest), stream.sha256_of(self._manifest))
        for file in [*self._files, manifest]:
            size, sha256 = stream.hash_file(self._disk, folder / file.name)
            if (size, sha256) != (file.size, file.sha256):
                raise CheckpointFailed(
                    self._root, f"{file.name} was read back from the disk with other bytes than were written",
                    "The disk or the memory of this machine is failing: look at the kernel's log.",
                )  # fmt: skip

    def publish(self) -> None:
        """Give it the name under which it is read, for good."""
        self._disk.rename(self._new, self.path)
        self._disk.sync_folder(self._root)

    def retire(self) -> None:
        """Remove those beyond `keep`, and another one of the same step. What cannot be removed is told and stays."""
        try:
            usable = [item for item in found(self._root, disk=self._disk) if item.manifest is not None]
        except CheckpointError as error:
            self.notes.append(str(error))
            return
        beyond = {item.path for item in usable[self._keep :]}
        beyond |= {
            item.path for item in self._before
            if item.step == self._content.facts.step
            and (item.manifest is not None or isinstance(item.error, DamagedCheckpoint))
        }  # fmt: skip
        old: dict[Path, Path] = {}
        for path in sorted(beyond - {self.path}):
            name = self._root / f"{place.OLD}{path.name}-{secrets.token_hex(4)}"
            with self._noting(path):
                self._disk.rename(path, name)
                old[path] = name
        if old:
            with self._noting(self._root):  # else a loss of power could bring a name back, without its files
                self._disk.sync_folder(self._root)
                for path, name in old.items():
                    with self._noting(path):
                        place.remove(name, self._disk)

    @contextlib.contextmanager
    def _noting(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.notes.append(f"{path}: what is not needed any more could not be removed ({error.strerror}).")

    def _encoded(self, tensors: dict[str, manifests.TensorRecord]) -> bytes:
        content = self._content
        manifest = CheckpointManifest(
            holdfast=_version(), created=time.time(), facts=content.facts, script=content.script, config=content.config,
            control=content.control, state=content.state, files=self._files, tensors=tensors,
            number=1 + max((item.manifest.number for item in self._before if item.manifest), default=0)
            + sum(item.manifest is None for item in self._before),  # one of these may have the greatest
        )  # fmt: skip
        if wrong := manifests.problem(manifest):
            raise CheckpointFailed(self._root, f"it does not fit together: {wrong}", _OUR_BUG)
        try:
            return manifests.encode(manifest)
        except TypeError as error:
            raise CheckpointFailed(self._root, f"it cannot be described: {error}", _OUR_BUG) from error


def _version() -> str:
    try:
        return metadata.version("holdfast")
    except metadata.PackageNotFoundError:
        return "unknown"
