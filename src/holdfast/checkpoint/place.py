"""The folder that checkpoints stand in: their names, its lock, what a kill has left, and whether it can rename.

    step-000000000120      a checkpoint: whatever bears such a name was read back and was right
    step-000000000120-2    another one of the same step, with other weights
    .new-..., .old-...     one that is being written or removed. Nobody reads these; the next save sweeps them up
    .lock                  whoever writes holds an flock on it
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Collection, Iterator
from pathlib import Path

from holdfast.checkpoint.disk import Disk
from holdfast.errors import CheckpointFailed, NoAtomicRename

__all__ = ["NEW", "OLD", "free_name", "make", "number_of", "remove", "renames_at_once", "sweep", "taken"]

NEW, OLD = ".new-", ".old-"
_LOCK = ".lock"
_NAME = re.compile(r"step-(\d{12,})(?:-(\d{1,9}))?")
#: A disk that is full, failing or read-only says nothing about how it renames.
_BAD_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS}
#: Some file systems have no locks. There nobody sweeps up, as it could be another process' work.
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}


def number_of(name: str) -> tuple[int, int] | None:
    """The step of a checkpoint, and the how many-th of that step it is; None: it is another name.

    >>> number_of("step-000000000120"), number_of("step-000000000120-2"), number_of(".new-step-000000000120")
    ((120, 1), (120, 2), None)
    """
    found = _NAME.fullmatch(name)
    return (int(found[1]), int(found[2] or 1)) if found else None


def free_name(step: int, names: Collection[str]) -> str:
    """A name for a checkpoint that is not among these, and the last of its step.

    >>> free_name(120, []), free_name(120, ["step-000000000120", "step-000000000120-4"])
    ('step-000000000120', 'step-000000000120-5')
    """
    numbers = [number[1] for name in names if (number := number_of(name)) and number[0] == step]
    return f"step-{step:012d}" + (f"-{max(numbers) + 1}" if numbers else "")


@contextlib.contextmanager
def taken(root: Path, disk: Disk) -> Iterator[bool]:
    """Write here, alone. Gives whether there is a lock at all. Raises OSError, CheckpointFailed."""
    try:
        lock = disk.lock(root / _LOCK)
    except BlockingIOError:
        raise CheckpointFailed(
            root, "another process is writing one there", "Wait until it is done, or give each run a directory."
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        yield False
        return
    try:
        yield True
    finally:
        with contextlib.suppress(OSError):  # what was to be written is written, and the lock goes with the descriptor
            disk.unlock(lock)


def make(root: Path, disk: Disk) -> None:
    """See that the folder is there, with those above it, and stays there. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        try:
            disk.make_folder(root)
        except FileNotFoundError:
            if root.parent == root:
                raise
            make(root.parent, disk)
            disk.make_folder(root)
        disk.sync_folder(root.parent)


def sweep(root: Path, disk: Disk) -> None:
    """Remove what a kill has left. What cannot be removed stays for the next time."""
    for name in disk.names(root):
        if name.startswith((NEW, OLD)):
            with contextlib.suppress(OSError):
                remove(root / name, disk)


def remove(folder: Path, disk: Disk) -> None:
    """Remove a folder and the files in it. Raises OSError."""
    for name in disk.names(folder):
        disk.remove(folder / name)
    disk.remove_folder(folder)


def renames_at_once(root: Path, disk: Disk) -> bool:
    """Try it: whether a folder is renamed here, or copied to its new name.

    Raises:
        NoAtomicRename: it is neither.
        OSError: the disk is full, failing or read-only.
    """
    before, after = (root / f"{NEW}probe-{secrets.token_hex(4)}{end}" for end in ("", "-renamed"))
    disk.make_folder(before)
    try:
        disk.close(disk.create(before / "file"))
        same = disk.identity(before / "file")
        try:
            disk.rename(before, after)
        except OSError as error:
            if error.errno in _BAD_DISK:
                raise
            raise NoAtomicRename(root, os.strerror(error.errno or errno.EPERM)) from error
        before = after
        return disk.identity(after / "file") == same
    finally:
        with contextlib.suppress(OSError):
            remove(before, disk)
