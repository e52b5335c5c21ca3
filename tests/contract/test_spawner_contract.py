"""What every spawner must do (see `control.protocol.ports.Spawner`). A new spawner gets a line in `SPAWNERS`."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.config.worker_spec import WorkerSpec
from holdfast.control.protocol.events import WorkerLost, WorkerStarted
from holdfast.control.protocol.ports import Spawner
from holdfast.errors import RunError
from holdfast.hosts.fork_spawner import ForkSpawner
from holdfast.transport.link import Link
from tests.unit.transport.lines import nothing_left

pytestmark = [pytest.mark.process, pytest.mark.sharing]
ROOT = Path(__file__).resolve().parents[2]


def local(spec: WorkerSpec, logs: Path) -> Spawner:
    return ForkSpawner(spec, logs=logs, entry="tests.contract.test_spawner_contract:worker")


SPAWNERS: list[Callable[[WorkerSpec, Path], Spawner]] = [local]


def worker(spec: WorkerSpec, link_fd: int) -> None:
    """Does what it is told, word by word."""
    link = Link.from_fd(link_fd)
    while (frame := link.recv()) is not None:
        word = frame.data.decode()
        if word == "exit":
            sys.exit(3)
        elif word == "raise":
            raise ValueError("as told")
        elif word == "print":
            print("printed", spec.worker)
        elif word == "stay":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        elif word == "fork" and os.fork() == 0:
            time.sleep(600)
        answer = {"row": str(spec.row), "args": " ".join(spec.args), "fds": " ".join(os.listdir("/proc/self/fd"))}
        answer |= {"seed": os.environ["PYTHONHASHSEED"], "threads": os.environ.get("OMP_NUM_THREADS", "")}
        link.send(answer.get(word, "ok").encode())


@pytest.fixture(params=SPAWNERS, ids=lambda make: make.__name__)
def spawner(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spawner]:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (tmp_path / "logs").mkdir()
    spec = WorkerSpec(worker=-1, row=-1, script="train.py", args=("a", "b"), dir=str(tmp_path), threads=3)
    with nothing_left():
        it: Spawner = request.param(spec, tmp_path / "logs")
        try:
            yield it
        finally:
            it.close()
            it.close()


def wait(spawner: Spawner, num_events: int, seconds: float = 20) -> list[WorkerStarted | WorkerLost]:
    """The next events, as they come, through the descriptor that announces them."""
    events: list[WorkerStarted | WorkerLost] = []
    poll = select.poll()
    poll.register(spawner.fileno(), select.POLLIN)
    until = time.monotonic() + seconds
    while len(events) < num_events:
        assert poll.poll(max(0, until - time.monotonic()) * 1000), f"only {events} after {seconds} s"
        events += spawner.events()
    return events


def started(spawner: Spawner, worker: int = 0, row: int = 0) -> tuple[Link, int]:
    link = spawner.start(worker, row)
    (event,) = wait(spawner, 1)
    assert isinstance(event, WorkerStarted) and event.worker == worker
    link.setblocking(True)
    return link, event.pid


def said(link: Link, word: str) -> str:
    link.send(word.encode())
    frame = link.recv()
    assert frame is not None
    return frame.data.decode()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_worker_gets_its_row_arguments_and_environment(spawner: Spawner) -> None:
    link, pid = started(spawner, worker=4, row=2)
    with link:
        assert said(link, "row") == "2"
        assert said(link, "args") == "a b"
        assert said(link, "seed") == "0" and said(link, "threads") == "3"
        assert alive(pid)


def test_it_inherits_nothing_but_its_link(spawner: Spawner) -> None:
    first, _ = started(spawner, 0)
    second, _ = started(spawner, 1)
    with first, second:
        open_fds = said(second, "fds").split()
    # 0, 1, 2, the link, the file for stacks, and the listing itself
    assert len(open_fds) == 6, open_fds


def test_its_exit_is_told_once_with_its_status(spawner: Spawner) -> None:
    link, _ = started(spawner)
    with link:
        link.send(b"exit")
        assert wait(spawner, 1) == [WorkerLost(0, "exit", 3)]
        assert link.recv() is None
    assert spawner.events() == []


def test_an_exception_is_status_1_and_a_trace_in_the_log(spawner: Spawner, tmp_path: Path) -> None:
    link, _ = started(spawner)
    with link:
        link.send(b"raise")
        assert wait(spawner, 1) == [WorkerLost(0, "exit", 1)]
    assert "ValueError: as told" in (tmp_path / "logs" / "worker-0.log").read_text()


def test_output_is_in_the_log_at_once(spawner: Spawner, tmp_path: Path) -> None:
    link, _ = started(spawner, worker=7)
    with link:
        assert said(link, "print") == "ok"
        assert (tmp_path / "logs" / "worker-7.log").read_text() == "printed 7\n"


@pytest.mark.parametrize("word", ["ok", "stay"])
def test_a_kill_is_certain(spawner: Spawner, word: str) -> None:
    link, pid = started(spawner)
    with link:
        said(link, word)
        spawner.signal(0, signal.SIGTERM if word == "stay" else 0)
        spawner.signal(0, signal.SIGKILL)
        assert wait(spawner, 1) == [WorkerLost(0, "signal", signal.SIGKILL)]
    assert not alive(pid)
    spawner.signal(0, signal.SIGKILL)
    spawner.signal(99, signal.SIGKILL)


def test_a_stopped_worker_can_be_killed(spawner: Spawner) -> None:
    link, _ = started(spawner)
    with link:
        spawner.signal(0, signal.SIGSTOP)
        spawner.signal(0, signal.SIGKILL)
        assert wait(spawner, 1) == [WorkerLost(0, "signal", signal.SIGKILL)]


def test_a_kill_before_its_birth_is_kept(spawner: Spawner) -> None:
    with spawner.start(0, 0):
        spawner.signal(0, signal.SIGKILL)
        assert [type(event) for event in wait(spawner, 2)] == [WorkerStarted, WorkerLost]


def test_what_a_worker_leaves_behind_ends_with_it(spawner: Spawner) -> None:
    link, pid = started(spawner)
    with link:
        said(link, "fork")
        (child,) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        spawner.signal(0, signal.SIGKILL)
        wait(spawner, 1)
    until = time.monotonic() + 5
    while alive(child) and time.monotonic() < until:
        time.sleep(0.01)
    assert not alive(child)


def test_close_ends_everybody(spawner: Spawner) -> None:
    links, pids = zip(*(started(spawner, worker, worker) for worker in range(3)), strict=True)
    spawner.signal(1, signal.SIGSTOP)
    spawner.close()
    assert not any(map(alive, pids))
    for link in links:
        link.close()


def test_many_start_quickly(spawner: Spawner) -> None:
    links = [spawner.start(worker, worker) for worker in range(16)]
    assert {event.worker for event in wait(spawner, 16)} == set(range(16))
    for link in links:
        link.close()


# ---------------------------------------------------------------- the local spawner's own


def test_a_killed_forkserver_is_told_as_its_workers_deaths_and_replaced(spawner: Spawner) -> None:
    assert isinstance(spawner, ForkSpawner)
    first, pid = started(spawner, 0)
    second, _ = started(spawner, 1)
    before = spawner.forkserver_pid
    os.kill(before, signal.SIGKILL)
    lost = sorted(wait(spawner, 2), key=lambda event: event.worker)
    assert lost == [WorkerLost(0, "signal", 9), WorkerLost(1, "signal", 9)]
    assert not alive(pid)
    first.close()
    second.close()
    third, _ = started(spawner, 2)
    with third:
        assert said(third, "row") == "0"
    assert spawner.forkserver_pid not in (0, before)


def test_a_busy_forkserver_is_asked_later(spawner: Spawner) -> None:
    assert isinstance(spawner, ForkSpawner) and spawner._control is None
    first, pid = started(spawner, 0)
    assert spawner._control is not None
    os.kill(spawner.forkserver_pid, signal.SIGSTOP)
    with socket.socket(fileno=os.dup(spawner._control.fileno())) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least the kernel gives: a few requests
    links = [spawner.start(worker, worker) for worker in range(1, 9)]
    assert spawner._requests, "not all of them were taken"
    assert spawner.events() == [] and alive(pid)
    os.kill(spawner.forkserver_pid, signal.SIGCONT)
    events = wait(spawner, 8)
    assert {event.worker for event in events if isinstance(event, WorkerStarted)} == set(range(1, 9))
    assert alive(pid)
    for link in (first, *links):
        link.close()


def test_nobody_waits_for_a_forkserver_that_takes_its_time_to_leave(spawner: Spawner) -> None:
    assert isinstance(spawner, ForkSpawner)
    first, _ = started(spawner, 0)
    before = spawner.forkserver_pid
    assert spawner._control is not None
    os.kill(before, signal.SIGSTOP)
    with socket.socket(fileno=os.dup(spawner._control.fileno())) as raw:
        raw.shutdown(socket.SHUT_RDWR)
    began = time.monotonic()
    assert spawner.events() == []
    second = spawner.start(1, 1)
    assert spawner.events() == []
    assert time.monotonic() - began < 0.5
    os.kill(before, signal.SIGKILL)
    lost, born = sorted(wait(spawner, 2), key=lambda event: event.worker)
    assert lost == WorkerLost(0, "signal", 9)
    assert isinstance(born, WorkerStarted) and born.worker == 1, "the next forkserver was asked for it"
    first.close()
    second.close()


def test_what_a_worker_left_behind_ends_also_without_a_forkserver(spawner: Spawner) -> None:
    assert isinstance(spawner, ForkSpawner)
    link, pid = started(spawner)
    with link:
        said(link, "fork")
        (child,) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        os.kill(spawner.forkserver_pid, signal.SIGKILL)
        wait(spawner, 1)
    until = time.monotonic() + 5
    while alive(child) and time.monotonic() < until:
        time.sleep(0.01)
    assert not alive(child)


def test_a_forkserver_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    (tmp_path / "logs").mkdir()
    spec = WorkerSpec(worker=-1, row=-1, script="train.py", args=(), dir=str(tmp_path))
    spawner = ForkSpawner(spec, logs=tmp_path / "logs", entry="holdfast.no_such_module:main")
    with spawner.start(0, 0), pytest.raises(RunError, match=r"No module named 'holdfast.no_such_module'"):
        wait(spawner, 1)
    spawner.close()
