"""Outputs as columns, and columns as bytes of each format."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest

from holdfast.errors import UsageError
from holdfast.model.manifest import ModelManifest
from holdfast.model.signature import Signature, TensorSpec
from holdfast.serve.predict.formats import make_format
from holdfast.serve.predict.likely import are_probabilities, likeliest
from holdfast.serve.predict.outputs import Outputs, Piece, arrays, layout
from holdfast.serve.predict.source import UnreadableRows
from holdfast.serve.protocol.requests import InferOutput
from holdfast.serve.protocol.tensors import pack_bytes


def manifest(*outputs: TensorSpec, classes: tuple[str, ...] = (), batched: bool = True) -> ModelManifest:
    signature = Signature((TensorSpec("x", "FP32", (-1,)),), outputs, batched)
    return ModelManifest(
        name="m", version=1, kind="python", platform="python", signature=signature, classes=classes, files={},
        created=0.0,
    )  # fmt: skip


SCORES = manifest(TensorSpec("scores", "FP32", (-1, 3)), classes=("a", 'b "or" so', "c"))


def written(format: str, made: ModelManifest, pieces: list[Piece], tmp_path: Path, top: int = 2) -> Any:
    columns = layout(made, top, numbered=True)
    outputs, form = Outputs(made, columns, top, None), make_format(format, columns)
    part = tmp_path / f"part.{format}"
    blocks = [form.encode(outputs.columns([piece])) for piece in pieces]
    part.write_bytes(form.head() + b"".join(blocks))
    ends = [len(b"".join(blocks[: at + 1])) for at in range(len(blocks))]
    whole = form.finish(part, ends, tmp_path)
    if format == "csv":
        return list(csv.DictReader(io.StringIO(whole.read_text(), newline="")))
    if format == "jsonl":
        return [json.loads(line) for line in whole.read_text().splitlines()]
    import pyarrow.parquet

    return pyarrow.parquet.read_table(whole).to_pylist()


def test_labels_of_every_format(tmp_path: Path) -> None:
    scores = numpy.array([[1, 2, 3], [0, 5, 5], [numpy.nan, 0, 0]], numpy.float32)
    pieces = [Piece(0, {"scores": scores[:2]}), Piece(7, {"scores": scores[2:]})]
    for format in ("csv", "jsonl", "parquet"):
        rows = written(format, SCORES, pieces, tmp_path)
        assert [int(row["row"]) for row in rows] == [0, 1, 7]
        assert [row["label"] for row in rows[:2]] == ["c", 'b "or" so'] and not rows[2]["label"]
        assert float(rows[0]["probability"]) == pytest.approx(0.66524096)
    assert rows[1]["scores"] == [0, 5, 5] and rows[2]["probability"] != rows[2]["probability"]
    assert written("jsonl", SCORES, pieces, tmp_path)[2]["scores"] == [None, 0, 0]


def test_numbers_come_back_as_they_were(tmp_path: Path) -> None:
    values = numpy.frombuffer(numpy.random.default_rng(1).bytes(4000), numpy.float32)
    values = values[numpy.isfinite(values)][:900].reshape(-1, 3)
    specs = TensorSpec("scores", "FP32", (-1, 3)), TensorSpec("d", "FP64", (-1,)), TensorSpec("n", "UINT8", (-1,))
    made = manifest(*specs)
    doubles = values[:, 0].astype(float) / 3
    pieces = [Piece(0, {"scores": values, "d": doubles, "n": numpy.arange(len(values)).astype("u1")})]
    table = written("csv", made, pieces, tmp_path)
    assert numpy.array_equal(numpy.array([row["scores_1"] for row in table], numpy.float32), values[:, 1])
    assert [float(row["d"]) for row in table] == doubles.tolist()
    for format in ("jsonl", "parquet"):
        rows = written(format, made, pieces, tmp_path)
        assert numpy.array_equal(numpy.array([row["scores"] for row in rows], numpy.float32), values)
        assert [row["d"] for row in rows] == doubles.tolist() and rows[5]["n"] == 5


def test_texts_truths_and_shapes_that_vary(tmp_path: Path) -> None:
    made = manifest(
        TensorSpec("t", "BYTES", (-1,)), TensorSpec("b", "BOOL", (-1, 2)), TensorSpec("v", "INT64", (-1, -1)),
    )  # fmt: skip
    texts = numpy.array(["a,b", 'q"é\n'], object)
    truths = numpy.array([[True, False], [False, True]])
    pieces = [
        Piece(0, {"t": texts[:1], "b": truths[:1], "v": numpy.array([[1, 2]])}),
        Piece(1, {"t": texts[1:], "b": truths[1:], "v": numpy.array([[3]])}),
    ]
    joined = Outputs(made, layout(made, 1, numbered=False), 1, None).columns(pieces)
    assert joined["v"].dtype == object and list(joined) == ["t", "b", "v"]
    for format in ("jsonl", "parquet"):
        rows = written(format, made, pieces, tmp_path)
        assert [row["t"] for row in rows] == texts.tolist() and rows[0]["b"] == [True, False]
        assert [row["v"] for row in rows] == [[1, 2], [3]]
    with pytest.raises(UsageError, match=r"Output v has \[-1\] numbers a row"):
        make_format("csv", layout(made, 1, numbered=False))
    fixed = manifest(TensorSpec("t", "BYTES", (-1,)), TensorSpec("b", "BOOL", (-1, 2)))
    rows = written("csv", fixed, [Piece(0, {"t": texts, "b": truths})], tmp_path)
    assert [row["t"] for row in rows] == texts.tolist() and [row["b_1"] for row in rows] == ["false", "true"]


def test_a_block_of_which_nothing_is_left(tmp_path: Path) -> None:
    columns = layout(SCORES, 1, numbered=True)
    for format in ("csv", "jsonl", "parquet"):
        make_format(format, columns).encode(Outputs(SCORES, columns, 1, None).columns([]))


def test_answers_as_arrays() -> None:
    specs = [TensorSpec("t", "BYTES", (-1,)), TensorSpec("h", "BF16", (-1, 1))]
    sixteen = (numpy.array([[1.5], [-2.0]], "<f4").view("<u4") >> 16).astype("<u2")
    answer = [
        InferOutput("t", "BYTES", (2,), pack_bytes([b"a", "é".encode()])),
        InferOutput("h", "BF16", (2, 1), sixteen.tobytes()),
    ]
    made = arrays(specs, answer, batched=True)
    assert made["t"].tolist() == ["a", "é"] and made["h"].tolist() == [[1.5], [-2.0]]
    with pytest.raises(UnreadableRows, match="its output t is no text in UTF-8"):
        arrays(specs[:1], [InferOutput("t", "BYTES", (1,), pack_bytes([b"\xff"]))], batched=True)
    alone = arrays([TensorSpec("y", "FP32", (3,))], [InferOutput("y", "FP32", (3,), bytes(12))], batched=False)
    assert alone["y"].shape == (1, 3)


def test_what_are_probabilities_is_decided_once() -> None:
    given = numpy.array([[0.25, 0.75], [1.0, 0.0]])
    assert are_probabilities(given) and not are_probabilities(given * 2)
    assert not are_probabilities(numpy.array([[numpy.nan, 1.0]]))
    order, likely = likeliest(given, 5, given=True)
    assert order.tolist() == [[1, 0], [0, 1]] and likely.tolist() == [[0.75, 0.25], [1.0, 0.0]]
    outputs = Outputs(SCORES, layout(SCORES, 1, numbered=False), 1, False)
    columns = outputs.columns([Piece(0, {"scores": numpy.array([[0.0, 0.0, 1.0]], numpy.float32)})])
    assert columns["probability"][0] < 0.6 and outputs.given is False


def test_names_that_are_taken() -> None:
    made = manifest(TensorSpec("label", "FP32", (-1, 2)), classes=("a", "b"))
    assert [column.name for column in layout(made, 1, numbered=False)] == ["label", "probability", "output_label"]
    assert msgspec.json.encode(made)
