"""What is sent along to an agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.config.limits import AGENT
from holdfast.errors import UsageError
from holdfast.hosts.script_files import ScriptFiles, has_same, safe_name


def test_the_script_and_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import helper")
    (tmp_path / "helper.py").write_text("")
    (tmp_path / "data.bin").write_bytes(b"not along")
    (tmp_path / "package.py").mkdir()
    script_files = ScriptFiles(str(tmp_path / "train.py"))
    assert list(script_files.digests) == ["train.py", "helper.py"], "the script's own first"
    assert list(script_files.pieces()) == [("train.py", b"import helper", False), ("helper.py", b"", True)]
    assert script_files.refusal() == ""
    assert has_same(str(tmp_path / "train.py"), script_files.digests)
    (tmp_path / "helper.py").write_text("changed")
    assert not has_same(str(tmp_path / "train.py"), script_files.digests)
    assert not has_same(str(tmp_path / "elsewhere" / "train.py"), script_files.digests)


def test_too_much_does_not_travel(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(b"#" * (AGENT.script_bytes + 2**20))
    script_files = ScriptFiles(str(tmp_path / "train.py"))
    assert script_files.refusal() == (
        "the script and the Python files beside it are 5.0 MiB, and no more than 4 MiB are sent along; copy "
        f"{tmp_path} to the same path on that machine"
    )
    pieces = list(script_files.pieces())
    assert sum(len(data) for _, data, _ in pieces) == AGENT.script_bytes + 2**20
    assert [last for *_, last in pieces].count(True) == 1 and pieces[-1][2]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b.py", "../a.py", "a\0b", "x" * 300])
def test_names_from_elsewhere_are_names(name: str) -> None:
    with pytest.raises(UsageError, match="which cannot lie beside a script"):
        safe_name(name)
