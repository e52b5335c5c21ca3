"""The log of requests: what is written, what is left out, and that it ends somewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.serve.door import request_log
from holdfast.serve.door.request_log import NAME, LoggedRequest, RequestLog, Selection
from holdfast.serve.models.replica_processes import trim


def line(id: str, **more: object) -> LoggedRequest:
    return LoggedRequest(time=1.0, id=id, status=500, total_ms=1.23456, **more)  # type: ignore[arg-type]


def test_failures_and_slow_answers_are_written_always() -> None:
    selection = Selection(0.05, everything=False, refusals=1)
    assert [selection.left_out(500, 0.0, 1.0) for _ in range(100)] == [0] * 100
    assert [selection.left_out(504, 0.0, 1.0) for _ in range(100)] == [0] * 100
    assert selection.left_out(200, 0.051, 1.0) == 0 and selection.left_out(200, 0.05, 1.0) is None


def test_refusals_are_counted_where_they_are_left_out() -> None:
    selection = Selection(0.05, everything=False, refusals=2)
    assert [selection.left_out(503, 0.0, 1.5) for _ in range(5)] == [0, 0, None, None, None]
    assert selection.left_out(500, 0.0, 1.6) == 3
    assert [selection.left_out(401, 0.0, 2.0) for _ in range(3)] == [0, 0, None]


def test_all_are_written_where_that_was_asked_for() -> None:
    selection = Selection(0.05, everything=True, refusals=1)
    assert [selection.left_out(status, 0.0, 1.0) for status in (200, 503, 503, 400)] == [0] * 4


def test_lines(tmp_path: Path) -> None:
    log = RequestLog(tmp_path, Selection(0.05, everything=True), pytest.fail)
    log.add(line("a", model="m", version=3, reason="no\nlines"))
    log.add(line("b", left_out=2))
    log.flush()
    log.flush()
    found = [json.loads(one) for one in (tmp_path / NAME).read_text().splitlines()]
    assert found == [
        {"time": 1.0, "id": "a", "model": "m", "version": 3, "status": 500, "total_ms": 1.235, "reason": "no\nlines"},
        {"time": 1.0, "id": "b", "status": 500, "total_ms": 1.235, "left_out": 2},
    ]
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600


def test_two_files_of_a_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "_SIZE", 1000)
    log = RequestLog(tmp_path, Selection(0.05, everything=True), pytest.fail)
    for number in range(200):
        log.add(line(f"id-{number}"))
        log.flush()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["requests.1.jsonl", NAME]
    assert all(file.stat().st_size <= 1000 for file in files)
    assert "id-199" in files[1].read_text()


def test_a_disk_that_takes_nothing_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    log = RequestLog(tmp_path / "away", Selection(0.05, everything=True), said.append)
    for _ in range(3):
        log.add(line("lost"))
        log.flush()
    assert len(said) == 1 and "cannot be written" in said[0]
    (tmp_path / "away").mkdir()
    log.add(line("kept"))
    log.flush()
    assert len(said) == 2 and "3 requests are missing" in said[1]
    assert "kept" in (tmp_path / "away" / NAME).read_text()


def test_what_waits_to_be_written_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "_PENDING", 1000)
    said: list[str] = []
    log = RequestLog(tmp_path, Selection(0.05, everything=True), said.append)
    for number in range(1000):
        log.add(line(f"id-{number}"))
    log.flush()
    assert (tmp_path / NAME).stat().st_size < 1200 and "requests are missing" in said[0]


def test_the_output_of_a_replica_is_cut(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    with open(log, "ab", buffering=0) as writer:  # as a replica appends to it
        writer.write(b"old\n" * 1000)
        trim(log, 5000, 100)
        assert log.stat().st_size == 4000
        trim(log, 3000, 100)
        assert log.read_bytes() == b"[3900 bytes of earlier output were left out]\n" + b"old\n" * 25
        writer.write(b"new\n")
    assert log.read_bytes().endswith(b"old\nnew\n") and log.stat().st_size < 200
