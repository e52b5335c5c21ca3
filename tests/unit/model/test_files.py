"""Models that are files: a Python class, an estimator of scikit-learn, ONNX; through `holdfast export`, and loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest

from holdfast.cli.main import main
from holdfast.errors import DamagedModel, NotLoaded, UsageError
from holdfast.model.example import Example, decode_example, encode_example
from holdfast.model.kinds import onnx_file, sklearn_estimator
from holdfast.model.library import version_at
from holdfast.model.loading import load
from tests.unit.model.onnx_bytes import matmul

COUNTER = '''
from pathlib import Path

class Counter:
    inputs = [{"name": "text", "datatype": "BYTES", "shape": [-1]}, {"name": "add", "datatype": "INT32", "shape": [-1]}]
    outputs = [{"name": "length", "datatype": "INT64", "shape": [-1]}]
    classes = ("one", "two")
    idempotent = False

    def setup(self, directory):
        self.offset = int(Path(directory, "offset.txt").read_text())

    def predict(self, text, add):
        print("this is not the result")
        return {"length": [len(one) + self.offset + int(more) for one, more in zip(text, add)]}

class Mean:
    def predict(self, x):
        return x.mean(1)

class Texts:
    def predict(self, x):
        return {"said": ["many" if one > 2 else "few" for one in x[:, 0]]}

class Broken:
    def predict(self, x):
        raise RuntimeError("no luck")

class Nothing:
    pass
'''


def export(*words: object) -> int:
    return main(["export", *map(str, words)])


def texts(*values: bytes) -> numpy.ndarray[Any, Any]:
    made = numpy.empty(len(values), dtype=object)
    made[:] = values
    return made


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("counter.py").write_text(COUNTER)
    Path("offset.txt").write_text("100")
    Path("rows.json").write_text('{"x": [[1.0, 2.0], [3.0, 5.0]]}')
    return tmp_path


def test_a_class_that_says_what_goes_in(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export("counter.py:Counter", "--to", "m", "--with", "offset.txt", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["path"], told["kind"], told["name"], told["largest_difference"]) == ("m/1", "python", "counter", None)
    model = load(here / "m")
    assert model.manifest.classes == ("one", "two")
    assert (model.manifest.idempotent, model.manifest.finite) == (False, True)
    answer = model.predict({"text": texts(b"abc", b""), "add": numpy.array([1, 2], "i4")})
    assert answer["length"].tolist() == [104, 102] and answer["length"].dtype == numpy.dtype("i8")
    (here / "counter.py").unlink()
    (here / "m/1/offset.txt").write_text("101")
    with pytest.raises(DamagedModel, match=r"offset\.txt has other bytes"):
        load(here / "m/1")


def test_a_class_and_an_example(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export("counter.py:Mean", "--to", "m", "--example", "rows.json", "--name", "mean", "--classes", "a") == 0
    line = capsys.readouterr().out
    assert line.startswith("model: m/1, python, ") and "ms for one, " in line
    model = load(here / "m")
    (x,), (output,) = model.manifest.signature.inputs, model.manifest.signature.outputs
    assert (x.datatype, x.shape, output.name, output.shape) == ("FP32", (-1, 2), "output", (-1,))
    assert (model.manifest.name, model.manifest.classes) == ("mean", ("a",))
    assert model.predict({"x": numpy.array([[1, 3]], "f4")})["output"].tolist() == [2.0]
    assert export("counter.py:Texts", "--to", "m", "--example", "rows.json") == 0
    assert load(here / "m").manifest.name == "mean"  # it keeps the name that it has
    assert load(here / "m").predict({"x": numpy.array([[1, 3], [4, 0]], "f4")})["said"].tolist() == [b"few", b"many"]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["counter.py:Mean"], 2, "counter.py:Mean does not say what goes in. Give the class `inputs` and `outputs`"),
        (["counter.py:None1"], 2, "counter.py has no class None1."),
        (["counter.py:Nothing"], 2, "counter.py:Nothing has no method predict(self, **inputs)."),
        (["gone.py:Mean"], 2, "gone.py cannot be read (No such file or directory)."),
        (["counter.py:Broken", "--example", "rows.json"], 16, "it raised RuntimeError: no luck. Look at its code."),
        (["counter.py:Mean", "--example", "gone.json"], 2, "gone.json cannot be read"),
        (["counter.py:Mean", "--example", "counter.py"], 2, "counter.py is not JSON"),
        (["counter.py:Mean", "--with", "counter.py"], 2, "Two of the files have one name"),
        (["rows.json"], 2, "rows.json is a file of another kind. A model is exported from a run, a checkpoint"),
        (["gone.onnx"], 2, "gone.onnx cannot be read"),
        (["counter.py:Mean", "--args", "{}"], 2, "--args goes with --module"),
        (["counter.py:Mean", "--example", "rows.json", "--variable", "x"], 2, "--variable x: write INPUT:N"),
        (["nowhere"], 15, "No weights can be taken from nowhere: there is nothing."),
    ],
)
def test_what_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, told: str
) -> None:
    assert export(*words, "--to", "m") == code
    error = capsys.readouterr().err
    assert told in error
    assert len(error.splitlines()) == 1
    assert not list(here.glob("m/[0-9]*")) and not list(here.glob("m/.new*"))


def test_code_that_fails_where_it_is_loaded(here: Path) -> None:
    assert export("counter.py:Counter", "--to", "m", "--with", "offset.txt") == 0
    version = version_at(here / "m/1")
    made = version.manifest.build
    made["class"] = "Gone"
    from holdfast.model.loading import load_version

    with pytest.raises(NotLoaded, match=r"counter\.py has no class Gone"):
        load_version(version)


def test_estimators(here: Path) -> None:
    io = pytest.importorskip("skops.io")
    from sklearn.datasets import load_iris
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.naive_bayes import MultinomialNB
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = load_iris(return_X_y=True)
    names = numpy.array(["setosa", "versicolor", "virginica"])[y]
    for number, estimator in enumerate((
        make_pipeline(StandardScaler(), LogisticRegression()), RandomForestClassifier(5, random_state=0),
        HistGradientBoostingClassifier(max_iter=3), KNeighborsClassifier(),
    ), 1):  # fmt: skip
        io.dump(estimator.fit(x, names), "iris.skops")
        assert export("iris.skops", "--to", "iris") == 0
        model = load(here / "iris")
        assert model.manifest.version == number
        assert model.manifest.classes == ("setosa", "versicolor", "virginica")
        assert [(s.name, s.datatype, s.shape) for s in model.manifest.signature.outputs] == [
            ("label", "BYTES", (-1,)), ("probability", "FP64", (-1, 3)),
        ]  # fmt: skip
        answer = model.predict({"input": x[::10]})
        assert answer["label"].tolist() == [name.encode() for name in estimator.predict(x[::10])]
        assert numpy.array_equal(answer["probability"], estimator.predict_proba(x[::10]))
    io.dump(LinearRegression().fit(x, y), "line.skops")
    assert export("line.skops", "--to", "line") == 0
    assert load(here / "line").manifest.signature.outputs[0].datatype == "FP64"
    words = make_pipeline(CountVectorizer(), MultinomialNB()).fit(["good day", "bad day"], [1, 0])
    io.dump(words, "words.skops")
    assert export("words.skops", "--to", "words") == 2
    Path("text.json").write_text('{"text": ["a good one"]}')
    assert export("words.skops", "--to", "words", "--example", "text.json") == 0
    assert load(here / "words").predict({"text": texts(b"bad", b"good")})["label"].tolist() == [0, 1]


def test_estimators_that_nobody_vouches_for(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    io = pytest.importorskip("skops.io")
    from sklearn.preprocessing import FunctionTransformer

    io.dump(FunctionTransformer(func=numpy.save).fit([[1.0]]), "odd.skops")
    assert export("odd.skops", "--to", "m") == 16
    assert "The estimator cannot be exported: it has types that are neither scikit-learn's nor NumPy's: numpy" in (
        capsys.readouterr().err
    )
    Path("pickle.skops").write_bytes(b"\x80\x04N.")
    assert export("pickle.skops", "--to", "m") == 16
    assert "pickle.skops cannot be exported: skops cannot read it" in capsys.readouterr().err


def test_onnx(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    Path("twice.onnx").write_bytes(matmul([[2.0, 0.0], [0.0, 3.0]]))
    assert export("twice.onnx", "--to", "m") == 0
    model = load(here / "m")
    assert (model.manifest.platform, model.manifest.name) == ("onnxruntime", "twice")
    assert [(s.name, s.datatype, s.shape) for s in model.manifest.signature.inputs] == [("x", "FP32", (-1, 2))]
    x = numpy.array([[1, 1], [2, 5], [0, 1]], "f4")
    x.setflags(write=False)
    answer = model.predict({"x": x})
    assert answer["y"].tolist() == [[2, 3], [4, 15], [0, 3]]
    assert not numpy.may_share_memory(answer["same"], x)
    Path("one.onnx").write_bytes(matmul([[2.0], [1.0]], batch=1))
    Path("x.json").write_text('{"x": [[1.0, 4.0]]}')
    assert export("one.onnx", "--to", "one", "--example", "x.json") == 0
    one = load(here / "one")
    assert one.manifest.signature.batched is False
    assert one.predict({"x": numpy.array([[1, 4]], "f4")})["y"].tolist() == [[6.0]]
    Path("cut.onnx").write_bytes(matmul([[2.0]])[:-5])
    assert export("cut.onnx", "--to", "m") == 16
    assert "cut.onnx cannot be exported: onnxruntime cannot read it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "kind", "data"),
    [("onnxruntime", "onnx", matmul([[2.0]])), ("skops.io", "sklearn", b"anything"), ("sklearn", "sklearn", b"")],
)
def test_a_library_that_is_missing(
    module: str, kind: str, data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib

    real = importlib.import_module

    def missing(name: str, package: str | None = None) -> Any:
        if name == module:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", missing)
    act = {"onnx": onnx_file.draft, "sklearn": sklearn_estimator.draft}[kind]
    with pytest.raises(Exception, match=rf"is not installed. pip install 'holdfast\[{kind}\]'"):
        act(data, "file", "name", None)


def test_examples_survive() -> None:
    half = numpy.array([[0.5, -2.25]], "f2")
    brain = numpy.array([0x3FC0, 0xC010], "<u2")  # 1.5, -2.25
    given = Example(
        {"t": texts(b"a", "é".encode()), "b": numpy.array([[True]]), "h": half, "bf": brain,
         "f": numpy.array([0.1], "f4"), "empty": numpy.zeros((0, 3), "i8")},
        {"t": "BYTES", "b": "BOOL", "h": "FP16", "bf": "BF16", "f": "FP32", "empty": "INT64"},
    )  # fmt: skip
    data = encode_example(given)
    assert b'"data": [0.1]' in data and b'"data": [1.5, -2.25]' in data
    again = decode_example(data, "x")
    assert again.datatypes == given.datatypes
    for name, array in given.arrays.items():
        assert again.arrays[name].tolist() == array.tolist() and again.arrays[name].shape == array.shape


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[1]", "x is a list without names."),
        ("{}", "x is a dict without names."),
        ('{"a": [[1], [1, 2]]}', "'a' is no array"),
        ('{"a": [null]}', "'a' has no numbers or texts in it"),
        ('{"inputs": [{"name": "a", "datatype": "FP33", "shape": [1], "data": [1]}]}', "there is no type 'FP33'"),
        ('{"inputs": [{"name": "a", "datatype": "FP32", "shape": [2], "data": [1]}]}', "input 'a' cannot be read"),
        ('{"inputs": [{"name": "a", "datatype": "FP32", "shape": "2", "data": [1]}]}', "input 'a' cannot be read"),
        ('{"inputs": [{"name": "a", "datatype": "UINT8", "shape": [1], "data": [256]}]}', "input 'a' cannot be read"),
        ('{"inputs": [{"name": "a", "datatype": "BYTES", "shape": [1], "data": [3]}]}', "BYTES are texts in JSON"),
        ('{"inputs": [{"name": "a", "datatype": "FP32", "shape": [1]}]}', "input 'a' cannot be read ('data')"),
    ],
)
def test_examples_that_cannot_be_read(text: str, told: str) -> None:
    with pytest.raises(UsageError) as error:
        decode_example(text.encode(), "x")
    assert told in str(error.value) and "Write a request as" in str(error.value)
