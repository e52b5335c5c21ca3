"""Servers and memory: what is pushed and pulled goes through it and not through sockets, and it may run out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.harness import SCRIPTS, Launch

pytestmark = pytest.mark.process

LARGE = SCRIPTS / "large.py"
#: Bytes of a gradient of its model, and steps that it makes.
GRADIENT, STEPS = 20_000_000, 8
CREW = ("--workers", 2, "--servers", 1)


@pytest.mark.parametrize("mode", ["exact", *(pytest.param(m, marks=pytest.mark.chaos) for m in ("async", "local:2"))])
def test_no_tensor_goes_through_a_socket_on_one_machine(tmp_path: Path, mode: str) -> None:
    count = tmp_path / "count"
    count.mkdir()
    with Launch(tmp_path, LARGE, *CREW, "--sync", mode, args=f"--count {count}") as run:
        assert run.end() == 0, run.err
    assert run.summary["steps"] == STEPS
    moved = {path.name: [int(word) for word in path.read_text().split()] for path in count.iterdir()}
    assert set(moved) == {"worker-0", "worker-1", "worker-2"}, "two workers and a server"
    for name, (sockets, files) in moved.items():
        assert 0 < sockets < GRADIENT // 100, (name, moved)
        assert files < GRADIENT // 100, (name, moved)
