"""What `import holdfast` gives, and what it costs."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import holdfast as hf


def test_exported_members() -> None:
    assert hf.__all__ == ["Run", "Step", "__version__", "dataset", "errors", "fit", "join"]
    assert dir(hf) == sorted(hf.__all__)
    for name in hf.__all__:
        assert getattr(hf, name) is not None
    assert hf.join.__module__ == "holdfast.train.run"
    assert hf.Step.__module__ == "holdfast.train.loop.steps"


def test_an_unknown_member() -> None:
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'jion'"):
        hf.jion  # noqa: B018


def test_the_version_is_that_of_the_package() -> None:
    project = Path(__file__).parents[2] / "pyproject.toml"
    assert hf.__version__ == tomllib.loads(project.read_text())["project"]["version"]


@pytest.mark.parametrize("also", ["", "import holdfast.cli.main", "import holdfast.control.machine"])
def test_importing_it_imports_no_torch(also: str) -> None:
    code = f"import sys, holdfast\n{also}\nprint(sorted({{'torch', 'numpy'}} & set(sys.modules)))"
    path = str(Path(hf.__file__).parents[1])
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": path}
    )  # fmt: skip
    assert out.stdout.strip() == "[]"
