"""Servers and memory: what is pushed and pulled goes through it and not through sockets, and it may run out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.harness import SCRIPTS, Launch

pytestmark = [pytest.mark.process, pytest.mark.sharing]

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


def test_a_server_that_runs_out_of_memory_is_replaced(tmp_path: Path) -> None:
    """And so is the one that takes its place, for which there is none from the start."""
    with Launch(tmp_path, LARGE, *CREW, args=f"--starve 2:1 --starve-at-once 3 --go {tmp_path}/go") as run:
        run.told("server 4 starts")
        (tmp_path / "go").touch()
        assert run.end() == 0, run.err
    first, second = [line for line in run.story if "out of memory" in line]
    assert first.startswith("server 2 is out of memory at large.py:") and "server 3 starts" in first, first
    assert second.startswith("server 3 is out of memory at large.py:") and "server 4 starts" in second, second
    (numbers,) = [line.split()[1:] for line in run.out.splitlines() if line.startswith("numbers ")]
    assert run.summary["steps"] == STEPS and len(numbers) == 1, "each slice has made each step once"


@pytest.mark.chaos
def test_a_server_that_runs_out_of_memory_again_and_again(tmp_path: Path) -> None:
    args = " ".join(f"--starve {number}:3" for number in range(40))
    with Launch(tmp_path, LARGE, *CREW, args=args) as run:
        assert run.end() == 6, run.err
    assert "out of memory at large.py:" in run.err and "and at the memory they need" in run.err


def test_a_server_that_runs_out_of_memory_before_the_first_step(tmp_path: Path) -> None:
    with Launch(tmp_path, LARGE, *CREW, args="--starve 2:0") as run:
        assert run.end() == 7, run.err
    told = run.err.replace("\n", " ")
    assert "server 2 failed with MemoryError: " in told, told
    assert "There was not enough memory: start fewer workers or servers, make the model or the batch smaller" in told
    assert "Fix the script" not in told
