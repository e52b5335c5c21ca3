"""The kind `program`: models of several sorts, traced, written, loaded and asked again; and what cannot be traced."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from holdfast.errors import NotExportable, NotLoaded, OtherAnswers, UsageError
from holdfast.model import loading
from holdfast.model.calls import outputs_of
from holdfast.model.conversion import from_torch
from holdfast.model.example import decode_example
from holdfast.model.export import Exported, ExportOptions, export_module
from holdfast.model.library import version_at
from holdfast.model.loading import load
from holdfast.model.manifest import WEIGHTS
from tests.unit.model.nets import Branches, Fields, Images, Lengths, Words, Writes


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def exported(module: nn.Module, root: Path, *args: Any, **said: Any) -> Exported:
    torch.manual_seed(3)
    return export_module(module, args, root, ExportOptions(**said))


def expected(module: nn.Module, *args: torch.Tensor) -> dict[str, numpy.ndarray[Any, Any]]:
    module.eval()
    with torch.no_grad():
        return {name: from_torch(value) for name, value in outputs_of(module(*args)).items()}


def close(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert list(one) == list(other)
    for name in one:
        assert one[name].dtype == other[name].dtype
        numpy.testing.assert_allclose(one[name], other[name], rtol=1e-5, atol=1e-6)


def test_convolution_normalisation_and_dropout(tmp_path: Path) -> None:
    module = Images()
    module(torch.randn(16, 1, 8, 8))  # statistics that are not those it began with
    module.train()
    module.conv.eval()
    made = exported(module, tmp_path / "m", torch.randn(3, 1, 8, 8), classes=tuple("abcde"))
    assert (module.training, module.conv.training, module.norm.training) == (True, False, True)
    assert made.difference is not None and made.difference < 1e-5
    assert min(made.load_seconds, made.one_seconds, made.many_seconds) > 0
    manifest = made.version.manifest
    assert (manifest.name, manifest.kind, manifest.platform) == ("Images", "program", "pytorch_export")
    assert manifest.classes == tuple("abcde") and manifest.version == 1
    (image,), (output,) = manifest.signature.inputs, manifest.signature.outputs
    assert (image.name, image.datatype, image.shape) == ("image", "FP32", (-1, 1, 8, 8))
    assert (output.name, output.datatype, output.shape) == ("output", "FP32", (-1, 5))
    assert {"python", "numpy", "torch", "holdfast"} >= manifest.frameworks.keys() >= {"torch", "numpy"}
    model = load(tmp_path / "m")
    for size in (1, 2, 3, 7, 64):
        x = torch.randn(size, 1, 8, 8)
        close(model.predict({"image": x.numpy()}), expected(module, x))
    example = decode_example((tmp_path / "m/1/example.json").read_bytes(), "example")
    assert example.arrays["image"].shape == (1, 1, 8, 8)
    assert model.predict(example.arrays)["output"].shape == (1, 5)


def test_random_numbers_go_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    x = torch.randn(2, 3)
    module = Fields()
    after = torch.get_rng_state()
    export_module(module, (x,), tmp_path / "m", ExportOptions())
    assert torch.equal(torch.get_rng_state(), after)


def test_several_inputs_whole_numbers_and_a_dict(tmp_path: Path) -> None:
    module = Words()
    made = exported(module, tmp_path / "m", torch.randint(0, 20, (4, 5)), torch.rand(4, 1))
    signature = made.version.manifest.signature
    assert [(s.name, s.datatype, s.shape) for s in signature.inputs] == [
        ("tokens", "INT64", (-1, 5)), ("scale", "FP32", (-1, 1)),
    ]  # fmt: skip
    assert [(s.name, s.shape) for s in signature.outputs] == [("score", (-1, 4)), ("share", (-1, 4))]
    assert "constants.safetensors" in made.version.manifest.files
    model = load(tmp_path / "m/1")
    for size in (1, 3):
        tokens, scale = torch.randint(0, 20, (size, 5)), torch.rand(size, 1)
        close(model.predict({"scale": scale.numpy(), "tokens": tokens.numpy()}), expected(module, tokens, scale))


def test_a_named_tuple_and_a_value_that_is_always_the_same(tmp_path: Path) -> None:
    module = Fields()
    made = exported(module, tmp_path / "m", torch.randn(2, 3), True)
    assert [(s.name, s.datatype, s.shape) for s in made.version.manifest.signature.outputs] == [
        ("low", "FP32", (-1,)), ("best", "INT64", (-1,)),
    ]  # fmt: skip
    x = torch.randn(5, 3)
    module.eval()
    with torch.no_grad():
        low, best = module(x, True)
    close(load(tmp_path / "m").predict({"x": x.numpy()}), {"low": low.numpy(), "best": best.numpy()})


def test_a_dimension_that_may_have_any_size(tmp_path: Path) -> None:
    module = Lengths()
    made = exported(module, tmp_path / "m", torch.randint(0, 20, (1, 6)), variable={"tokens": (1,)})
    signature = made.version.manifest.signature
    assert signature.inputs[0].shape == (-1, -1)
    assert [s.shape for s in signature.outputs] == [(-1, -1, 3), (-1, 3)]
    model = load(tmp_path / "m")
    for shape in ((1, 1), (4, 9), (2, 6)):
        tokens = torch.randint(0, 20, shape)
        close(model.predict({"tokens": tokens.numpy()}), expected(module, tokens))


def test_half_precision(tmp_path: Path) -> None:
    module = nn.Linear(4, 2).to(torch.bfloat16)
    made = exported(module, tmp_path / "m", torch.randn(2, 4).to(torch.bfloat16))
    assert [s.datatype for s in made.version.manifest.signature.inputs] == ["BF16"]
    x = torch.randn(3, 4).to(torch.bfloat16)
    (answer,) = load(tmp_path / "m").predict({"input": from_torch(x)}).values()
    assert numpy.array_equal(answer, expected(module, x)["output"])


def test_what_goes_in_is_not_written_to(tmp_path: Path) -> None:
    module = Writes()
    exported(module, tmp_path / "m", torch.randn(2, 2))
    x = torch.randn(3, 2)
    want = expected(module, x.clone())
    array = x.numpy().copy()
    array.setflags(write=False)
    close(load(tmp_path / "m").predict({"x": array}), want)
    assert numpy.array_equal(array, x.numpy())


def test_an_answer_is_no_view_of_what_went_in(tmp_path: Path) -> None:
    exported(nn.Identity(), tmp_path / "m", torch.randn(2, 2))
    array = numpy.ones((3, 2), "f4")
    (answer,) = load(tmp_path / "m").predict({"input": array}).values()
    array[:] = 7
    assert answer.tolist() == [[1, 1]] * 3


def test_views_of_odd_memory(tmp_path: Path) -> None:
    """A request's tensor may begin at any byte, and need not lie in a row."""
    module = nn.Linear(4, 2)
    exported(module, tmp_path / "m", torch.randn(2, 4))
    x = torch.randn(3, 4)
    memory = bytearray(1) + x.numpy().tobytes()
    odd = numpy.frombuffer(memory, "<f4", offset=1).reshape(3, 4)
    assert not odd.flags.aligned
    model, want = load(tmp_path / "m"), expected(module, x)
    close(model.predict({"input": odd}), want)
    close(model.predict({"input": numpy.asfortranarray(x.numpy())}), want)


