"""What every engine must do (see `coordinator.ports.Engine`). A new engine gets a line in `ENGINES`."""

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

from holdfast.config.worker import WorkerSpec
from holdfast.coordinator.events import WorkerLost, WorkerStarted
from holdfast.coordinator.ports import Engine
from holdfast.engines.local import LocalEngine
from holdfast.errors import RunError
from holdfast.transport.link import Link

pytestmark = [pytest.mark.process, pytest.mark.sharing]
ROOT = Path(__file__).resolve().parents[2]


def local(spec: WorkerSpec, logs: Path) -> Engine:
    return LocalEngine(spec, logs=logs, entry="tests.contract.test_engine_contract:worker")


ENGINES: list[Callable[[WorkerSpec, Path], Engine]] = [local]


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


@pytest.fixture(params=ENGINES, ids=lambda make: make.__name__)
def engine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (tmp_path / "logs").mkdir()
    spec = WorkerSpec(worker=-1, row=-1, script="train.py", args=("a", "b"), dir=str(tmp_path), threads=3)
    before = set(os.listdir("/proc/self/fd"))
    it: Engine = request.param(spec, tmp_path / "logs")
    try:
        yield it
    finally:
        it.close()
        it.close()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def wait(engine: Engine, num_events: int, seconds: float = 20) -> list[WorkerStarted | WorkerLost]:
    """The next events, as they come, through the descriptor that announces them."""
    events: list[WorkerStarted | WorkerLost] = []
    poll = select.poll()
    poll.register(engine.fileno(), select.POLLIN)
    until = time.monotonic() + seconds
    while len(events) < num_events:
        assert poll.poll(max(0, until - time.monotonic()) * 1000), f"only {events} after {seconds} s"
        events += engine.events()
    return events


def started(engine: Engine, worker: int = 0, row: int = 0) -> tuple[Link, int]:
    link = engine.start(worker, row)
    (event,) = wait(engine, 1)
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


def test_a_worker_gets_its_row_arguments_and_environment(engine: Engine) -> None:
    link, pid = started(engine, worker=4, row=2)
    with link:
        assert said(link, "row") == "2"
        assert said(link, "args") == "a b"
        assert said(link, "seed") == "0" and said(link, "threads") == "3"
        assert alive(pid)


def test_it_inherits_nothing_but_its_link(engine: Engine) -> None:
    first, _ = started(engine, 0)
    second, _ = started(engine, 1)
    with first, second:
        open_fds = said(second, "fds").split()
    # 0, 1, 2, the link, the file for stacks, and the listing itself
    assert len(open_fds) == 6, open_fds


def test_its_exit_is_told_once_with_its_status(engine: Engine) -> None:
    link, _ = started(engine)
    with link:
        link.send(b"exit")
        assert wait(engine, 1) == [WorkerLost(0, "exit", 3)]
        assert link.recv() is None
    assert engine.events() == []


def test_an_exception_is_status_1_and_a_trace_in_the_log(engine: Engine, tmp_path: Path) -> None:
    link, _ = started(engine)
    with link:
        link.send(b"raise")
        assert wait(engine, 1) == [WorkerLost(0, "exit", 1)]
    assert "ValueError: as told" in (tmp_path / "logs" / "worker-0.log").read_text()


def test_output_is_in_the_log_at_once(engine: Engine, tmp_path: Path) -> None:
    link, _ = started(engine, worker=7)
    with link:
        assert said(link, "print") == "ok"
        assert (tmp_path / "logs" / "worker-7.log").read_text() == "printed 7\n"


@pytest.mark.parametrize("word", ["ok", "stay"])
def test_a_kill_is_certain(engine: Engine, word: str) -> None:
    link, pid = started(engine)
    with link:
        said(link, word)
        engine.signal(0, signal.SIGTERM if word == "stay" else 0)
        engine.signal(0, signal.SIGKILL)
        assert wait(engine, 1) == [WorkerLost(0, "signal", signal.SIGKILL)]
    assert not alive(pid)
    engine.signal(0, signal.SIGKILL)
    engine.signal(99, signal.SIGKILL)


def test_a_stopped_worker_can_be_killed(engine: Engine) -> None:
    link, _ = started(engine)
    with link:
        engine.signal(0, signal.SIGSTOP)
        engine.signal(0, signal.SIGKILL)
        assert wait(engine, 1) == [WorkerLost(0, "signal", signal.SIGKILL)]


