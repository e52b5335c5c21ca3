"""A forked process computes from the very state of its parent, and nobody sees what it does."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.train.loop.verifying.forked import Forked, Report
from holdfast.transport.processes import stat


def nothing() -> None:
    """There is no shared memory."""


def run(
    body: Callable[[], Report | None], *, seconds: float = 30.0, isolate: Callable[[], None] = nothing
) -> Report:
    """What a process reports that does this."""
    one = Forked(isolate)
    if one:
        try:
            one.report(body() or Report([], 0))
        except BaseException:  # the rest of the test is its parent's
            one.report(Report([], 0, f"it raised {sys.exc_info()[1]!r}"))
    report = one.await_report(seconds)
    one.close()
    one.close()  # once more does no harm
    return report


def test_it_has_the_state_of_its_parent_and_moves_none_of_it() -> None:
    own = random.Random(3)
    counted: list[int] = []

    def body() -> Report:
        counted.append(1)
        return Report([f"{own.random():.6f}"], len(counted))

    first, second = run(body), run(body)
    assert first == second == Report([f"{random.Random(3).random():.6f}"], 1)
    assert counted == []


def test_what_it_prints_and_writes_goes_nowhere(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    opened, shown = tmp_path / "opened", tmp_path / "shown"
    opened.write_text("before\n")
    out = os.open(shown, os.O_WRONLY | os.O_CREAT)
    appended = open(opened, "a+", buffering=1)  # noqa: SIM115
    ours, theirs = socket.socketpair()
    ours.setblocking(False)

    def body() -> None:
        print("seen?", flush=True)
        print("seen?", file=sys.stderr, flush=True)
        appended.write("seen?")
        os.write(out, b"seen?")
        os.write(theirs.fileno(), b"seen?")
        assert theirs.recv(10) == b"", "nobody answers it"
        with open(opened, "w") as file:
            file.write("seen?")
        opened.write_text("seen?")

    with ours, theirs:
        assert run(body) == Report([], 0)
        with pytest.raises(BlockingIOError):
            ours.recv(10)
    os.close(out)
    appended.close()
    assert (opened.read_text(), shown.read_bytes()) == ("before\n", b"")
    assert capfd.readouterr() == ("", "")


def test_a_file_that_both_read_has_a_place_for_each(tmp_path: Path) -> None:
    path = tmp_path / "samples"
    path.write_bytes(b"abcdef")
    fd = os.open(path, os.O_RDONLY)
    os.lseek(fd, 2, os.SEEK_SET)
    assert run(lambda: Report([os.read(fd, 2).decode()], 0)).differs == ["cd"]
    assert os.read(fd, 2) == b"cd"
    os.close(fd)


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (lambda path: os.mkdir(path / "new"), "calls os.mkdir"),
        (lambda path: os.remove(path / "there"), "calls os.remove"),
        (lambda path: os.close(os.open(path / "there", os.O_WRONLY)), "opens {}/there to write to it"),
        (lambda path: subprocess.run(["true"], check=True), "calls subprocess.Popen"),
    ],
)
def test_what_would_leave_a_trace_ends_it(tmp_path: Path, act: Callable[[Path], None], told: str) -> None:
    (tmp_path / "there").write_text("kept")
    report = run(lambda: act(tmp_path))  # type: ignore[func-returns-value]
    assert report == Report(
        [], 0, f"the loop over the units {told.format(tmp_path)}, which cannot be done a second time unseen"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["there"] and (tmp_path / "there").read_text() == "kept"


def test_one_that_does_not_come_to_an_end_is_given_up() -> None:
    assert run(threading.Event().wait, seconds=0.05).failure == "it took more than 0 s"  # type: ignore[arg-type]
    assert run(lambda: os._exit(3)).failure == "its process ended without a word"


def test_one_that_cannot_be_set_apart_says_so() -> None:
    def fail() -> None:
        raise OSError(12, "no memory")

    assert run(lambda: None, isolate=fail).failure == (
        "its process could not be set apart (OSError: [Errno 12] no memory)"
    )


def test_none_is_left() -> None:
    one = Forked(lambda: None)
    if one:
        one.report(Report([], os.getpid()))
    pid = one.await_report(30.0).digest
    one.close()
    assert stat(pid).state == ""