def test_one_request_at_a_time(tmp_path: Path) -> None:
    class Sums(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum(0)

    with pytest.raises(NotExportable, match=r"output has the shape \[3\] for 2 items and \[3\] for 3: its first"):
        exported(Sums(), tmp_path / "m", torch.randn(4, 3))
    made = exported(Sums(), tmp_path / "m", torch.randn(4, 3), batched=False)
    assert made.version.manifest.signature.batched is False
    assert made.version.manifest.signature.inputs[0].shape == (4, 3)
    assert made.many_seconds == 0


def test_what_cannot_be_traced_says_why_and_the_other_road(tmp_path: Path) -> None:
    with pytest.raises(NotExportable) as told:
        exported(Branches(), tmp_path / "m", torch.randn(2, 3))
    assert str(told.value).startswith("Branches cannot be exported: torch.export cannot trace it (")
    assert "holdfast export RUN --to DIR --module FILE.py:Branches --args JSON" in str(told.value)
    with pytest.raises(NotExportable, match=r"input tokens, dimension 1, as dynamic but your code specialized it"):
        exported(Words(), tmp_path / "m", torch.randint(0, 20, (4, 5)), torch.rand(4, 1), variable={"tokens": (1,)})
    assert not list(tmp_path.glob("m/*"))


def test_random_answers_are_noticed(tmp_path: Path) -> None:
    class Noise(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand_like(x)

    with pytest.raises(OtherAnswers, match="Noise, exported and loaded again, does not answer as before"):
        exported(Noise(), tmp_path / "m", torch.randn(2, 3))
    assert [path.name for path in (tmp_path / "m").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("args", "said", "told"),
    [
        ((torch.ones(2, 3), [1]), {}, "its argument double is a list, and a request has tensors"),
        ((), {}, "it was called without a tensor"),
        ((torch.ones(2, 3, dtype=torch.complex64),), {}, "its tensor x is of torch.complex64"),
    ],
)
def test_calls_that_no_request_can_make(tmp_path: Path, args: Any, said: Any, told: str) -> None:
    with pytest.raises(NotExportable, match=told):
        exported(Fields(), tmp_path / "m", *args, **said)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"classes": ("a", "b")}, r"2 classes were named, and no output has as many entries: output \[-1, 5\]\."),
        ({"variable": {"y": (1,)}}, "There is no input y. The inputs are input."),
        ({"variable": {"input": (7,)}}, r"Input input has the shape \[2, 4\], and no dimension 7"),
    ],
)
def test_what_does_not_fit_the_model(tmp_path: Path, said: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        exported(nn.Linear(4, 5), tmp_path / "m", torch.randn(2, 4), **said)


def test_requests_that_do_not_fit(tmp_path: Path) -> None:
    exported(Words(), tmp_path / "m", torch.randint(0, 20, (4, 5)), torch.rand(4, 1))
    model = load(tmp_path / "m")
    tokens, scale = numpy.zeros((2, 5), "i8"), numpy.zeros((2, 1), "f4")
    for given, told in (
        ({"tokens": tokens}, "Input scale is missing."),
        ({"tokens": tokens, "scale": scale, "more": scale}, "There is no input more; there is tokens, scale."),
        ({"tokens": tokens[:, :2], "scale": scale}, "Input tokens has the shape [2, 2], and must be [-1, 5]."),
        ({"tokens": tokens, "scale": scale[:1]}, "The inputs have 1, 2 items; let it be one."),
    ):
        with pytest.raises(UsageError) as error:
            model.predict(given)
        assert str(error.value) == told


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = exported(Words(), tmp_path / "m", torch.randint(0, 20, (4, 5)), torch.rand(4, 1))
    for file in made.version.manifest.files:
        data = (made.version.path / file).read_bytes()
        assert not data.startswith((b"PK", b"\x80")), file

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("something was unpickled")

    for place, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(place, name, refused)
    assert load(tmp_path / "m").predict(
        {"tokens": numpy.zeros((2, 5), "i8"), "scale": numpy.ones((2, 1), "f4")}
    )["score"].shape == (2, 4)  # fmt: skip


def test_a_program_of_a_torch_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._export.serde import serialize

    exported(nn.Linear(4, 5), tmp_path / "m", torch.randn(2, 4))

    def fails(*_: object) -> None:
        raise serialize.SerializeError("Serialized schema version 99 does not match")

    monkeypatch.setattr(serialize, "_bytes_to_dataclass", fails)
    with pytest.raises(NotLoaded) as told:
        load(tmp_path / "m")
    assert f"torch {torch.__version__} cannot read a program of torch " in str(told.value)
    assert "SerializeError: Serialized schema version 99 does not match" in str(told.value)


def test_one_after_the_other(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        assert exported(nn.Linear(4, 5), tmp_path / "m", torch.randn(2, 4)).version.path.name == str(number)
    version = version_at(tmp_path / "m/2")
    assert version.manifest.version == 2
    assert len(loading.load_version(version).manifest.files[WEIGHTS].sha256) == 64


def test_a_process_that_was_warmed_up_imports_nothing_to_load(tmp_path: Path) -> None:
    """And has the threads that torch has when it is imported, so it may fork as before."""
    exported(Images(), tmp_path / "m", torch.randn(2, 1, 8, 8))
    code = (
        "import os, sys, torch; from pathlib import Path; torch.set_num_threads(1); "
        "threads = len(os.listdir('/proc/self/task'));  from holdfast.model import loading; "
        "from holdfast.model.kinds import program; program.warm_up(); before = set(sys.modules); "
        "loading.load(Path('m')); "
        "print(sorted(set(sys.modules) - before), len(os.listdir('/proc/self/task')) - threads)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "[] 0\n"
