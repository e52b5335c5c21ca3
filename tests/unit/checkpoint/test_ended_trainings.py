"""What trainings that are over leave for later ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.checkpoint import writer
from holdfast.checkpoint.ended_trainings import TrainingEnd, ended_trainings, forget, keep, open_ended
from holdfast.errors import CheckpointError
from tests.unit.checkpoint.contents import content

END = TrainingEnd({"steps": 8, "loss": float("inf")}, [{"n": "3"}, {"n": "4"}])


def test_what_was_kept_is_found(tmp_path: Path) -> None:
    for number in (1, 2):
        keep(tmp_path, number, content(8, weights=number), END)
    assert [one.number for one in ended_trainings(tmp_path)] == [1, 2]
    ended = open_ended(tmp_path, 2)
    assert ended.end == END and ended.checkpoint.manifest.control["position"] == [1, 2]
    assert bytes(ended.checkpoint.read("settings")) == b"\x01\x02\x03"


def test_one_that_is_made_anew_takes_those_after_it_along(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        keep(tmp_path, number, content(8), END)
    forget(tmp_path, 2)
    assert [one.number for one in ended_trainings(tmp_path)] == [1]
    keep(tmp_path, 1, content(8, weights=5), END)  # what it has ended with now
    assert ended_trainings(tmp_path)[0].checkpoint.manifest.files != []


def test_one_that_is_damaged_or_gone(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as gone:
        open_ended(tmp_path, 1)
    assert str(gone.value) == (
        f"{tmp_path}/trainings/1 should hold what training 1 of the run has ended with, without which no later one can "
        "go on: There is nothing. Put that folder back, or start the run again in another --dir."
    )
    keep(tmp_path, 1, content(8), END)
    (folder,) = tmp_path.glob("trainings/1/step-*")
    data, manifest = folder / "state.safetensors", folder / "manifest.json"
    data.write_bytes(data.read_bytes()[:-1] + b"!")
    with pytest.raises(CheckpointError, match="has other bytes than were written"):
        for name in (ended := open_ended(tmp_path, 1)).checkpoint.manifest.tensors:
            ended.checkpoint.read(name)
    manifest.write_bytes(manifest.read_bytes().replace(b"train.py", b"trail.py"))
    assert ended_trainings(tmp_path) == []
    with pytest.raises(CheckpointError, match=r"no later one can go on: .*manifest.json has other bytes than were"):
        open_ended(tmp_path, 1)


def test_one_that_does_not_say_how_it_ended(tmp_path: Path) -> None:
    writer.write(tmp_path / "trainings" / "1", content(8), keep=1)
    with pytest.raises(CheckpointError, match="What is there does not say it "):
        open_ended(tmp_path, 1)
