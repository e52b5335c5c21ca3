"""A disk in memory that does what real ones do on their worst day: forgets what was not synced, rots, is full.

Every operation is counted and named. `before` and `after` are asked around each one and may raise; once they have
raised Killed, nothing more is done, as by a process that is dead.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path

from holdfast.checkpoint.disk import Disk


class Killed(BaseException):
    """The process is gone."""


class File:
    """`data` is what processes see; `durable` what has reached the disk."""

    def __init__(self) -> None:
        self.data, self.durable = bytearray(), b""


class Folder:
    def __init__(self) -> None:
        self.entries: dict[str, File | Folder] = {}
        self.durable: dict[str, File | Folder] = {}


Operation = tuple[str, str]  # what, of which name


class MemoryDisk(Disk):
    def __init__(self) -> None:
        self.top = Folder()
        self.log: list[Operation] = []
        self.before: Callable[[int, Operation], None] = lambda number, operation: None
        self.after: Callable[[int, Operation], None] = lambda number, operation: None
        self.rots: Callable[[Path], bool] = lambda file: False  #: a bit of this file changes on its way to the disk
        self._dead = False
        self._open: dict[int, tuple[File, Path]] = {}
        self._locks: dict[int, Path] = {}
        self._next = 3

    # ---- what tests do

    def kill_at(self, number: int, *, after: bool = False) -> None:
        def die(now: int, operation: Operation) -> None:
            if now == number:
                self._dead = True
                raise Killed

        if after:
            self.after = die
        else:
            self.before = die

    def restart(self) -> None:
        """Another process looks at the same disk."""
        self._dead = False
        self.before = self.after = lambda number, operation: None
        self._open.clear()
        self._locks.clear()
        self.log.clear()

    def lose_power(self, chance: random.Random | None = None) -> None:
        """What was not synced is gone; with `chance`, some of it."""
        self._lose(self.top, chance)
        self.restart()

    def file(self, path: Path) -> File:
        found = self._at(path)
        assert isinstance(found, File)
        return found

    def _lose(self, folder: Folder, chance: random.Random | None) -> None:
        for name in {*folder.entries, *folder.durable}:
            if chance is None or chance.random() < 0.5:
                if name in folder.durable:
                    folder.entries[name] = folder.durable[name]
                else:
                    del folder.entries[name]
        for name, item in folder.durable.items():  # nothing has two names afterwards: file systems see to that
            if folder.entries.get(name) is item:
                folder.entries = {n: i for n, i in folder.entries.items() if i is not item or n == name}
        folder.durable = dict(folder.entries)
        for item in folder.entries.values():
            if isinstance(item, Folder):
                self._lose(item, chance)
            elif chance is None or chance.random() < 0.5:
                item.data = bytearray(item.durable)

    # ---- what a disk does

    def make_folder(self, folder: Path) -> None:
        with _Doing(self, "make_folder", folder):
            parent = self._folder(folder.parent)
            if folder.name in parent.entries:
                raise _error(errno.EEXIST)
            parent.entries[folder.name] = Folder()

    def create(self, file: Path) -> int:
        with _Doing(self, "create", file):
            parent = self._folder(file.parent)
            if file.name in parent.entries:
                raise _error(errno.EEXIST)
            made = parent.entries[file.name] = File()
            return self._opened(made, file)

    def open(self, file: Path) -> int:
        with _Doing(self, "open", file):
            found = self._at(file)
            if isinstance(found, Folder):
                raise _error(errno.EISDIR)
            return self._opened(found, file)

    def write(self, descriptor: int, data: memoryview) -> int:
        file, path = self._open[descriptor]
        with _Doing(self, "write", path):
            taken = max(1, len(data) // 2)  # a disk need not take all
            file.data += data[:taken]
            return taken

    def read(self, descriptor: int, into: memoryview, begin: int) -> int:
        file, path = self._open[descriptor]
        with _Doing(self, "read", path):
            piece = file.data[begin : begin + len(into)]
            into[: len(piece)] = piece
            return len(piece)

    def sync(self, descriptor: int) -> None:
        file, path = self._open[descriptor]
        with _Doing(self, "sync", path):
            file.durable = bytes(file.data)
            if self.rots(path):
                file.durable = file.durable[:-1] + bytes([file.durable[-1] ^ 4])

    def sync_folder(self, folder: Path) -> None:
        with _Doing(self, "sync_folder", folder):
            found = self._folder(folder)
            found.durable = dict(found.entries)

    def forget(self, descriptor: int) -> None:
        file, path = self._open[descriptor]
        with _Doing(self, "forget", path):
            if len(file.durable) == len(file.data):  # what is not synced is not dropped
                file.data = bytearray(file.durable)

    def close(self, descriptor: int) -> None:
        with _Doing(self, "close", self._open[descriptor][1]):
            del self._open[descriptor]

    def rename(self, old: Path, new: Path) -> None:
        with _Doing(self, "rename", new):
            item = self._at(old)
            parent = self._folder(new.parent)
            if new.name in parent.entries:
                raise _error(errno.ENOTEMPTY)
            del self._folder(old.parent).entries[old.name]
            parent.entries[new.name] = item

    def remove(self, file: Path) -> None:
        with _Doing(self, "remove", file):
            if isinstance(self._at(file), Folder):
                raise _error(errno.EISDIR)
            del self._folder(file.parent).entries[file.name]

    def remove_folder(self, folder: Path) -> None:
        with _Doing(self, "remove_folder", folder):
            if self._folder(folder).entries:
                raise _error(errno.ENOTEMPTY)
            del self._folder(folder.parent).entries[folder.name]

    def names(self, folder: Path) -> list[str]:
        with _Doing(self, "names", folder):
            return sorted(self._folder(folder).entries)

    def size(self, file: Path) -> int:
        with _Doing(self, "size", file):
            return len(self.file(file).data)

    def ordinary(self, file: Path) -> bool:
        with _Doing(self, "ordinary", file):
            return isinstance(self._at(file), File)

    def identity(self, file: Path) -> tuple[int, int]:
        with _Doing(self, "identity", file):
            return 0, id(self._at(file))

    def lock(self, file: Path) -> int:
        with _Doing(self, "lock", file):
            parent = self._folder(file.parent)
            if file in self._locks.values():
                raise _error(errno.EAGAIN)
            item = parent.entries.setdefault(file.name, File())
            assert isinstance(item, File)
            descriptor = self._opened(item, file)
            self._locks[descriptor] = file
            return descriptor

    def unlock(self, descriptor: int) -> None:
        with _Doing(self, "unlock", self._locks[descriptor]):
            del self._locks[descriptor], self._open[descriptor]

    def _opened(self, file: File, path: Path) -> int:
        self._next += 1
        self._open[self._next] = file, path
        return self._next

    def _at(self, path: Path) -> File | Folder:
        item: File | Folder = self.top
        for name in path.parts[1:]:
            if isinstance(item, File):
                raise _error(errno.ENOTDIR)
            if name not in item.entries:
                raise _error(errno.ENOENT)
            item = item.entries[name]
        return item

    def _folder(self, path: Path) -> Folder:
        found = self._at(path)
        if isinstance(found, File):
            raise _error(errno.ENOTDIR)
        return found


class _Doing:
    """One operation, with what happens around it."""

    def __init__(self, disk: MemoryDisk, what: str, path: Path) -> None:
        self._disk, self._operation = disk, (what, path.name)

    def __enter__(self) -> None:
        disk = self._disk
        if disk._dead:
            raise Killed
        disk.log.append(self._operation)
        self._number = len(disk.log) - 1
        disk.before(self._number, self._operation)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not Killed:
            self._disk.after(self._number, self._operation)


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
