from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from holdfast.errors import ResourceError
from holdfast.observe.agent_directory import AgentDirectory, sweep


@pytest.fixture(autouse=True)
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_nobody_else_may_look_and_nothing_is_left(temp: Path) -> None:
    with AgentDirectory() as place:
        assert os.stat(place.path).st_mode & 0o777 == 0o700
        assert place.path.parent == temp and place.logs.is_dir()
        assert place.write("hang-1.txt", "stacks")
        assert (place.path / "hang-1.txt").read_text() == "stacks"
        assert not place.write("no/such/place", "x")
    assert not os.listdir(temp)
    place.close()


def test_what_a_killed_agent_left_is_swept_and_who_lives_is_not(temp: Path) -> None:
    dead, alive = AgentDirectory(), AgentDirectory()
    os.close(dead._lock)  # as the kernel does for one that was killed
    dead._lock = -1
    (temp / "holdfast-scratch").mkdir()  # of a launcher: it has no lock
    (temp / "other").mkdir()
    (temp / "other" / "lock").touch()
    assert sweep() == [str(dead.path)]
    assert {path.name for path in temp.iterdir()} == {alive.path.name, "holdfast-scratch", "other"}
    alive.close()


def test_a_place_where_nothing_can_be_made(temp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    with pytest.raises(ResourceError, match=r"^/proc/holdfast-\w+ cannot be made: .* or set TMPDIR to another place"):
        AgentDirectory()
