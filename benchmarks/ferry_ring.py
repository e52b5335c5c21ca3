"""An all-reduce over the exchange between hosts, without training: what `hosts_all_reduce` runs in every namespace.

    python -m benchmarks.ferry_ring ME ADDRESS,ADDRESS,... PORT BYTES ROUNDS

Each host has one worker whose gradient lies in its lane's slot. A round is a step without optimizer: arrive, send
partial sums to the slices' homes, sum there, send the sums to everybody. The step rule, the board, the slots, the ferry
and its streams are the package's own; only the greeting is left out. Prints JSON: seconds of each round and CPU seconds
of the whole process.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence

import torch
from torch import nn

from holdfast.coordinator.messages import Install
from holdfast.exchange import board as cells
from holdfast.exchange import buffers, chart, optimizer, slots
from holdfast.exchange.board import Board, board_bytes
from holdfast.exchange.buffers import Buffers
from holdfast.exchange.crew import Member
from holdfast.exchange.ferry import Ferry
from holdfast.exchange.optimizer import SliceOptimizer
from holdfast.exchange.schema import pin, probe
from holdfast.exchange.slots import LaneSlots
from holdfast.exchange.space import Space, dtype_name
from holdfast.exchange.work import StepWork
from holdfast.train import evaluation, schedule
from holdfast.transport.arena import Arena, Sections
from holdfast.transport.doorbell import Doorbells
from holdfast.transport.link import Link
from holdfast.transport.stream import PlainStream, Stream


class SumOnly(Member):
    """A member whose steps end with the sum."""

    def _finish(self, slices: Sequence[int]) -> None:
        for index in slices:
            self.board.publish(index, self._work.step + 1)


class Steady:
    """Nobody steers; waiting is on the own bell."""

    pausing = False

    def __init__(self, bell: int) -> None:
        ours, self._theirs = Link.pair()
        self._ours = ours
        self.bells = Doorbells(ours.fileno())
        self._bell = bell

    def install(self, ferry: tuple[int, ...]) -> None:
        self.bells.replace([os.dup(self._bell), *map(os.dup, ferry)], 0, 1)

    def look(self) -> None:
        """Nobody speaks."""

    def rest(self, step: int) -> None:
        raise AssertionError("nobody asked for rest")

    def wait(self, changed: Callable[[], bool]) -> None:
        self.bells.wait(changed, 0.5)

    def ring(self) -> None:
        self.bells.ring()


def main(me: int, addresses: Sequence[str], port: int, size: int, rounds: int) -> None:
    """One host's part."""
    torch.set_num_threads(1)
    hosts, number = len(addresses), size // 4
    model = nn.Module()
    model.p = nn.Parameter(torch.zeros(number))
    user = torch.optim.SGD(model.parameters(), lr=0.0)
    pin(user)
    space = Space([model], user)
    schemas = {(0, dtype_name(torch.float32)): probe(user, 0, torch.float32)}
    sections, rows, count = Sections(), 2 * hosts, len(space.layout.slices)
    sections.add("board", board_bytes(hosts, rows, count))
    optimizer.add_sections(sections, space, schemas, rows)
    slots.add_sections(sections, space, hosts)
    buffers.add_sections(sections, space, hosts)
    schedule.add_sections(sections, rows)
    evaluation.add_sections(sections)
    data = chart.add_section(sections, space.layout, hosts, rows, [], 0)
    arena = Arena(sections)
    board = Board(arena.section("board"), hosts, rows, count)
    board.format()
    chart.write_chart(arena, board, data)
    bell = os.eventfd(0, os.EFD_NONBLOCK)
    controls = Steady(bell)
    lanes = LaneSlots(space, arena, board)
    member = SumOnly(
        space, board, lanes, SliceOptimizer(user, space, schemas, arena, rows), Buffers([model], space, arena, hosts),
        controls,
    )
    board.claim(me, me, os.getpid())
    everybody = list(range(hosts))
    install = Install(1, everybody, everybody, everybody, everybody, {})
    listener = socket.create_server((addresses[me], port))
    ferry = Ferry(
        memoryview(arena._map), me, install, dial=lambda to, _: _dial(me, addresses[to], port),
        ring=lambda: os.eventfd_write(bell, 1), report=print, broke=lambda host, why: print(why, file=sys.stderr),
    )
    threading.Thread(target=_accept, args=(listener, ferry), daemon=True).start()
    controls.install(ferry.bells)
    member.install(me, everybody, everybody, everybody, everybody)
    member.hyper = [{"lr": 0.0}]
    generator = torch.Generator().manual_seed(me)
    flat = lanes._flats[me]["float32"]
    flat[:number].copy_(torch.randn(number, generator=generator))
    seconds: list[float] = []
    for step in range(rounds):
        work = StepWork(step, tuple(everybody), (1,) * hosts)
        began = time.perf_counter()
        board.put_work(step, work.lanes)
        board.put_result(me, step, 1, 0.0, 0.0, 0.0)
        board.close_facts(me, step)
        board.close_slot(me, step, 1)
        if member.next_lane(work) is not None:
            raise AssertionError("a lane is left to compute")
        seconds.append(time.perf_counter() - began)
        if step == 0:
            _check(lanes._sums["float32"][:number], number, hosts)
            before = resource.getrusage(resource.RUSAGE_SELF)
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"seconds": seconds[1:], "cpu": cpu, "waited": board.cell(me, cells.R_WAIT_NS) / 1e9}), flush=True)
    time.sleep(0.5)  # the others may still be receiving what this host has sent
    ferry.close()


def _check(found: torch.Tensor, number: int, hosts: int) -> None:
    from holdfast.core.tree import reference_sum

    leaves = {h: torch.randn(number, generator=torch.Generator().manual_seed(h)) for h in range(hosts)}
    if not torch.equal(found, reference_sum(leaves, hosts, torch.add)):
        raise AssertionError("the sum is not the definition's")


def _dial(me: int, address: str, port: int) -> Stream:
    sock = socket.create_connection((address, port), timeout=5)
    sock.sendall(bytes([me]))
    return PlainStream(sock, address)


def _accept(listener: socket.socket, ferry: Ferry) -> None:
    while True:
        sock, address = listener.accept()
        ferry.admit(sock.recv(1)[0], "peer", PlainStream(sock, str(address)))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2].split(","), *map(int, sys.argv[3:6]))
