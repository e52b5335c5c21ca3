"""Where rows come from: files of arrays and tables, and the data sets that have a name.

A source has a length, gives any run of its rows, and has a fingerprint that is another one when a row is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy

from holdfast.data.sources import SOURCES, dataset
from holdfast.errors import UsageError

__all__ = ["Array", "ArraySource", "Source", "UnreadableRows", "open_source"]

Array = numpy.ndarray[Any, Any]
_TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")


class UnreadableRows(ValueError):
    """Of the rows that were asked for, one or more cannot be read; its text says what is wrong."""


class Source(Protocol):
    """Rows of named columns."""

    @property
    def fingerprint(self) -> str:
        """Says which rows these are."""
        ...

    def __len__(self) -> int: ...

    def rows(self, begin: int, end: int, columns: Sequence[str] | None = None) -> dict[str, Array]:
        """Rows `begin` to `end`, by column: arrays of that many rows; of these columns, or of all.

        Rows whose lists differ in length, and texts, are objects. Raises UnreadableRows.
        """
        ...


class ArraySource:
    """Arrays that lie in memory, or are mapped into it; one row of each belongs to one row of the others."""

    def __init__(self, name: str, columns: dict[str, Array], fingerprint: str) -> None:
        lengths = {column: len(array) if array.ndim else -1 for column, array in columns.items()}
        if len(set(lengths.values())) != 1 or -1 in lengths.values():
            told = ", ".join(f"{column} {list(array.shape)}" for column, array in columns.items()) or "none"
            raise UsageError(f"{name}: its arrays do not have one row for each other ({told}). Take out the others.")
        self._columns, self.fingerprint = columns, fingerprint
        self._length = next(iter(lengths.values()))

    def __len__(self) -> int:
        return self._length

    def rows(self, begin: int, end: int, columns: Sequence[str] | None = None) -> dict[str, Array]:
        """See `Source`."""
        return {
            name: array[begin:end] for name, array in self._columns.items() if columns is None or name in columns
        }


def open_source(text: str) -> Source:
    """The source that a text names: a file by its ending, or a data set as NAME or NAME/SPLIT.

    Raises UsageError.
    """
    path, suffix = Path(text), Path(text).suffix.lower()
    if path.is_file():
        if suffix in (".npy", ".npz"):
            return _arrays(path)
        if suffix in _TABLES:
            from holdfast.serve.predict.table_source import open_table

            return open_table(path)
        raise UsageError(f"--data {text}: files end in .npy, .npz or {', '.join(_TABLES)}, and this one does not.")
    name, _, split = text.partition("/")
    if name in SOURCES:
        found = dataset(name, split or "train")
        digest = hashlib.sha256(found.features.data)
        digest.update(found.labels.data)
        return ArraySource(text, {"features": found.features, "labels": found.labels}, digest.hexdigest())
    what = "is a folder" if path.is_dir() else "is no file"
    raise UsageError(
        f"--data {text} {what}, and there is no data set that is called so. Give a file (.npy, .npz, "
        f"{', '.join(_TABLES)}), or one of {', '.join(sorted(SOURCES))}, also as {min(SOURCES)}/test."
    )


def _arrays(path: Path) -> ArraySource:
    with path.open("rb") as file:
        fingerprint = hashlib.file_digest(file, "sha256").hexdigest()
    try:
        if path.suffix.lower() == ".npy":
            return ArraySource(str(path), {path.stem: numpy.load(path, mmap_mode="r", allow_pickle=False)}, fingerprint)
        with numpy.load(path, allow_pickle=False) as stored:
            return ArraySource(str(path), {name: stored[name] for name in stored.files}, fingerprint)
    except (OSError, ValueError, EOFError) as error:
        if isinstance(error, UsageError):
            raise
        what = f"--data {path} cannot be read as arrays: {error}"
        raise UsageError(f"{what}. Write it with numpy.save or savez.") from None
