"""Several hosts in one process: an arena and a real peer session each, joined by socket pairs; workers step by hand."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Sequence
from functools import partial

from holdfast.control.protocol.messages import Install
from holdfast.core.roles import Assignment
from holdfast.dataplane.memory.board_snapshot import level
from holdfast.dataplane.memory.host_memory import HostMemory
from holdfast.dataplane.wire.session import PeerSession
from holdfast.transport.frames import Kind
from holdfast.transport.stream import PlainStream, Stream, name_of
from tests.unit.dataplane.members import StepWork, Worker, work_of


class Dammed(PlainStream):
    """A stream in which sums wait until the dam is opened, or the stream closed."""

    def __init__(self, sock: socket.socket, peer: str, dam: threading.Event | None) -> None:
        super().__init__(sock, peer)
        self._dam = dam

    def send(self, *buffers: bytes | bytearray | memoryview) -> None:
        kinds = [bytes(b[4:5]) for b in buffers if bytes(b[:4]) == b"HFD1"]
        if self._dam is not None and bytes([Kind.SUM]) in kinds:
            self._dam.wait()
        super().send(*buffers)

    def close(self) -> None:
        if self._dam is not None:
            self._dam.set()
        super().close()


class Host:
    """One host: its workers over one arena, and the peer session of the generation."""

    def __init__(self, number: int, workers: Sequence[Worker]) -> None:
        self.number, self.workers = number, list(workers)
        self.session: PeerSession | None = None
        for worker in workers:
            worker.controls.rung = self._ring_session  # type: ignore[method-assign]

    @property
    def memory(self) -> memoryview:
        return memoryview(self.workers[0].arena._map)

    def level(self) -> int:
        return level(self.memory)

    def _ring_session(self) -> None:
        for bell in self.session.bells if self.session else ():
            os.eventfd_write(bell, 1)


class Lab:
    """Hosts that can reach each other."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self.hosts = {host.number: host for host in hosts}
        self.generation = 0
        self.said: list[str] = []
        self.broken: list[tuple[int, Exception]] = []
        self.moved = threading.Event()
        self.dams: dict[tuple[int, int], threading.Event] = {}  #: (from, to) -> sums flow while it is set

    def install(
        self, hosts: Sequence[int], driver: Sequence[int], sources: dict[int, int] | None = None, *,
        summed: bool = False,
    ) -> Install:  # fmt: skip
        """A new generation of these hosts: fence, peer sessions, workers."""
        for host in self.hosts.values():
            if host.session is not None:
                host.session.close()
                host.session = None
        self.generation += 1
        crew = [(worker, number) for number in hosts for worker in self.hosts[number].workers]
        install = Install(
            self.generation, [w.worker for w, _ in crew], [w.board.row for w, _ in crew], list(driver),
            [number for _, number in crew], sources or {},
        )  # fmt: skip
        if len(hosts) > 1:
            for number in hosts:
                host = self.hosts[number]
                host.session = PeerSession(
                    HostMemory(host.workers[0].arena._map), number, install, dial=partial(self._dial, number),
                    ring=self.moved.set, report=self.said.append,
                    broke=self._broke,
                )
        fetching = sources or {}
        for worker, number in sorted(crew, key=lambda one: one[1] in fetching):
            if number in fetching:
                self.until(lambda board=worker.board: self._complete(fetching) or board.current() >= self.generation)
                if worker.member._work.step < 0:  # it is new
                    worker.buffers.load(min(worker.board.versions()), everything=True)
            crew = Assignment(install.members, install.rows, install.drivers, install.hosts, summed=summed)
            worker.member.install(worker.worker, crew)
        return install

    def _broke(self, host: int, error: Exception) -> None:
        self.said.append(f"the connection to host {host} has ended ({error})")
        self.broken.append((host, error))
        self.moved.set()

    def _complete(self, fetching: dict[int, int]) -> None:
        """Let sources take the step that they can take alone: they serve when they have."""
        for source in set(fetching.values()):
            host = self.hosts[source]
            if host.level() > min(host.workers[0].board.versions()):
                for worker in host.workers:
                    worker.turn(work_of(min(worker.board.versions())))

    def _dial(self, me: int, to: int, kind: str) -> Stream:
        session = self.hosts[to].session
        if session is None:
            raise ConnectionRefusedError("not there yet")
        ours, theirs = self.pair()
        session.admit(me, kind, Dammed(theirs, _name(theirs, me), self.dams.get((to, me))))
        return Dammed(ours, _name(ours, to), self.dams.get((me, to)))

    def pair(self) -> tuple[socket.socket, socket.socket]:
        """Both ends of a connection."""
        return socket.socketpair()

    def until(self, done: object) -> None:
        """Wait for something that peer sessions bring about."""
        for _ in range(2000):
            if done():  # type: ignore[operator]
                return
            self.moved.wait(0.01)
            self.moved.clear()
        raise AssertionError(f"it does not come; said: {self.said}")

    def step(self, workers: Sequence[Worker], work: StepWork, chance: random.Random, actions: int = 10**9) -> bool:
        """Take workers through a step in a random order; False when `actions` were used up before."""
        left = list(workers)
        idle: set[int] = set()
        for _ in range(20_000):
            if not left:
                return True
            if actions <= 0:
                return False
            self.moved.clear()
            one = chance.choice(left)
            result = one.turn(work)
            if result == "done":
                left.remove(one)
                idle.clear()
            elif result == "computed":
                actions -= 1
                idle.clear()
            else:
                idle.add(one.worker)
                if len(idle) == len(left):  # everybody waits: for the peer sessions
                    self.moved.wait(0.005)
                    idle.clear()
                    actions -= 1
        raise AssertionError(f"step {work.step} does not come to its end; said: {self.said}")

    def close(self) -> None:
        for host in self.hosts.values():
            if host.session is not None:
                host.session.close()


def _name(sock: socket.socket, host: int) -> str:
    """Who is at the other end."""
    return name_of(sock.getpeername()) if sock.family == socket.AF_INET else f"host {host}"
