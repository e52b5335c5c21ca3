from __future__ import annotations

import errno
import json
import os
import socket
from pathlib import Path

import pytest

from holdfast.errors import DirectoryBusy, ResourceError, UsageError
from holdfast.observe import directory as module
from holdfast.observe.directory import RunDirectory, default_path, read_json, recover, recover_siblings, running


def create(path: Path, *, unique: bool = False) -> RunDirectory:
    return RunDirectory.create(path, complain=complaints.append, unique=unique)


complaints: list[str] = []


@pytest.fixture(autouse=True)
def _quiet() -> None:
    complaints.clear()


def test_default_path_is_the_scripts_name_and_the_time() -> None:
    path = default_path("examples/train.py", 0.0)
    assert path.parent == Path("runs")
    assert path.name.startswith("train-") and len(path.name) == len("train-19700101-000000")


def test_a_directory_has_one_run_at_a_time(tmp_path: Path) -> None:
    with create(tmp_path / "run") as first:
        assert running(first.path) and first.logs.is_dir()
        with pytest.raises(DirectoryBusy, match=rf"is being used by another run \(pid {os.getpid()}\)\. Use another"):
            create(tmp_path / "run")
        with create(tmp_path / "run", unique=True) as second:
            assert second.path.name == "run-2"
    assert not running(first.path)
    assert not (first.path / "lock").exists()


@pytest.mark.parametrize(
    ("outcome", "told"),
    [("ok", "ended well"), ("failed", "failed"), ("stopped", "was stopped"), ("killed", "was killed")],
)
def test_a_directory_belongs_to_one_run_for_ever(tmp_path: Path, outcome: str, told: str) -> None:
    with create(tmp_path / "run") as run:
        run.write("run.json", "{}")
        run.write_summary({"outcome": outcome})
    with pytest.raises(DirectoryBusy, match=f"holds another run, which {told}. Use another --dir, or remove"):
        create(tmp_path / "run")
    assert not (tmp_path / "run" / "lock").exists()


def test_other_files_may_be_there(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    create(tmp_path).close()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is not a directory"):
        create(tmp_path / "file")
    with pytest.raises(UsageError, match="is not a directory"):
        create(tmp_path / "file" / "below")


def test_a_full_disk_is_said_once(tmp_path: Path) -> None:
    with create(tmp_path) as run:
        os.symlink("/dev/full", run.path / "story.jsonl")
        assert not run.append("story.jsonl", b"one\n")
        assert not run.append("story.jsonl", b"two\n")
    assert len(complaints) == 1
    assert "cannot be written (No space left on device); training goes on" in complaints[0]


def test_a_summary_that_cannot_be_written_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with create(tmp_path) as run:
        run.write_summary({"steps": 1})
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(ResourceError, match='"steps": 2'):
            run.write_summary({"steps": 2})
        assert not run.write("hang-0.txt", "text")
    assert read_json(tmp_path / "summary.json") == {"steps": 1}
    assert {path.name for path in tmp_path.iterdir()} == {"logs", "summary.json"}


def killed(path: Path) -> None:
    """A run's directory as a killed launcher leaves it."""
    path.mkdir(parents=True)
    (path / "run.json").write_text(json.dumps({"pid": 4_000_000, "config": {"script": "x.py"}}))
    (path / "lock").write_text("4000000\n")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path / "control.sock"))


def test_what_a_killed_launcher_left_is_swept_up_once(tmp_path: Path) -> None:
    killed(tmp_path / "run")
    assert recover(tmp_path / "run") == (
        f"{tmp_path / 'run'}: the launcher of this run (pid 4000000) was killed; "
        "removed control.sock, the run is closed"
    )
    assert read_json(tmp_path / "run" / "summary.json")["outcome"] == "killed"
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"run.json", "summary.json"}
    assert recover(tmp_path / "run") == ""


def test_a_going_run_is_left_alone(tmp_path: Path) -> None:
    with create(tmp_path / "run") as run:
        run.write("run.json", '{"pid": 1}')
        assert recover(tmp_path / "run") == ""
        killed(tmp_path / "other")
        assert len(recover_siblings(tmp_path / "run")) == 1
        assert recover_siblings(tmp_path / "run") == []


def test_what_is_no_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("")
    assert recover(tmp_path) == ""
    assert recover(tmp_path / "none") == ""
    assert (tmp_path / "lock").exists()


def test_empty_logs_are_swept_and_others_kept(tmp_path: Path) -> None:
    with create(tmp_path) as run:
        (run.logs / "worker-0.stack").write_text("")
        (run.logs / "worker-1.stack").write_text("stack")
        (run.logs / "forkserver.log").write_text("")
        (run.logs / "worker-0.log").write_text("")
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {"worker-1.stack", "worker-0.log"}


def test_orphans_of_the_run_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed(tmp_path / "run")
    ended: list[int] = []
    ours, others = (os.fsencode(tmp_path / name) for name in ("run", "run-2"))
    words = [b"python", b"-m", b"holdfast.hosts.forkserver", b"--run"]
    there = {11: [*words, ours], 12: [*words, ours], 13: [*words, others], 14: [b"cat", ours], 15: []}
    monkeypatch.setattr(module.processes, "numbers", lambda: iter(there))
    monkeypatch.setattr(module.processes, "command_line", there.__getitem__)
    monkeypatch.setattr(module.os, "kill", lambda pid, number: ended.append(pid))
    assert "removed control.sock and ended processes 11, 12" in recover(tmp_path / "run")
    assert ended == [11, 12]
