"""The forkserver in this process: a worker that cannot be started is told as lost, and the forkserver goes on."""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.config.worker_spec import WorkerSpec
from holdfast.hosts import forkserver
from holdfast.hosts.forkserver import Report, WorkerDied, WorkerForked
from holdfast.transport.link import Link

pytestmark = [pytest.mark.process, pytest.mark.sharing]


def entry(spec: WorkerSpec, link_fd: int) -> None:
    """A worker that has nothing to do."""


def unable(*_: object) -> int:
    raise OSError(errno.EAGAIN, "not now")


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[tuple[Link, Link]]:
    """Our end and the forkserver's, with a request for worker 7, after which nobody asks any more."""
    (tmp_path / "logs").mkdir()
    ours, theirs = Link.pair()
    mine, its = Link.pair()
    with ours, theirs, mine, its:
        spec = WorkerSpec(worker=7, row=0, script="train.py", args=(), dir=str(tmp_path))
        ours.send(msgspec.msgpack.encode(spec), [its.fileno()])
        with socket.socket(fileno=os.dup(ours.fileno())) as raw:
            raw.shutdown(socket.SHUT_WR)
        yield ours, theirs


def reports(ours: Link) -> list[Report]:
    ours.setblocking(False)
    said = []
    try:
        while (frame := ours.recv()) is not None:
            said.append(msgspec.msgpack.decode(frame.data, type=Report))
            for fd in frame.fds:
                os.close(fd)
    except BlockingIOError:
        pass
    return said


def test_a_birth(asked: tuple[Link, Link]) -> None:
    ours, theirs = asked
    assert forkserver._serve(theirs, entry) == 0
    (born,) = reports(ours)
    assert isinstance(born, WorkerForked) and born.worker == 7
    os.waitpid(born.pid, 0)


@pytest.mark.parametrize("call", ["fork", "pidfd_open"])
def test_no_process_or_descriptor_left(
    asked: tuple[Link, Link], call: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = asked
    fork, forked = os.fork, []
    monkeypatch.setattr(os, "fork", lambda: (pid := fork(), forked.append(pid))[0])
    monkeypatch.setattr(os, call, unable)
    assert forkserver._serve(theirs, entry) == 0
    assert reports(ours) == [WorkerDied(7, os.EX_OSERR)]
    assert "worker 7 cannot be started: [Errno 11] not now" in capfd.readouterr().err
    for pid in forked:
        with pytest.raises(ChildProcessError):  # killed and reaped
            os.waitpid(pid, os.WNOHANG)


def test_output_that_cannot_be_kept_is_said_to_be_lost(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    spec = WorkerSpec(worker=7, row=0, script="train.py", args=(), dir=str(tmp_path / "nowhere"))
    if not (pid := os.fork()):
        forkserver._own_output(spec)
        os._exit(0)
    os.waitpid(pid, 0)
    path = tmp_path / "nowhere" / "logs" / "worker-7.log"
    assert capfd.readouterr().err == f"the output of worker 7 is lost: {path}: No such file or directory\n"


def test_no_descriptor_left_for_the_link(asked: tuple[Link, Link]) -> None:
    ours, theirs = asked
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        assert forkserver._serve(theirs, entry) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert reports(ours) == [WorkerDied(7, os.EX_OSERR)]
