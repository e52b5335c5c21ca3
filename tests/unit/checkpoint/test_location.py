"""What a path means."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.checkpoint.location import Location, locate
from holdfast.checkpoint.writer import write
from holdfast.errors import CheckpointError, DamagedCheckpoint, NotACheckpoint
from tests.unit.checkpoint.contents import content


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    for step in (1, 2):
        write(tmp_path / "run" / "checkpoints", content(step), keep=2)
    return tmp_path / "run"


def test_a_run_its_folder_and_one_checkpoint(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = run / "checkpoints"
    one = root / "step-000000000001"
    assert locate(run) == locate(root) == Location(root)
    assert locate(one) == Location(root, one)
    assert [item.step for item in locate(run).listed()] == [2, 1]
    assert [item.step for item in locate(one).listed()] == [1]
    assert locate(run).newest()[0].manifest.facts.step == 2
    assert locate(one).newest()[0].manifest.facts.step == 1
    root.rename(run.parent / "elsewhere")
    assert locate(run.parent / "elsewhere") == Location(run.parent / "elsewhere")
    (run.parent / "elsewhere" / "step-000000000001").rename(run.parent / "mine")
    assert locate(run.parent / "mine").newest()[0].manifest.facts.step == 1
    monkeypatch.chdir(run.parent / "elsewhere")
    assert locate(Path(".")).newest()[0].manifest.facts.step == 2


def test_what_means_none(run: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run.json").write_text("{}")
    for path, why in [
        (tmp_path / "none", "there is nothing"), (run / "run.json", "it is a file"),
        (tmp_path / "other", "it is a run that has written none"), (tmp_path, "it has no manifest.json"),
    ]:  # fmt: skip
        with pytest.raises(NotACheckpoint) as error:
            locate(path)
        assert error.value.why == why


def test_where_none_is_whole(run: Path) -> None:
    root = run / "checkpoints"
    for step in (1, 2):
        (root / f"step-{step:012d}" / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointError) as error:
        locate(run).newest()
    assert str(error.value).startswith(f"No checkpoint in {root} is whole. The checkpoint {root}/step-000000000002 is")
    (one,) = locate(root / "step-000000000002").listed()
    assert one.step == 2 and isinstance(one.error, DamagedCheckpoint)
    for step in (1, 2):
        (root / f"step-{step:012d}" / "manifest.json").unlink()
        (root / f"step-{step:012d}" / "state.safetensors").unlink()
        (root / f"step-{step:012d}").rmdir()
    with pytest.raises(CheckpointError) as error:
        locate(run).newest()
    assert str(error.value) == f"There is no checkpoint in {root} yet."
