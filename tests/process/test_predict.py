"""`holdfast predict`: each row once, in order, whatever is killed; formats, rows that fail, and what is refused."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest

from holdfast.model.kinds import python_class
from holdfast.model.user_code import parse_class
from holdfast.model.version_writer import write_version

pytestmark = [pytest.mark.process]

WAIT = 60.0
ROWS = 2000
_MODEL = """
import os, signal, time
import numpy

class Model:
    inputs = [{{"name": "x", "datatype": "FP32", "shape": [-1, 2]}}]
    outputs = [{{"name": "scores", "datatype": "FP32", "shape": [-1, 3]}}]
    classes = ("one", "two, or so", "three")
    idempotent = {idempotent}

    def predict(self, x):
        time.sleep({seconds})
        if (x[:, 0] == 13).any():
            raise ValueError("13 is no good")
        if (x[:, 0] == 666).any():
            os.kill(os.getpid(), signal.SIGKILL)
        scores = numpy.stack([x[:, 0], x[:, 1], x[:, 0] - x[:, 1]], axis=1)
        scores[x[:, 0] == 77] = numpy.nan
        return scores.astype(numpy.float32) * numpy.float32({factor})
"""


@pytest.fixture
def make_model(tmp_path: Path) -> Callable[..., Path]:
    """Writes versions of a model that is as slow as it is told to be."""

    def make(seconds: float = 0.0, factor: float = 0.1, *, idempotent: bool = True) -> Path:
        file = tmp_path / "model.py"
        file.write_text(_MODEL.format(seconds=seconds, factor=factor, idempotent=idempotent))
        draft, _ = python_class.draft(parse_class(f"{file}:Model"), "three", None, variable={})
        write_version(tmp_path / "three", draft)
        return tmp_path / "three"

    return make


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Rows that the model has something to say of."""
    rows = numpy.random.default_rng(0).normal(size=(ROWS, 2)).astype(numpy.float32)
    numpy.save(tmp_path / "rows.npy", rows)
    return tmp_path / "rows.npy"


def words(model: Path, data: Path, out: Path, *options: object) -> list[str]:
    given = ["predict", model, "--data", data, "--out", out, "--workers", 2, "--batch", 20, *options]
    return [sys.executable, "-m", "holdfast.cli.main", *map(str, given)]


