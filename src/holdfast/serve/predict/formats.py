"""What is written: CSV, JSON lines or Parquet, block after block.

The bytes of a block follow from its values alone. CSV and JSON lines are the blocks one after the other. A Parquet file
ends with a table of what is in it, so it cannot be gone on with: blocks are kept as Arrow streams, and made into the
file at the end, in groups of at least 65,536 rows.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy

from holdfast.errors import UsageError
from holdfast.serve.predict.outputs import Column

__all__ = ["FORMATS", "Format", "format_of", "make_format"]

Array = numpy.ndarray[Any, Any]
FORMATS = ("csv", "jsonl", "parquet")
_GROUP = 65_536  #: rows of a group in a Parquet file, at the least


class Format(Protocol):
    """How rows become bytes."""

    def head(self) -> bytes:
        """What stands before the first block."""
        ...

    def encode(self, values: Mapping[str, Array]) -> bytes:
        """A block."""
        ...

    def finish(self, part: Path, ends: Sequence[int], scratch: Path) -> Path:
        """The whole file, made of all blocks in `part`; `ends` says where each ends. It may be made in `scratch`."""
        ...


def format_of(out: Path, told: str = "") -> str:
    """The format, by what was said or by the ending of the file's name. Raises UsageError.

    >>> format_of(Path("a.csv")), format_of(Path("a.out"), "jsonl")
    ('csv', 'jsonl')
    """
    name = told or {".ndjson": "jsonl", ".pq": "parquet"}.get(out.suffix.lower(), out.suffix.lower()[1:])
    if name not in FORMATS:
        what = f"--format {told}: there is no such format" if told else f"--out {out}: its ending says no format"
        raise UsageError(f"{what}. Use one of {', '.join(FORMATS)}, as the ending of --out or with --format.")
    return name


def make_format(name: str, columns: Sequence[Column]) -> Format:
    """The format of this name, for these columns. Raises UsageError."""
    if name == "csv":
        return _Csv(columns)
    if name == "jsonl":
        return _JsonLines(columns)
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise UsageError(
            "pyarrow is missing, which writes Parquet: pip install 'holdfast[predict]', or use --format csv or jsonl."
        ) from None
    return _Parquet(columns)


class _Csv:
    """One column for each number: OUTPUT_0, OUTPUT_1, ... where an output has several."""

    def __init__(self, columns: Sequence[Column]) -> None:
        for column in columns:
            if -1 in column.shape:
                raise UsageError(
                    f"Output {column.name} has {list(column.shape)} numbers a row, -1 being any number of them, and "
                    "CSV has as many columns in every row. Use --format jsonl or parquet."
                )
        self._columns = columns
        kinds = [kind for column in columns for kind in [_PRINTED.get(column.datatype, "%s")] * math.prod(column.shape)]
        self._row = ",".join(kinds) + "\n"

    def head(self) -> bytes:
        names = []
        for column in self._columns:
            each = [column.name]
            for size in column.shape:
                each = [f"{name}_{at}" for name in each for at in range(size)]
            names += each
        return (",".join(map(_quoted, names)) + "\n").encode()

    def encode(self, values: Mapping[str, Array]) -> bytes:
        lists: list[list[Any]] = []
        for column in self._columns:
            array = values[column.name]
            if not len(array):
                return b""
            for numbers in array.reshape(len(array), -1).T:
                if column.datatype == "BYTES":
                    lists.append([_quoted(text) for text in numbers])
                elif column.datatype == "BOOL":
                    lists.append(["true" if value else "false" for value in numbers])
                else:
                    lists.append(numbers.tolist())
        return "".join([self._row % row for row in zip(*lists, strict=True)]).encode()

    def finish(self, part: Path, ends: Sequence[int], scratch: Path) -> Path:
        return part


#: Nine digits say which 32-bit number it is; Python prints as many as a 64-bit number needs.
_PRINTED = {"FP32": "%.9g", "FP64": "%r", "BYTES": "%s", "BOOL": "%s"} | dict.fromkeys(
    ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"), "%d"
)
_SPECIAL = re.compile(r'[",\r\n]')


def _quoted(text: str | None) -> str:
    if text is None:
        return ""
    return '"' + text.replace('"', '""') + '"' if _SPECIAL.search(text) else text


class _JsonLines:
    """An object a row; NaN and infinities, which JSON does not have, are null."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._encode = msgspec.json.Encoder().encode

    def head(self) -> bytes:
        return b""

    def encode(self, values: Mapping[str, Array]) -> bytes:
        names = [column.name for column in self._columns]
        lists = [_plain(values[name]) for name in names]
        rows = [self._encode(dict(zip(names, row, strict=True))) for row in zip(*lists, strict=True)]
        return b"".join([row + b"\n" for row in rows])

    def finish(self, part: Path, ends: Sequence[int], scratch: Path) -> Path:
        return part


def _plain(array: Array) -> list[Any]:
    return [value.tolist() if isinstance(value, numpy.ndarray) else value for value in array.tolist()]


class _Parquet:
    """Outputs as they are: numbers, or lists of lists of them."""

    def __init__(self, columns: Sequence[Column]) -> None:
        import pyarrow

        kinds = {"BOOL": "bool", "BYTES": "string", "FP32": "float32", "FP64": "float64"}
        fields = []
        for column in columns:
            kind: Any = pyarrow.type_for_alias(kinds.get(column.datatype, column.datatype.lower()))
            for size in reversed(column.shape):
                kind = pyarrow.list_(kind, size)  # of a fixed size, unless that is -1
            fields.append(pyarrow.field(column.name, kind))
        self._schema = pyarrow.schema(fields)

    def head(self) -> bytes:
        return b""

    def encode(self, values: Mapping[str, Array]) -> bytes:
        import pyarrow

        made = [_arrow(values[field.name], field.type) for field in self._schema]
        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, self._schema) as stream:
            stream.write_batch(pyarrow.record_batch(made, schema=self._schema))
        return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]

    def finish(self, part: Path, ends: Sequence[int], scratch: Path) -> Path:
        import pyarrow
        import pyarrow.parquet

        whole = scratch / "whole"
        with pyarrow.parquet.ParquetWriter(whole, self._schema) as writer:
            waiting: list[Any] = []
            for table in self._tables(part, ends):
                waiting.append(table)
                if sum(map(len, waiting)) >= _GROUP:
                    writer.write_table(pyarrow.concat_tables(waiting), row_group_size=1 << 30)
                    waiting = []
            if waiting:
                writer.write_table(pyarrow.concat_tables(waiting), row_group_size=1 << 30)
        descriptor = os.open(whole, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return whole

    def _tables(self, part: Path, ends: Sequence[int]) -> Iterator[Any]:
        import pyarrow

        begin = 0
        with part.open("rb") as file:
            for end in ends:
                with pyarrow.ipc.open_stream(file.read(end - begin)) as stream:
                    yield stream.read_all()
                begin = end


def _arrow(array: Array, kind: Any) -> Any:
    """One column; whole arrays are taken as they lie, rows of several shapes and texts as objects."""
    import pyarrow

    if array.dtype == object or array.dtype.kind == "b" or pyarrow.types.is_large_list(kind):
        return pyarrow.array(_plain(array), kind)
    made = pyarrow.array(numpy.ascontiguousarray(array).reshape(-1))
    for depth in range(array.ndim - 1, 0, -1):
        made = pyarrow.FixedSizeListArray.from_arrays(made, array.shape[depth])
    return made if made.type == kind else made.cast(kind)
