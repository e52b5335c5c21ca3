"""The spawner that starts nobody: what of the contract applies to it, and what is its own.

What does not apply is the launcher's: what a rank inherits, where its output goes, what it leaves behind.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.config.worker_spec import WorkerSpec
from holdfast.control.protocol.events import WorkerLost, WorkerStarted
from holdfast.control.protocol.messages import Leave, encode
from holdfast.hosts.torchrun import rank_messages as say
from holdfast.hosts.torchrun.rank_listener import RankListener
from holdfast.hosts.torchrun.rank_spawner import RankSpawner, SignalJudge, SignalVerdict
from holdfast.transport.link import Link
from tests.contract.test_spawner_contract import (
    ROOT,
    alive,
    said,
    started,
    test_a_kill_is_certain,
    test_a_stopped_worker_can_be_killed,
    test_close_ends_everybody,
    test_its_exit_is_told_once_with_its_status,
    test_many_start_quickly,
    wait,
)
from tests.unit.transport.lines import nothing_left

pytestmark = [pytest.mark.process, pytest.mark.sharing]
__all__ = [
    "test_a_kill_is_certain", "test_a_stopped_worker_can_be_killed", "test_close_ends_everybody",
    "test_its_exit_is_told_once_with_its_status", "test_many_start_quickly",
]  # fmt: skip


class Launcher(RankSpawner):
    """Starts a rank whenever the spawner is asked for a worker, as if it had been there before. Reaps it at the end."""

    def __init__(self, spec: WorkerSpec, ranks: int = 16) -> None:
        self.name = f"holdfast-{secrets.token_hex(8)}"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(f"\0{self.name}")
        listener.listen(64)
        self.rank_listener = RankListener(listener, os.pidfd_open(os.getpid()))
        self.ranks: list[subprocess.Popen[bytes]] = []
        self.said: list[str] = []
        self.signals: list[tuple[int, str]] = []
        super().__init__(
            self.rank_listener,
            spec,
            ranks=ranks,
            say=self.said.append,
            asked=lambda *it: self.signals.append(it),
            grace=0.05,
        )

    def rank(self, index: int | None = None) -> subprocess.Popen[bytes]:
        place = len(self.ranks) if index is None else index
        words = [sys.executable, "-m", "tests.contract.rank", self.name, str(place)]
        self.ranks.append(subprocess.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL))
        return self.ranks[-1]

    def start(self, worker: int, row: int) -> Link:
        if self._given < self._ranks:
            self.rank()
        return super().start(worker, row)

    def close(self) -> None:
        super().close()
        self.rank_listener.close()
        for rank in self.ranks:
            rank.wait(10)


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkerSpec:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    (tmp_path / "logs").mkdir()
    return WorkerSpec(worker=-1, row=-1, script="train.py", args=("a", "b"), dir=str(tmp_path), threads=3)


def opened(spec: WorkerSpec, ranks: int) -> Iterator[Launcher]:
    with nothing_left():
        it = Launcher(spec, ranks)
        try:
            yield it
        finally:
            it.close()
            it.close()


@pytest.fixture
def spawner(spec: WorkerSpec) -> Iterator[Launcher]:
    yield from opened(spec, 16)


@pytest.fixture
def two(spec: WorkerSpec) -> Iterator[Launcher]:
    yield from opened(spec, 2)


def test_a_rank_becomes_the_worker_of_its_place(spawner: Launcher, tmp_path: Path) -> None:
    link, pid = started(spawner, worker=4, row=2)
    with link:
        assert said(link, "row") == "2" and said(link, "args") == "a b"
    assert pid == spawner.ranks[0].pid and spawner.worker(0) == 4 and spawner.worker(1) is None
    assert "Worker 4 is rank 10, process" in (tmp_path / "logs" / "worker-4.log").read_text()


def test_places_belong_to_ranks_in_order_whoever_comes_first(spec: WorkerSpec) -> None:
    for spawner in opened(spec, 2):
        links = [RankSpawner.start(spawner, 7, 0), RankSpawner.start(spawner, 8, 1)]
        assert spawner.events() == [], "nobody has come"
        second = spawner.rank(1)
        assert wait(spawner, 1) == [WorkerStarted(8, second.pid)]
        first = spawner.rank(0)
        assert wait(spawner, 1) == [WorkerStarted(7, first.pid)]
        for link in links:
            link.close()


def test_how_a_rank_ended_is_known_also_when_its_launcher_has_reaped_it(spawner: Launcher) -> None:
    link, _ = started(spawner)
    with link:
        link.send(b"exit")
        assert spawner.ranks[0].wait(10) == 3  # reaped, before the spawner looks
        (event,) = wait(spawner, 1)
    assert event in (WorkerLost(0, "exit", 3), WorkerLost(0, "exit", 255)), "older kernels cannot say"


def test_nobody_takes_the_place_of_one_who_is_lost(two: Launcher) -> None:
    first, _ = started(two, 0)
    second, _ = started(two, 1, 1)
    two.signal(0, signal.SIGKILL)
    assert wait(two, 1) == [WorkerLost(0, "signal", signal.SIGKILL)]
    third = two.start(2, 0)
    assert two.said == [
        "worker 2 will not come: the launcher has started 2 ranks here, and starts none anew. The others go on without "
        "it"
    ]
    assert two.events() == [] and len(two.ranks) == 2
    two.signal(2, signal.SIGUSR2)
    assert two.events() == [], "nobody is there to hear it"
    third.send(encode(Leave(2, "scaled down")))
    assert wait(two, 1) == [WorkerLost(2, "exit", 0)]
    fourth = two.start(3, 0)
    two.signal(3, signal.SIGKILL)
    assert wait(two, 1) == [WorkerLost(3, "signal", signal.SIGKILL)]
    assert said(second, "row") == "1", "the other one goes on"
    for link in (first, second, third, fourth):
        link.close()


def test_a_rank_that_comes_after_it_was_given_up_is_told_so(spec: WorkerSpec) -> None:
    for spawner in opened(spec, 1):
        link = RankSpawner.start(spawner, 0, 0)
        spawner.signal(0, signal.SIGKILL)
        assert spawner.events() == [WorkerLost(0, "signal", signal.SIGKILL)]
        rank = spawner.rank()
        poll = select.poll()
        poll.register(spawner.fileno(), select.POLLIN)
        while rank.poll() is None:
            assert poll.poll(10_000)
            assert spawner.events() == []
        assert rank.returncode == 1  # it was not enlisted
        link.close()


def test_who_has_parted_is_gone_but_lives_until_the_rank_listener_closes(spec: WorkerSpec) -> None:
    for spawner in opened(msgspec.structs.replace(spec, args=("part",)), 1):
        with spawner.start(0, 0):
            assert [type(event) for event in wait(spawner, 2)] == [WorkerStarted, WorkerLost]
        assert spawner.signals == [(0, "SIGTERM")]
        spawner.signal(0, signal.SIGKILL)
        RankSpawner.close(spawner)
        assert alive(spawner.ranks[0].pid), "it is not ours any more"
        assert not spawner.rank_listener.deserted()
        spawner.rank_listener.close()
        assert spawner.ranks[0].wait(10) == 0


def test_strangers_on_the_rank_listener_harm_nobody(spawner: Launcher) -> None:
    for data in (b"\xc1", say.encode(say.Parted()), say.encode(say.Announced(0, 0, 1))):  # the last: without its pidfd
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(f"\0{spawner.name}")
            sock.send(data)
            poll = select.poll()
            poll.register(spawner.fileno(), select.POLLIN)
            while not select.select([sock], [], [], 0)[0]:
                assert poll.poll(5000)
                assert spawner.events() == []
            assert sock.recv(1) == b"", "it was shown out"
    link, _ = started(spawner)
    with link:
        assert said(link, "row") == "0"


def test_the_rank_listener_is_deserted_when_the_last_rank_has_gone(spec: WorkerSpec) -> None:
    for spawner in opened(spec, 1):
        leader = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        os.close(spawner.rank_listener._leader)
        spawner.rank_listener._leader = os.pidfd_open(leader.pid)
        link, _ = started(spawner)
        leader.kill()
        leader.wait()
        leader.communicate()
        assert not spawner.rank_listener.deserted(), "the rank is there"
        link.send(b"exit")
        wait(spawner, 1)
        assert spawner.rank_listener.deserted()
        link.close()


def test_signals_to_one_rank_and_to_all() -> None:
    judge = SignalJudge(window=0.5)
    assert judge.verdict({0, 1, 2}, 0.0) is None
    judge.asked(1, "SIGTERM", 1.0)
    assert judge.verdict({0, 1, 2}, 1.4) is None, "the others may be asked as well, a moment later"
    assert judge.verdict({0, 1, 2}, 1.5) == SignalVerdict("SIGTERM", some=frozenset({1}))
    assert judge.verdict({0, 1, 2}, 1.6) is None, "it is said once"
    judge.asked(0, "SIGTERM", 2.0)
    assert judge.verdict({0, 2}, 2.1) is None
    judge.asked(2, "SIGTERM", 2.2)
    assert judge.verdict({0, 2}, 2.3) == SignalVerdict("SIGTERM", everybody=True)
    assert judge.verdict({0, 2}, 9.0) is None
    assert SignalJudge().verdict(set(), 0.0) is None