def predict(model: Path, data: Path, out: Path, *options: object, code: int = 0) -> str:
    """One that comes to its end; what it has printed."""
    done = subprocess.run(words(model, data, out, *options), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


class Started:
    """One that is going; ended with the block."""

    def __init__(self, *given: object) -> None:
        self.process = subprocess.Popen(
            words(*given), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )  # type: ignore[arg-type]
        self.out = Path(str(given[2]))
        self.printed = ""

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.printed += self.process.communicate()[0] or ""

    def blocks(self) -> int:
        """How many the record has."""
        try:
            return (Path(f"{self.out}.progress") / "blocks.jsonl").read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0

    def until(self, condition: Callable[[], object], what: str) -> None:
        until = time.monotonic() + WAIT
        while not condition():
            if self.process.poll() is not None or time.monotonic() > until:
                self.__exit__()
                raise AssertionError(f"not {what}:\n{self.printed}")
            time.sleep(0.01)

    def replicas(self) -> list[int]:
        """Pids: children of the forkserver, which is its only child."""
        return [pid for child in children(self.process.pid) for pid in children(child)]

    def end(self) -> str:
        self.printed += self.process.communicate(timeout=120)[0] or ""
        return self.printed


def children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    except OSError:
        pass
    return found


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ---------------------------------------------------------------- what is written


def test_each_row_once_in_order_in_every_format(make_model: Callable[..., Path], data: Path, tmp_path: Path) -> None:
    import pyarrow.parquet

    model, rows = make_model(), numpy.load(data)
    predict(model, data, tmp_path / "a.csv", "--index", "--top", 2)
    told = json.loads(predict(model, data, tmp_path / "a.jsonl", "--index", "--top", 2, "--json").splitlines()[0])
    predict(model, data, tmp_path / "a.parquet", "--index", "--top", 2)
    wanted = numpy.stack([rows[:, 0], rows[:, 1], rows[:, 0] - rows[:, 1]], axis=1) * numpy.float32(0.1)
    with (tmp_path / "a.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    parquet = pyarrow.parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert [line["row"] for line in lines] == list(range(ROWS)) == [int(line["row"]) for line in table]
    assert lines == parquet
    assert numpy.array_equal(numpy.array([line["scores"] for line in lines], numpy.float32), wanted)
    for at in range(3):
        assert numpy.array_equal(numpy.array([line[f"scores_{at}"] for line in table], numpy.float32), wanted[:, at])
    names = ("one", "two, or so", "three")
    order = (-wanted).argsort(axis=1)
    assert [line["label"] for line in table] == [names[at] for at in order[:, 0]]
    assert [line["label_2"] for line in lines] == [names[at] for at in order[:, 1]]
    likely = numpy.exp(wanted.astype(float))
    likely /= likely.sum(axis=1, keepdims=True)
    assert numpy.allclose([line["probability"] for line in lines], likely.max(axis=1))
    assert told["sha256"] == sha(tmp_path / "a.jsonl") and told["written"] == ROWS and told["bad"] == 0
    assert sorted(tmp_path.glob("*.progress")) == []


def test_tables_in_give_what_arrays_give(make_model: Callable[..., Path], data: Path, tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    model, rows = make_model(), numpy.load(data)
    predict(model, data, tmp_path / "arrays.csv")
    columns = {"a": rows[:, 0], "b": rows[:, 1]}
    with (tmp_path / "rows.csv").open("w") as file:
        file.write('a,"note, of a kind",b\n')
        file.writelines(f'{a!r},"line {n}\nand ""another""",{b!r}\n' for n, (a, b) in enumerate(rows.tolist()))
    with (tmp_path / "rows.jsonl").open("w") as file:
        file.writelines(json.dumps({"x": row}) + "\n" for row in rows.tolist())
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "rows.parquet", row_group_size=300)
    numpy.savez(tmp_path / "rows.npz", x=rows, label=rows[:, 0])
    for name in ("rows.csv", "rows.jsonl", "rows.parquet", "rows.npz"):
        out = tmp_path / f"{name}.out.csv"
        predict(model, tmp_path / name, out)
        assert sha(out) == sha(tmp_path / "arrays.csv"), name


def test_a_model_that_takes_one_request_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "lengths.py").write_text("""
class Model:
    inputs = [{"name": "text", "datatype": "BYTES", "shape": []}, {"name": "n", "datatype": "INT64", "shape": [2]}]
    outputs = [{"name": "said", "datatype": "BYTES", "shape": []}, {"name": "length", "datatype": "INT64", "shape": []}]
    batched = False

    def predict(self, text, n):
        return {"said": text.item() + b"!" * int(n.sum()), "length": len(text.item())}
""")
    draft, _ = python_class.draft(parse_class(f"{tmp_path / 'lengths.py'}:Model"), "lengths", None, variable={})
    write_version(tmp_path / "lengths", draft)
    rows = [{"text": "é" * (row % 5), "a": row % 2, "b": 1} for row in range(50)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    predict(tmp_path / "lengths", tmp_path / "rows.jsonl", tmp_path / "a.jsonl", "--columns", "n=a,b")
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert lines == [
        {"said": row["text"] + "!" * (row["a"] + row["b"]), "length": 2 * len(row["text"])} for row in rows
    ]


# ---------------------------------------------------------------- what is killed


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM], ids=lambda number: number.name)
def test_a_replica_that_is_lost_changes_nothing(
    make_model: Callable[..., Path], data: Path, tmp_path: Path, number: signal.Signals
) -> None:
    model = make_model(0.03)
    predict(model, data, tmp_path / "a.csv", "--workers", 1)
    with Started(model, data, tmp_path / "b.csv") as one:
        one.until(lambda: one.blocks() > 5, "under way")
        lost = one.replicas()[0]
        os.kill(lost, number)
        printed = one.end()
        assert one.process.returncode == 0, printed
    assert "replica 0" in printed or "replica 1" in printed
    assert sha(tmp_path / "b.csv") == sha(tmp_path / "a.csv")


