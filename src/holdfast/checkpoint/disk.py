"""The disk: every file operation that a checkpoint is written and read with, each once.

The one seam for tests: a disk that is full, fails, forgets what was not synced, or is killed between two operations
takes its place. All raise OSError.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path

__all__ = ["DISK", "Disk"]


class Disk:
    """The real one."""

    def make_folder(self, folder: Path) -> None:
        """Make a folder that is not there yet."""
        os.mkdir(folder)

    def create(self, file: Path) -> int:
        """A descriptor of a new file, to write."""
        return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def open(self, file: Path) -> int:
        """A descriptor of a file, to read."""
        return os.open(file, os.O_RDONLY | os.O_CLOEXEC)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write at the end; how many bytes were taken."""
        return os.write(descriptor, data)

    def read(self, descriptor: int, into: memoryview, begin: int) -> int:
        """Read from byte `begin` on; how many bytes came, 0 at the end."""
        return os.preadv(descriptor, [into], begin)

    def sync(self, descriptor: int) -> None:
        """Return when what was written would survive a loss of power."""
        os.fsync(descriptor)

    def sync_folder(self, folder: Path) -> None:
        """The same for the names in a folder."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def forget(self, descriptor: int) -> None:
        """Have the kernel drop what it holds of a file in memory, so that reading it asks the disk."""
        with contextlib.suppress(OSError):  # it is advice, and some file systems take none
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self, descriptor: int) -> None:
        """Done with a file."""
        os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        """Give another name, at once."""
        os.rename(old, new)

    def remove(self, file: Path) -> None:
        """Remove a file."""
        os.unlink(file)

    def remove_folder(self, folder: Path) -> None:
        """Remove an empty folder."""
        os.rmdir(folder)

    def names(self, folder: Path) -> list[str]:
        """What is in a folder, in order."""
        return sorted(os.listdir(folder))

    def size(self, file: Path) -> int:
        """Bytes of a file."""
        return os.stat(file).st_size

    def ordinary(self, file: Path) -> bool:
        """Is it a file of its own: no folder, no link, no pipe?"""
        return stat.S_ISREG(os.lstat(file).st_mode)

    def identity(self, file: Path) -> tuple[int, int]:
        """What stays the same when it is renamed, and does not when it is copied."""
        found = os.stat(file)
        return found.st_dev, found.st_ino

    def lock(self, file: Path) -> int:
        """A descriptor that holds the lock of a file. Raises BlockingIOError where somebody else does."""
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def unlock(self, descriptor: int) -> None:
        """Let go of a lock, also where a forked process still has its descriptor."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)


DISK = Disk()
