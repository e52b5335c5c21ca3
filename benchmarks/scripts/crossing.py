"""Holdfast's all-reduce between hosts, without training: see `between`.

Each host has one worker whose gradient lies in its lane's slot. An all-reduce is a step without optimizer: arrive, send
partial sums to the slices' homes, sum there, send the sums to everybody. The step rule, the board, the slots, the peer
session and its streams are the package's own; only the greeting is left out.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.harness import wait_until
from benchmarks.scripts.between import own_cpu_seconds
from holdfast.config.run_config import board_rows
from holdfast.control.protocol.messages import Install
from holdfast.core.roles import Assignment
from holdfast.core.sync.modes import EXACT
from holdfast.dataplane.memory import manifest
from holdfast.dataplane.memory.arena import Arena
from holdfast.dataplane.memory.board import Board
from holdfast.dataplane.memory.host_memory import HostMemory
from holdfast.dataplane.memory.sections import lay_out, measure
from holdfast.dataplane.memory.space import Space, dtype_name
from holdfast.dataplane.reduce import optimizer
from holdfast.dataplane.reduce.buffers import Buffers
from holdfast.dataplane.reduce.gradients import LaneGradients
from holdfast.dataplane.reduce.member import Member
from holdfast.dataplane.reduce.optimizer import SliceOptimizer
from holdfast.dataplane.reduce.schema import pin, probe
from holdfast.dataplane.reduce.work import StepWork
from holdfast.dataplane.wire.session import PeerSession
from holdfast.transport import congestion
from holdfast.transport.doorbell import Doorbells
from holdfast.transport.link import Link
from holdfast.transport.stream import PlainStream, Stream

__all__ = ["Crossing", "make"]


class SumOnly(Member):
    """A member whose steps end with the sum."""

    def _finish(self, slices: Sequence[int]) -> None:
        for index in slices:
            self.board.publish(index, self._work.step + 1)


class Steady:
    """Nobody steers; waiting is on the own bell."""

    pausing = False

    def __init__(self, bell: int) -> None:
        self._ours, self._theirs = Link.pair()
        self.bells = Doorbells(self._ours.fileno())
        self._bell = bell

    def install(self, session: tuple[int, ...]) -> None:
        self.bells.replace([os.dup(self._bell), *map(os.dup, session)], 0, 1)

    def look(self) -> None:
        """Nobody speaks."""

    def rest(self, step: int) -> None:
        raise AssertionError("nobody asked for rest")

    def wait(self, changed: Callable[[], bool]) -> None:
        self.bells.wait(changed, 0.5)

    def ring(self) -> None:
        self.bells.ring()

    def close(self) -> None:
        self.bells.close()
        self._ours.close()
        self._theirs.close()


class Crossing:
    """One host's part. Resources: `close` ends the peer session and its connections."""

    def __init__(self, rank: int, addresses: list[str], number: int, meet: Path) -> None:
        self._rank, self._number, self._meet, hosts = rank, number, meet, len(addresses)
        self._addresses, self._everybody, self._step = addresses, list(range(hosts)), 0
        model = nn.Module()
        model.p = nn.Parameter(torch.zeros(number))
        user = torch.optim.SGD(model.parameters(), lr=0.0)
        pin(user)
        space = Space([model], user)
        schemas = {(0, dtype_name(torch.float32)): probe(user, 0, torch.float32)}
        rows, count, state = board_rows(hosts), len(space.layout.slices), optimizer.state_sizes(space, schemas)
        sizes = measure(space, space.room(hosts), rows, state=state, undo=optimizer.undo_bytes(space, schemas))
        sections = lay_out(sizes, EXACT)
        data = manifest.add_section(sections, space, space.room(hosts), rows)
        arena = Arena(sections)
        self._board = Board(arena.section("board"), hosts, rows, count)
        self._board.format()
        manifest.write_manifest(arena, self._board, data)
        bell = os.eventfd(0, os.EFD_NONBLOCK)
        self._controls = Steady(bell)
        lanes = LaneGradients(space, arena, self._board)
        self._member = SumOnly(
            space, self._board, lanes, SliceOptimizer(user, space, schemas, arena.section, rows),
            Buffers([model], space, arena, hosts), self._controls,
        )  # fmt: skip
        self._board.claim(rank, rank, os.getpid())
        everybody = self._everybody
        self._listener = socket.create_server((addresses[rank], 0))
        congestion.prefer_short(self._listener)
        (meet / f"{rank}.new").write_text(str(self._listener.getsockname()[1]))
        os.rename(meet / f"{rank}.new", meet / f"port-{rank}")
        self._session = PeerSession(
            HostMemory(arena._map), rank, Install(1, everybody, everybody, everybody, everybody, {}),
            dial=lambda to, _: self._dial(to), ring=lambda: os.eventfd_write(bell, 1), report=print,
            broke=lambda _, why: print(why, file=sys.stderr),
        )  # fmt: skip
        threading.Thread(target=self._accept, daemon=True).start()
        self._controls.install(self._session.bells)
        self._member.install(rank, Assignment(everybody, everybody, everybody, everybody))
        self._member.hyper = [{"lr": 0.0}]
        self._member.finite = False  # gloo does not look for NaN either
        self._mine, self._sum = lanes._flats[rank]["float32"][:number], lanes._sums["float32"][:number]

    def fill(self, values: Tensor) -> None:
        self._mine.copy_(values)

    def all_reduce(self) -> None:
        board, rank, step, hosts = self._board, self._rank, self._step, len(self._everybody)
        self._step += 1
        work = StepWork(step, tuple(self._everybody), (1,) * hosts)
        board.put_work(step, work.lanes)
        board.put_result(rank, step, 1, 0.0, 0.0, 0.0)
        board.close_facts(rank, step)
        board.close_slot(rank, step, 1)
        if self._member.next_lane(work) is not None:
            raise AssertionError("a lane is left to compute")

    def sum(self) -> Tensor:
        return self._sum

    def cpu_seconds(self) -> float:
        return own_cpu_seconds()

    def close(self) -> None:
        self._session.close()
        self._listener.close()
        self._controls.close()

    def _dial(self, to: int) -> Stream:
        port = self._meet / f"port-{to}"
        wait_until(port.exists, f"{port}")
        sock = socket.socket()
        congestion.prefer_short(sock)
        sock.settimeout(5)
        sock.connect((self._addresses[to], int(port.read_text())))
        sock.sendall(bytes([self._rank]))
        return PlainStream(sock, self._addresses[to])

    def _accept(self) -> None:
        while True:
            try:
                sock, address = self._listener.accept()
            except OSError:
                return
            self._session.admit(sock.recv(1)[0], "peer", PlainStream(sock, str(address)))


def make(rank: int, addresses: list[str], number: int, meet: Path) -> Crossing:
    """See `between.OURS`."""
    return Crossing(rank, addresses, number, meet)