def test_a_kill_before_its_birth_is_kept(engine: Engine) -> None:
    with engine.start(0, 0):
        engine.signal(0, signal.SIGKILL)
        assert [type(event) for event in wait(engine, 2)] == [WorkerStarted, WorkerLost]


def test_what_a_worker_leaves_behind_ends_with_it(engine: Engine) -> None:
    link, pid = started(engine)
    with link:
        said(link, "fork")
        (child,) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        engine.signal(0, signal.SIGKILL)
        wait(engine, 1)
    until = time.monotonic() + 5
    while alive(child) and time.monotonic() < until:
        time.sleep(0.01)
    assert not alive(child)


def test_close_ends_everybody(engine: Engine) -> None:
    links, pids = zip(*(started(engine, worker, worker) for worker in range(3)), strict=True)
    engine.signal(1, signal.SIGSTOP)
    engine.close()
    assert not any(map(alive, pids))
    for link in links:
        link.close()


def test_many_start_quickly(engine: Engine) -> None:
    links = [engine.start(worker, worker) for worker in range(16)]
    assert {event.worker for event in wait(engine, 16)} == set(range(16))
    for link in links:
        link.close()


# ---------------------------------------------------------------- the local engine's own


def test_a_killed_nursery_is_told_as_its_workers_deaths_and_replaced(engine: Engine) -> None:
    assert isinstance(engine, LocalEngine)
    first, pid = started(engine, 0)
    second, _ = started(engine, 1)
    before = engine.nursery_pid
    os.kill(before, signal.SIGKILL)
    lost = sorted(wait(engine, 2), key=lambda event: event.worker)
    assert lost == [WorkerLost(0, "signal", 9), WorkerLost(1, "signal", 9)]
    assert not alive(pid)
    first.close()
    second.close()
    third, _ = started(engine, 2)
    with third:
        assert said(third, "row") == "0"
    assert engine.nursery_pid not in (0, before)


def test_a_busy_nursery_is_asked_later(engine: Engine) -> None:
    assert isinstance(engine, LocalEngine) and engine._control is None
    first, pid = started(engine, 0)
    assert engine._control is not None
    os.kill(engine.nursery_pid, signal.SIGSTOP)
    with socket.socket(fileno=os.dup(engine._control.fileno())) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least the kernel gives: a few requests
    links = [engine.start(worker, worker) for worker in range(1, 9)]
    assert engine._requests, "not all of them were taken"
    assert engine.events() == [] and alive(pid)
    os.kill(engine.nursery_pid, signal.SIGCONT)
    events = wait(engine, 8)
    assert {event.worker for event in events if isinstance(event, WorkerStarted)} == set(range(1, 9))
    assert alive(pid)
    for link in (first, *links):
        link.close()


def test_nobody_waits_for_a_nursery_that_takes_its_time_to_leave(engine: Engine) -> None:
    assert isinstance(engine, LocalEngine)
    first, _ = started(engine, 0)
    before = engine.nursery_pid
    assert engine._control is not None
    os.kill(before, signal.SIGSTOP)
    with socket.socket(fileno=os.dup(engine._control.fileno())) as raw:
        raw.shutdown(socket.SHUT_RDWR)
    began = time.monotonic()
    assert engine.events() == []
    second = engine.start(1, 1)
    assert engine.events() == []
    assert time.monotonic() - began < 0.5
    os.kill(before, signal.SIGKILL)
    lost, born = sorted(wait(engine, 2), key=lambda event: event.worker)
    assert lost == WorkerLost(0, "signal", 9)
    assert isinstance(born, WorkerStarted) and born.worker == 1, "the next nursery was asked for it"
    first.close()
    second.close()


def test_what_a_worker_left_behind_ends_also_without_a_nursery(engine: Engine) -> None:
    assert isinstance(engine, LocalEngine)
    link, pid = started(engine)
    with link:
        said(link, "fork")
        (child,) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        os.kill(engine.nursery_pid, signal.SIGKILL)
        wait(engine, 1)
    until = time.monotonic() + 5
    while alive(child) and time.monotonic() < until:
        time.sleep(0.01)
    assert not alive(child)


def test_a_nursery_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    (tmp_path / "logs").mkdir()
    spec = WorkerSpec(worker=-1, row=-1, script="train.py", args=(), dir=str(tmp_path))
    engine = LocalEngine(spec, logs=tmp_path / "logs", entry="holdfast.no_such_module:main")
    with engine.start(0, 0), pytest.raises(RunError, match=r"No module named 'holdfast.no_such_module'"):
        wait(engine, 1)
    engine.close()
