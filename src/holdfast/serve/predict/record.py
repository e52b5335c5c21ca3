"""The record of a prediction that is under way: PATH.progress, a folder beside the file that is being made.

    PATH.progress/settings.json   what fixes the bytes of the file: model, data, blocks, columns, format, versions
                  part            the blocks that are done, one after the other
                  blocks.jsonl    a line for each of them: where it ends, its hash, its rows, and those left out
                  logs/           what replicas printed
                  lock            held while somebody works at it

A line is written when what it speaks of is safely on the disk. So after any kill the lines say what is done; whatever
else is in `part` is cut off. The file gets its name when all blocks are done, and then the folder goes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from holdfast.checkpoint.disk import DISK
from holdfast.errors import DirectoryBusy, ResourceError, UsageError

__all__ = ["BadRowFound", "BlockDone", "Record"]

_PIECE = 4 << 20


class BadRowFound(NamedTuple):
    """A row that has no outputs, and why."""

    row: int
    reason: str


class BlockDone(msgspec.Struct, frozen=True):
    """A block in `part`."""

    block: int
    end: int
    sha256: str
    rows: int
    bad: tuple[tuple[int, str], ...] = ()
    given: bool | None = None  #: are the model's scores probabilities? (`likely`)


_decode = msgspec.json.Decoder(BlockDone).decode


class Record:
    """Use `take`, then `begin`; `add` and `commit` while blocks come; `finish` at the end. `close` lets go of it."""

    def __init__(self, out: Path, folder: Path, lock: int) -> None:
        self.out, self.folder, self._lock = out, folder, lock
        self.done: list[BlockDone] = []
        self.lost = 0  #: blocks that were not as they were written, and are computed again
        self._new: list[BlockDone] = []
        self._part = self._lines = -1

    @classmethod
    def take(cls, out: Path, *, fresh: bool) -> Record:
        """Make the folder, or take the one that is there; with `fresh`, what is in it is removed.

        Raises:
            DirectoryBusy: somebody is at it.
            ResourceError: it cannot be written.
        """
        folder = out.with_name(out.name + ".progress")
        try:
            folder.mkdir(exist_ok=True)
            lock = DISK.lock(folder / "lock")
        except BlockingIOError:
            raise DirectoryBusy(
                f"{out} is being made by another `holdfast predict`. Use another --out, or wait until that has ended."
            ) from None
        except OSError as error:
            raise ResourceError(
                f"{folder} cannot be used: {error.strerror}. Name another --out, in a folder that is there and can be "
                "written."
            ) from None
        if fresh:
            for name in ("settings.json", "part", "blocks.jsonl", "whole"):
                (folder / name).unlink(missing_ok=True)
            shutil.rmtree(folder / "logs", ignore_errors=True)
        (folder / "logs").mkdir(exist_ok=True)
        return cls(out, folder, lock)

    @property
    def begun(self) -> bool:
        """Is there something to go on from?"""
        return (self.folder / "settings.json").exists()

    def begin(self, settings: dict[str, Any], head: bytes, blocks: int) -> None:
        """Begin, or go on where the same was begun before. `head` stands before the first block.

        Raises:
            UsageError: something else was begun there, or is there already.
            ResourceError: the disk does not take it.
        """
        file = self.folder / "settings.json"
        if self.begun:
            self._compare(settings, file)
        elif self.out.exists() and not settings["replace"]:
            raise self._there()
        try:
            if not self.begun:
                new = self.folder / "settings.new"
                with new.open("wb") as made:
                    made.write(msgspec.json.format(msgspec.json.encode(settings)))
                    made.flush()
                    os.fsync(made.fileno())
                os.replace(new, file)
                DISK.sync_folder(self.folder)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._lines = os.open(self.folder / "blocks.jsonl", flags, 0o666)
            self._read()
            if self._is_named(blocks):
                return
            if len(self.done) < blocks and self.out.exists() and not self._replaces(file):
                raise self._there()
            self._part = os.open(self.folder / "part", flags, 0o666)
            self._verify(head)
        except OSError as error:
            raise self._full(error) from None

    def _compare(self, settings: dict[str, Any], file: Path) -> None:
        try:
            before = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
        except (msgspec.DecodeError, OSError) as error:
            raise UsageError(f"{file} cannot be read ({error}). Add --fresh to begin again.") from None
        now = msgspec.json.decode(msgspec.json.encode(settings))
        if before.get("replace"):
            now["replace"] = True
        other = [f"{name} {before.get(name)}, now {now.get(name)}" for name in now if before.get(name) != now[name]]
        if other:
            raise UsageError(
                f"{self.out} was begun with something else: {'; '.join(other)}. Half of the file would be of the one "
                "and half of the other. Ask for the same again, add --fresh to begin again, or name another --out."
            )

    def _read(self) -> None:
        data, good = _all(self._lines), 0
        for line in data.splitlines(keepends=True):
            try:
                one = _decode(line)
            except msgspec.DecodeError:
                break
            if not line.endswith(b"\n") or one.block != len(self.done):
                break
            self.done.append(one)
            good += len(line)
        if good < len(data):
            os.ftruncate(self._lines, good)
        os.lseek(self._lines, good, os.SEEK_SET)

    def _is_named(self, blocks: int) -> bool:
        """Was all done, and the file has its name already?"""
        return len(self.done) == blocks and self.out.exists() and not (self.folder / "part").exists()

    def _verify(self, head: bytes) -> None:
        """Keep those blocks that are as they were written, and cut off everything after them."""
        at = len(head)
        if not self.done:
            os.ftruncate(self._part, 0)
            os.lseek(self._part, 0, os.SEEK_SET)
            _write(self._part, head)
            return
        os.lseek(self._part, 0, os.SEEK_SET)
        whole = _piece(self._part, at) == head
        for number, one in enumerate(self.done):
            if not whole or hashlib.sha256(_piece(self._part, one.end - at)).hexdigest() != one.sha256:
                self.lost = len(self.done) - number
                lines = b"".join(msgspec.json.encode(kept) + b"\n" for kept in self.done[:number])
                os.ftruncate(self._lines, len(lines))
                os.lseek(self._lines, len(lines), os.SEEK_SET)
                del self.done[number:]
                break
            at = one.end
        if not whole:
            self._verify(head)
            return
        os.ftruncate(self._part, at)
        os.lseek(self._part, at, os.SEEK_SET)

    def add(self, data: bytes, rows: int, bad: Sequence[BadRowFound], *, given: bool | None) -> None:
        """The next block. Raises ResourceError."""
        at = os.lseek(self._part, 0, os.SEEK_CUR)
        try:
            _write(self._part, data)
        except OSError as error:
            raise self._full(error) from None
        digest = hashlib.sha256(data).hexdigest()
        left_out = tuple((found.row, found.reason) for found in bad)
        one = BlockDone(len(self.done), at + len(data), digest, rows, left_out, given)
        self.done.append(one)
        self._new.append(one)

    def commit(self) -> None:
        """What was added is safe from now on. Raises ResourceError."""
        if not self._new:
            return
        try:
            os.fsync(self._part)
            _write(self._lines, b"".join(msgspec.json.encode(one) + b"\n" for one in self._new))
            os.fsync(self._lines)
        except OSError as error:
            raise self._full(error) from None
        self._new = []

    @property
    def bad(self) -> list[BadRowFound]:
        """All rows that are left out."""
        return [BadRowFound(*found) for one in self.done for found in one.bad]

    def finish(self, make: Any) -> None:
        """All blocks are done: give the file its name, list what was left out, and remove the folder.

        `make` is the format's `finish`. Raises ResourceError.
        """
        self.commit()
        listed = self.out.with_name(self.out.name + ".bad.jsonl")
        try:
            if (self.folder / "part").exists():
                whole = make(self.folder / "part", [one.end for one in self.done], self.folder)
                if self.bad:
                    new = self.folder / "bad"
                    new.write_bytes(b"".join(msgspec.json.encode(found._asdict()) + b"\n" for found in self.bad))
                    os.replace(new, listed)
                else:
                    listed.unlink(missing_ok=True)  # of the file that was there before
                os.replace(whole, self.out)
                (self.folder / "part").unlink(missing_ok=True)
                DISK.sync_folder(self.out.absolute().parent)
        except OSError as error:
            raise self._full(error) from None
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        """Let go of it. A folder in which nothing was begun is removed."""
        for descriptor in (self._part, self._lines):
            if descriptor >= 0:
                os.close(descriptor)
        self._part = self._lines = -1
        if self.folder.exists() and not self.begun:
            shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            DISK.unlock(self._lock)

    def _replaces(self, file: Path) -> bool:
        return bool(msgspec.json.decode(file.read_bytes())["replace"])

    def _there(self) -> UsageError:
        return UsageError(
            f"{self.out} is there already. Name another --out, or add --fresh: it is replaced when the new one is "
            "whole."
        )

    def _full(self, error: OSError) -> ResourceError:
        return ResourceError(
            f"{self.out} cannot be written: {error.strerror or error}. What is done is kept in {self.folder}: make "
            "room, and run the same command again to go on."
        )


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _piece(descriptor: int, size: int) -> bytes:
    parts = []
    while size > 0 and (data := os.read(descriptor, min(size, _PIECE))):
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


def _all(descriptor: int) -> bytes:
    return _piece(descriptor, os.fstat(descriptor).st_size)
