"""Tables: CSV, JSON lines and Parquet, read by pyarrow, a run of rows at a time.

Of a text file only where every 256th row begins is kept, so it may be larger than the memory. A row of a CSV file may
have line ends between quotes; blank lines are none.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy

from holdfast.errors import UsageError
from holdfast.serve.predict.source import Array, Source, UnreadableRows

__all__ = ["open_table"]

_STRIDE = 256
_PIECE = 8 << 20
_QUOTE, _LINE, _RETURN = 34, 10, 13


def open_table(path: Path) -> Source:
    """The rows of a file. Raises UsageError."""
    try:
        import pyarrow
    except ImportError:
        raise UsageError(
            f"--data {path}: pyarrow is missing, which reads tables: pip install 'holdfast[predict]'."
        ) from None
    try:
        suffix = path.suffix.lower()
        if suffix == ".parquet":
            return _Parquet(path)
        return _Lines(path, "," if suffix == ".csv" else "\t" if suffix == ".tsv" else "")
    except (OSError, pyarrow.ArrowInvalid, UnicodeDecodeError) as error:
        raise UsageError(f"--data {path} cannot be read: {error}. Look at the file, or name another one.") from None


class _Parquet:
    """A Parquet file; the group of rows that was read last is kept."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet

        with path.open("rb") as file:
            self.fingerprint = hashlib.file_digest(file, "sha256").hexdigest()
        self._file = pyarrow.parquet.ParquetFile(path, memory_map=True)
        metadata = self._file.metadata
        counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        self._begins = numpy.concatenate([[0], numpy.cumsum(counts)]).astype(int)
        self._kept: tuple[int, tuple[str, ...] | None, Any] = (-1, None, None)

    def __len__(self) -> int:
        return int(self._begins[-1])

    def rows(self, begin: int, end: int, columns: Sequence[str] | None = None) -> dict[str, Array]:
        """See `Source`."""
        import pyarrow

        parts = []
        group = int(numpy.searchsorted(self._begins, begin, "right")) - 1
        while begin < end:
            first, last = int(self._begins[group]), int(self._begins[group + 1])
            if first < last:
                parts.append(self._group(group, columns).slice(begin - first, min(end, last) - begin))
                begin = min(end, last)
            group += 1
        return _columns(pyarrow.concat_tables(parts))

    def _group(self, number: int, columns: Sequence[str] | None) -> Any:
        import pyarrow

        wanted = None if columns is None else tuple(columns)
        if self._kept[:2] != (number, wanted):
            try:
                read = self._file.read_row_group(number, columns=None if wanted is None else list(wanted))
            except (OSError, pyarrow.ArrowInvalid) as error:
                raise UnreadableRows(str(error)) from None
            self._kept = (number, wanted, read)
        return self._kept[2]


