"""The kind `module`, and new versions from a checkpoint's weights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from holdfast.checkpoint.content import Tensor
from holdfast.checkpoint.disk import DISK
from holdfast.checkpoint.stream import write_tensors
from holdfast.errors import DamagedModel, NotExportable, NotLoaded, OtherModel
from holdfast.model.conversion import as_stored
from holdfast.model.export import ExportOptions, export_module
from holdfast.model.library import version_at
from holdfast.model.loading import load
from holdfast.model.publishing import publish_weights
from tests.unit.model.nets import Branches, Words

NETS = Path(__file__).parent / "nets.py"


def saved(module: nn.Module, file: Path, prefix: str = "") -> Path:
    state = {prefix + name: value for name, value in module.state_dict().items()}
    write_tensors(DISK, file, as_stored(state))
    return file


def branches(root: Path, spec: str, arguments: Any = None) -> Branches:
    module = Branches(4)
    options = ExportOptions(module=spec, arguments={"width": 4} if arguments is None else arguments)
    assert export_module(module, (torch.randn(3, 4),), root, options).version.manifest.kind == "module"
    return module.eval()


@pytest.mark.parametrize("spec", [f"{NETS}:Branches", "tests.unit.model.nets:Branches"])
def test_a_module_by_its_class(spec: str, tmp_path: Path) -> None:
    module = branches(tmp_path / "m", spec, [4] if "nets.py" in spec else None)
    model = load(tmp_path / "m")
    assert ("nets.py" in model.manifest.files) == ("nets.py:" in spec)
    assert model.manifest.platform == "pytorch_module"
    for sign in (1, -1):
        x = torch.rand(5, 4) * sign
        with torch.no_grad():
            want = module(x).numpy()
        array = x.numpy().copy()
        array.setflags(write=False)
        numpy.testing.assert_allclose(model.predict({"x": array})["output"], want, rtol=1e-6)


def test_a_module_that_cannot_be_built(tmp_path: Path) -> None:
    branches(tmp_path / "m", f"{NETS}:Branches")
    version = version_at(tmp_path / "m/1")
    from holdfast.model.kinds import module_class

    for change, error, told in (
        ({"arguments": {"width": 5}}, NotLoaded, "it cannot be built (RuntimeError: Error(s) in loading state_dict"),
        ({"arguments": {"high": 5}}, NotLoaded, "unexpected keyword argument 'high'"),
        ({"class": "Pair", "arguments": [1, 2]}, NotLoaded, "it made a Pair, which is no torch.nn.Module"),
        ({"class": "Fields", "arguments": None}, NotLoaded, "it cannot be built"),
        ({"class": "None1"}, NotLoaded, "nets.py has no class None1"),
        ({"file": "", "class": "no_such_package:X"}, NotLoaded, "No module named 'no_such_package'"),
        ({"call": {"arguments": 3}}, DamagedModel, "does not say how it is called"),
    ):
        before = dict(version.manifest.build)
        version.manifest.build.update(change)
        with pytest.raises(error) as raised:
            module_class.load(version)
        assert told in str(raised.value)
        version.manifest.build.clear()
        version.manifest.build.update(before)
    module_class.load(version)


def test_new_weights_for_a_program(tmp_path: Path) -> None:
    first, second = Words(), Words()
    given = (torch.randint(0, 20, (4, 5)), torch.rand(4, 1))
    export_module(first, given, tmp_path / "m", ExportOptions(classes=tuple("abcd"), source={"step": 1}))
    weights = saved(second, tmp_path / "second.safetensors")
    assert publish_weights(tmp_path / "m", weights, source={"step": 9}) == tmp_path / "m/2"
    old, new = version_at(tmp_path / "m/1").manifest, version_at(tmp_path / "m/2").manifest
    assert (new.version, new.classes, new.signature, new.kind) == (2, old.classes, old.signature, old.kind)
    assert new.source == {"weights": "second.safetensors", "step": 9}
    assert new.files["program.json"] == old.files["program.json"]
    assert (tmp_path / "m/1/program.json").stat().st_ino != (tmp_path / "m/2/program.json").stat().st_ino
    arrays = {"tokens": given[0].numpy(), "scale": given[1].numpy()}
    for number, module in ((1, first), (2, second)):
        with torch.no_grad():
            want = module.eval()(*given)["score"].numpy()
        answer = load(tmp_path / f"m/{number}").predict(arrays)["score"]
        numpy.testing.assert_allclose(answer, want, rtol=1e-5, atol=1e-6)


def test_names_of_a_run_with_several_models(tmp_path: Path) -> None:
    """`names` says what the run calls a weight, and which it does not have."""
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    names = {"0.weight": "1.fc.weight", "0.bias": "1.fc.bias", "1.weight": "", "1.bias": ""}
    export_module(module, (torch.randn(2, 2),), tmp_path / "m", ExportOptions(names=names))
    other = nn.Linear(2, 2)
    publish_weights(tmp_path / "m/1", saved(other, tmp_path / "w.safetensors", "1.fc."))
    x = torch.randn(3, 2)
    with torch.no_grad():
        want = module[1](other(x)).numpy()
    numpy.testing.assert_allclose(load(tmp_path / "m").predict({"input": x.numpy()})["output"], want, rtol=1e-5)


def test_weights_of_another_model(tmp_path: Path) -> None:
    export_module(nn.Linear(2, 2), (torch.randn(2, 2),), tmp_path / "m", ExportOptions())
    with pytest.raises(OtherModel, match=r"weight is float32 \[2, 2\] in .*/m/1 and float32 \[3, 2\] here"):
        publish_weights(tmp_path / "m", saved(nn.Linear(2, 3), tmp_path / "w.safetensors"))
    write_tensors(DISK, tmp_path / "x.safetensors", {"y": Tensor("float32", (1,), bytes(4))})
    with pytest.raises(OtherModel, match="and not there here"):
        publish_weights(tmp_path / "m", tmp_path / "x.safetensors")
    assert [path.name for path in sorted((tmp_path / "m").iterdir())] == [".lock", "1"]


def test_a_kind_without_weights(tmp_path: Path) -> None:
    from holdfast.model.kinds.python_class import draft
    from holdfast.model.user_code import parse_class
    from holdfast.model.version_writer import write_version

    file = tmp_path / "one.py"
    file.write_text(
        "class One:\n  inputs = outputs = [{'name': 'x', 'datatype': 'FP32', 'shape': [-1]}]\n"
        "  def predict(self, x): return x\n"
    )
    write_version(tmp_path / "m", draft(parse_class(f"{file}:One"), "one", None, variable={})[0])
    with pytest.raises(NotExportable, match=r"of the kind python cannot be exported: .* has no weights of its own"):
        publish_weights(tmp_path / "m", saved(nn.Linear(1, 1), tmp_path / "w.safetensors"))


def test_publishing_and_looking_need_no_torch(tmp_path: Path) -> None:
    export_module(nn.Linear(2, 2), (torch.randn(2, 2),), tmp_path / "m", ExportOptions())
    saved(nn.Linear(2, 2), tmp_path / "w.safetensors")
    code = (
        "import sys; from pathlib import Path; from holdfast.model.publishing import publish_weights; "
        "from holdfast.model.library import open_version, versions; import holdfast.model.manifest; "
        "print(publish_weights(Path('m'), Path('w.safetensors')), len(versions(Path('m'))), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["m/2", "2", "False"]