@pytest.mark.parametrize("format", ["csv", "jsonl", "parquet"])
def test_after_everything_was_killed_the_same_command_goes_on(
    make_model: Callable[..., Path], data: Path, tmp_path: Path, format: str
) -> None:
    model, out = make_model(0.06), tmp_path / f"b.{format}"
    predict(model, data, tmp_path / f"a.{format}")
    done = 0
    for _ in range(2):
        with Started(model, data, out) as one:
            one.until(lambda before=done: one.blocks() > before + 5, "under way")
            below = [*children(one.process.pid), *one.replicas()]
            one.process.kill()
            one.process.wait()
            until = time.monotonic() + WAIT
            while any(Path(f"/proc/{pid}").exists() for pid in below):
                assert time.monotonic() < until, "a process is left"
                time.sleep(0.01)
            done = one.blocks()
        assert not out.exists()
    assert f"goes on after {20 * done:,} of 2,000 rows" in predict(model, data, out, "--workers", 1)
    assert sha(out) == sha(tmp_path / f"a.{format}")
    assert not Path(f"{out}.progress").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_asked_to_end_it_keeps_what_is_done(
    make_model: Callable[..., Path], data: Path, tmp_path: Path, number: signal.Signals
) -> None:
    model, out = make_model(0.03), tmp_path / "b.csv"
    with Started(model, data, out) as one:
        one.until(lambda: one.blocks() > 5, "under way")
        one.process.send_signal(number)
        printed = one.end()
        assert one.process.returncode == 128 + number, printed
    assert "rows are done and kept in" in printed and "run the same command again" in printed
    assert not out.exists()
    assert "goes on after" in predict(model, data, out)
    predict(model, data, tmp_path / "a.csv")
    assert sha(out) == sha(tmp_path / "a.csv")


# ---------------------------------------------------------------- rows that fail


def test_a_row_that_fails_is_named_and_can_be_left_out(make_model: Callable[..., Path], tmp_path: Path) -> None:
    rows = numpy.zeros((200, 2), numpy.float32)
    rows[:, 1] = numpy.arange(200)
    rows[47, 0], rows[99, 0], rows[150, 0] = 13, 77, 666
    numpy.save(tmp_path / "rows.npy", rows)
    model, data, out = make_model(), tmp_path / "rows.npy", tmp_path / "a.jsonl"
    printed = predict(model, data, out, "--index", code=3)
    assert "Row 47 has no outputs: ValueError: 13 is no good." in printed and "The 40 rows before" in printed
    assert not out.exists()
    printed = predict(model, data, out, "--index", "--bad", "skip", "--json")
    assert "goes on after 40 of 200 rows" in printed and "3 rows are left out" in printed
    found = [json.loads(line) for line in Path(f"{out}.bad.jsonl").read_text().splitlines()]
    assert [one["row"] for one in found] == [47, 99, 150]
    assert found[0]["reason"] == "ValueError: 13 is no good"
    assert "not finite" in found[1]["reason"] and "replicas were lost" in found[2]["reason"]
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["row"] for line in lines] == [row for row in range(200) if row not in (47, 99, 150)]
    assert [round(line["scores"][1] * 10) for line in lines] == [line["row"] for line in lines]