class _Lines:
    """A file with a row in each line, or nearly: CSV with names in its first; JSON where `delimiter` is empty."""

    def __init__(self, path: Path, delimiter: str) -> None:
        self._delimiter = delimiter
        self._bytes = numpy.memmap(path, numpy.uint8, "r") if path.stat().st_size else numpy.empty(0, numpy.uint8)
        digest, offsets, count = hashlib.sha256(), [], 0
        self._names: list[str] = []
        at = 0  # the first byte that is in no row yet
        for place in range(0, len(self._bytes), _PIECE):
            digest.update(self._bytes[place : place + _PIECE].data)
        while at < len(self._bytes):
            size = _PIECE
            while True:  # a row may be longer than a piece
                piece = self._bytes[at : at + size]
                last = at + len(piece) == len(self._bytes)
                begins, until = _begins(piece, quotes=bool(delimiter), last=last)
                if until or last:
                    break
                size *= 2
            begins = begins + at
            if delimiter and not self._names and len(begins):
                end = int(begins[1]) if len(begins) > 1 else at + until
                header = bytes(self._bytes[begins[0] : end]).decode("utf-8-sig")
                self._names = next(csv.reader([header.strip("\r\n")], delimiter=delimiter))
                begins = begins[1:]
            offsets.append(begins[(-count) % _STRIDE :: _STRIDE])
            count += len(begins)
            at += until
        self.fingerprint, self._length = digest.hexdigest(), count
        self._offsets = numpy.concatenate([*offsets, [len(self._bytes)]]).astype(numpy.int64)

    def __len__(self) -> int:
        return self._length

    def rows(self, begin: int, end: int, columns: Sequence[str] | None = None) -> dict[str, Array]:
        """See `Source`."""
        import pyarrow

        first, last = begin // _STRIDE, -(-end // _STRIDE)
        raw = self._bytes[self._offsets[first] : self._offsets[min(last, len(self._offsets) - 1)]]
        begins, _ = _begins(raw, quotes=bool(self._delimiter), last=True)
        edges = [*begins.tolist(), len(raw)]
        data = raw[edges[begin - first * _STRIDE] : edges[end - first * _STRIDE]].tobytes()
        try:
            table = self._parse(data, columns)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowKeyError, UnicodeDecodeError) as error:
            raise UnreadableRows(str(error)) from None
        if len(table) != end - begin:
            raise UnreadableRows(f"{end - begin} lines have {len(table)} rows")
        return _columns(table)

    def _parse(self, data: bytes, columns: Sequence[str] | None) -> Any:
        import pyarrow.csv
        import pyarrow.json

        reader, size = pyarrow.BufferReader(data), len(data) + 1
        if not self._delimiter:
            options = pyarrow.json.ReadOptions(use_threads=False, block_size=size)
            table = pyarrow.json.read_json(reader, read_options=options)
            if columns is None:
                return table
            if missing := [name for name in columns if name not in table.column_names]:
                raise UnreadableRows(f"there is no {missing[0]}")
            return table.select(list(columns))
        return pyarrow.csv.read_csv(
            reader,
            pyarrow.csv.ReadOptions(use_threads=False, block_size=size, column_names=self._names),
            pyarrow.csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
            pyarrow.csv.ConvertOptions(include_columns=None if columns is None else list(columns)),
        )


def _begins(piece: Array, *, quotes: bool, last: bool) -> tuple[Array, int]:
    """Where rows begin in a piece that begins with one, and where the rows that are whole in it end."""
    ends = numpy.flatnonzero(piece == _LINE)
    if quotes and len(marks := numpy.flatnonzero(piece == _QUOTE)):
        ends = ends[numpy.searchsorted(marks, ends) % 2 == 0]
    until = int(ends[-1]) + 1 if len(ends) else 0
    if last and until < len(piece):
        ends, until = numpy.append(ends, len(piece)), len(piece)
    if not len(ends):
        return ends, 0
    begins = numpy.concatenate([[0], ends[:-1] + 1])
    sizes = ends - begins
    blank = (sizes == 0) | ((sizes == 1) & (piece[begins] == _RETURN))
    return begins[~blank], until


def _columns(table: Any) -> dict[str, Array]:
    columns = zip(table.column_names, table.columns, strict=True)
    made = {name: _array(column.combine_chunks()) for name, column in columns}
    return {name: array for name, array in made.items() if array is not None}


def _array(column: Any) -> Array | None:
    """One column; None where it has neither numbers nor texts. A number that is missing is NaN."""
    import pyarrow.types as types

    kind = column.type
    if types.is_dictionary(kind):
        return _array(column.dictionary_decode())
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _lists(column)
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_null(kind):
        array: Array = column.to_numpy(zero_copy_only=False)
        return array.astype(float) if types.is_null(kind) else array
    if types.is_decimal(kind):
        return column.cast("float64").to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    if types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        return column.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    return None


def _lists(column: Any) -> Array | None:
    """Lists of one length as one array; else as objects."""
    inner = _array(column.flatten())
    if inner is None:
        return None
    if not column.null_count:
        sizes = column.value_lengths().to_numpy(zero_copy_only=False)
        if len(sizes) and (sizes == sizes[0]).all():
            return inner.reshape(len(sizes), int(sizes[0]), *inner.shape[1:])
    made = numpy.empty(len(column), object)
    made[:] = column.to_pylist()
    return made
