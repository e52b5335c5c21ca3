"""Sources: any run of rows of any file, the same as another reader of the format gives them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import UsageError
from holdfast.serve.predict import table_source
from holdfast.serve.predict.source import UnreadableRows, open_source

FIELDS = st.text(st.sampled_from('ab",\n\r 1é'), max_size=6)


@given(rows=st.lists(st.tuples(FIELDS, FIELDS), max_size=40), piece=st.integers(1, 60), last=st.booleans())
def test_rows_of_csv_begin_where_csv_says(
    rows: list[tuple[str, str]], piece: int, last: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerows([("first", "sec\nond"), *rows])
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    written = text.getvalue()
    path.write_bytes((written if last else written[:-1]).encode())
    before, table_source._PIECE, stride, table_source._STRIDE = table_source._PIECE, piece, table_source._STRIDE, 4
    try:
        source = open_source(str(path))
        assert len(source) == len(rows)
        for begin in range(0, len(rows), 3):
            end = min(len(rows), begin + 5)
            found = source.rows(begin, end)
            assert list(found) == ["first", "sec\nond"]
            for column, (name, array) in enumerate(found.items()):
                for given_, wanted in zip(array, rows[begin:end], strict=True):
                    if array.dtype == object and given_ is not None:
                        assert str(given_) == wanted[column], name
    finally:
        table_source._PIECE, table_source._STRIDE = before, stride


def test_blank_lines_are_no_rows(tmp_path: Path) -> None:
    for text in ("a,b\n1,2\n\n3,4\n\n", "\n\na,b\r\n1,2\r\n\r\n3,4", "\ufeffa,b\n1,2\n3,4"):
        (tmp_path / "a.csv").write_bytes(text.encode())
        source = open_source(str(tmp_path / "a.csv"))
        assert len(source) == 2
        assert source.rows(1, 2)["b"].tolist() == [4]


def test_json_lines(tmp_path: Path) -> None:
    rows = [{"x": [n, n + 0.5], "t": f"t{n}", "odd": [1] * (n % 3), "o": {"a": 1}} for n in range(700)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = open_source(str(tmp_path / "a.jsonl"))
    found = source.rows(250, 600)
    assert len(source) == 700 and sorted(found) == ["odd", "t", "x"]
    assert found["x"].shape == (350, 2) and found["x"][0].tolist() == [250, 250.5]
    assert found["t"][-1] == "t599" and found["odd"].dtype == object
    assert list(source.rows(3, 5, ["t"])) == ["t"]
    with pytest.raises(UnreadableRows, match="there is no y"):
        source.rows(3, 5, ["y"])


def test_parquet_over_groups(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    lists = pyarrow.array([[n, n] for n in range(50)], pyarrow.list_(pyarrow.int16(), 2))
    table = pyarrow.table({"n": list(range(50)), "l": lists, "none": [None, *range(49)]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    source = open_source(str(tmp_path / "a.parquet"))
    for begin, end in ((0, 50), (6, 8), (7, 14), (13, 40), (49, 50)):
        found = source.rows(begin, end)
        assert found["n"].tolist() == list(range(begin, end))
        assert found["l"].tolist() == [[n, n] for n in range(begin, end)]
    assert numpy.isnan(source.rows(0, 2)["none"][0])


def test_a_row_that_is_cut_off_is_unreadable_by_itself(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n3\n5,6\n")
    source = open_source(str(tmp_path / "a.csv"))
    with pytest.raises(UnreadableRows, match="Expected 2 columns, got 1"):
        source.rows(0, 3)
    assert source.rows(0, 1)["b"].tolist() == [2] and source.rows(2, 3)["b"].tolist() == [6]


def test_arrays_and_names(tmp_path: Path) -> None:
    numpy.save(tmp_path / "rows.npy", numpy.arange(12.0).reshape(4, 3))
    source = open_source(str(tmp_path / "rows.npy"))
    assert len(source) == 4 and source.rows(1, 3)["rows"].tolist() == [[3, 4, 5], [6, 7, 8]]
    digits = open_source("digits/test")
    assert len(digits) == 360 and digits.rows(0, 2)["features"].shape == (2, 1, 8, 8)
    assert digits.fingerprint == open_source("digits/test").fingerprint != open_source("digits").fingerprint


def test_what_changes_a_row_changes_the_fingerprint(tmp_path: Path) -> None:
    path, seen = tmp_path / "a.csv", set()
    for text in ("a\n1\n", "a\n2\n", "b\n1\n"):
        path.write_text(text)
        seen.add(open_source(str(path)).fingerprint)
    assert len(seen) == 3


def test_what_is_no_source(tmp_path: Path) -> None:
    (tmp_path / "pickled.npy").write_bytes(b"no array")
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "a.parquet").write_text("no table")
    for name, sentence in (
        ("pickled.npy", "cannot be read as arrays"), ("a.txt", "files end in .npy"), ("a.parquet", "cannot be read: "),
        (".", "is a folder"), ("nothing", "is no file"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=sentence):
            open_source(str(tmp_path / name))


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    numpy.save(tmp_path / "a.npy", numpy.array([{}], object), allow_pickle=True)
    with pytest.raises(UsageError, match="cannot be read as arrays"):
        open_source(str(tmp_path / "a.npy"))