def test_a_row_that_cannot_be_read_is_named(make_model: Callable[..., Path], tmp_path: Path) -> None:
    lines = [f"{row + 1000},{row}" for row in range(100)]
    lines[61], lines[70] = "1061,many", "1070"
    (tmp_path / "rows.csv").write_text("a,b\n" + "\n".join(lines) + "\n")
    out = tmp_path / "a.csv"
    assert "Row 61 has no outputs: b is no number" in predict(make_model(), tmp_path / "rows.csv", out, code=3)
    assert "2 rows are left out" in predict(tmp_path / "three", tmp_path / "rows.csv", out, "--bad", "skip")
    bad = [json.loads(line) for line in Path(f"{out}.bad.jsonl").read_text().splitlines()]
    assert [one["row"] for one in bad] == [61, 70] and "CSV parse error" in bad[1]["reason"]


# ---------------------------------------------------------------- what is refused


def test_something_else_than_was_begun_is_refused(make_model: Callable[..., Path], data: Path, tmp_path: Path) -> None:
    model, out = make_model(0.03), tmp_path / "a.csv"
    with Started(model, data, out) as one:
        one.until(lambda: one.blocks() > 3, "under way")
        assert "is being made by another" in predict(model, data, out, code=8)
        one.process.send_signal(signal.SIGTERM)
        one.end()
    assert "batch 20, now 30" in predict(model, data, out, "--batch", 30, code=2)
    assert "written" in predict(model, data, out, "--index", code=2)
    rows = numpy.load(data)
    rows[-1, -1] += 1
    numpy.save(data, rows)
    assert "data_sha256" in predict(model, data, out, code=2)
    make_model(0.0, 0.2)
    printed = predict(model, data, out, code=2)
    assert "model three version 1, now three version 2" in printed and "--fresh" in printed
    predict(model, data, out, "--fresh")
    predict(model, data, tmp_path / "b.csv")
    assert sha(out) == sha(tmp_path / "b.csv")
    before = out.stat().st_mtime_ns
    assert "is there already" in predict(model, data, out, code=2)
    assert out.stat().st_mtime_ns == before


def test_data_that_changes_meanwhile_is_noticed(make_model: Callable[..., Path], data: Path, tmp_path: Path) -> None:
    with Started(make_model(0.03), data, tmp_path / "a.csv") as one:
        one.until(lambda: one.blocks() > 3, "under way")
        os.utime(data)
        assert "was changed while it was read" in one.end()
    assert not (tmp_path / "a.csv").exists()


def test_what_cannot_be_is_refused(make_model: Callable[..., Path], data: Path, tmp_path: Path) -> None:
    model = make_model()
    numpy.save(tmp_path / "wide.npy", numpy.zeros((5, 3), numpy.float32))
    numpy.save(tmp_path / "none.npy", numpy.zeros((0, 2), numpy.float32))
    numpy.savez(tmp_path / "uneven.npz", a=numpy.zeros(3), b=numpy.zeros(4))
    (tmp_path / "texts.csv").write_text("a,b\nhello,there\n")
    out = tmp_path / "a.csv"
    for given, options, sentence in (
        (tmp_path / "nowhere.csv", (), "there is no data set that is called so"),
        (tmp_path / "wide.npy", (), "Input x of the model"),
        (tmp_path / "none.npy", (), "has no rows"),
        (tmp_path / "uneven.npz", (), "do not have one row for each other"),
        (tmp_path / "texts.csv", (), "has no column"),
        (tmp_path / "texts.csv", ("--columns", "x=a,b"), "takes numbers, and a has texts"),
        (data, ("--columns", "x=nothing"), "there is no column 'nothing'"),
        (data, ("--columns", "y=rows"), "there is no such input"),
        (data, ("--format", "xml"), "there is no such format"),
        (data, ("--workers", 0), "must be at least 1"),
    ):
        assert sentence in predict(model, given, out, *options, code=2), sentence
        assert not list(tmp_path.glob("a.csv*")), sentence
    assert "cannot be used: No such file or directory" in predict(model, data, tmp_path / "no" / "a.csv", code=7)
    make_model(idempotent=False)
    assert "may not be computed twice" in predict(model, data, out, code=2)
