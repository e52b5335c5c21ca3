"""All-reduce between two processes: Holdfast's shared memory beside gloo.

Ours is what a training step does with gradients, without the training: each process's numbers lie in its
lane's slot in the arena (backward writes them there), each owner adds the slots of its slices, slice by
slice, into the shared sum, doorbells wake whoever waits, and at the end everybody may read the whole sum.
The layout, owners, board, arena and doorbells are the package's own. gloo gets a tensor in private memory
and leaves the sum in it. So that nobody is fooled by where the numbers lie, a second line adds what a
program pays whose numbers start and end in private memory: a copy into the slot and a copy of the sum.

Both run in the same two processes, in turns; before the timing the sums are compared with the true one.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

from benchmarks.harness import Failed, scratch
from benchmarks.report import Check, Line, Result, Series
from holdfast.core.slices import TensorEntry, layout, owners
from holdfast.dataplane.memory.arena import Arena, Sections
from holdfast.dataplane.memory.board import R_ARRIVED, Board, board_bytes
from holdfast.transport.doorbell import Doorbells
from holdfast.transport.link import Link
from holdfast.transport.memory import reserve

SIZES = {"0.1 MB": 25_000, "1 MB": 250_000, "10 MB": 2_500_000, "100 MB": 25_000_000}
ITERATIONS = {"0.1 MB": 200, "1 MB": 100, "10 MB": 15, "100 MB": 5}
TARGET = 4.0
_SLICE = 1 << 20  # bytes, as in training
_PATIENCE = 30.0  # seconds after which a process that waits for its peer gives up


class Exchange:
    """The sum of two lanes through an arena, as one of two processes (`rank`) does it."""

    def __init__(self, number: int, fd: int, bells: Doorbells, rank: int) -> None:
        self._rank, self._bells, self._round = rank, bells, 0
        entry = TensorEntry(name="gradient", numel=number, dtype="float32", itemsize=4, group=0)
        self._layout = layout([entry], target_bytes=min(_SLICE, 2 * number))
        owner = owners(self._layout, [0, 1])
        arena = Arena(sections_for(number), fd=fd)
        self._board = Board(arena.section("board"), 2, 2, len(self._layout.slices))
        if rank == 0:
            self._board.format()
        sections = [arena.section(name) for name in ("slot/0", "slot/1", "sum")]
        flats = [torch.frombuffer(section, dtype=torch.float32)[:number] for section in sections]
        self.mine, self.sum = flats[rank], flats[2]
        mine = [piece for piece, who in zip(self._layout.slices, owner, strict=True) if who == rank]
        self._work = [(piece.index, [flat[piece.start : piece.stop] for flat in flats]) for piece in mine]

    def claim(self) -> None:
        """Take my row, once the board is formatted."""
        self._board.claim(self._rank, self._rank, os.getpid())

    def all_reduce(self) -> None:
        """My slot is full: add up, until the whole sum is there."""
        board, turn = self._board, self._round + 1
        self._round = turn
        board.put(R_ARRIVED, turn)
        self._bells.ring()
        self._wait(lambda: board.cell(1 - self._rank, R_ARRIVED) >= turn)
        for index, (left, right, out) in self._work:
            torch.add(left, right, out=out)
            board.publish(index, turn)
        self._bells.ring()
        self._wait(lambda: min(board.versions()) >= turn)

    def all_reduce_copied(self, private: torch.Tensor, result: torch.Tensor) -> None:
        """The same for numbers that start and end in private memory."""
        self.mine.copy_(private)
        self.all_reduce()
        result.copy_(self.sum)

    def _wait(self, done: Callable[[], bool]) -> None:
        if not self._bells.wait(done, _PATIENCE):
            raise Failed(f"rank {self._rank} waited {_PATIENCE:.0f} s for its peer in round {self._round}")


def sections_for(number: int) -> Sections:
    """The arena of one exchange."""
    sections = Sections()
    sections.add("board", board_bytes(2, 2, -(-number * 4 // min(_SLICE, 2 * number)) + 2))
    for name in ("slot/0", "slot/1", "sum"):
        sections.add(name, number * 4 + 64)
    return sections


def _rank(
    rank: int, meet: str, fds: dict[str, int], bell_fds: list[int], repeats: int, names: list[str], pipe: Connection
) -> None:
    """One of the two processes. Rank 0 sends name -> contender -> seconds of each round."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2)
    ours, theirs = Link.pair()  # in training the coordinator is at its other end; here nobody speaks
    bells = Doorbells(ours.fileno())
    bells.replace(bell_fds, rank)
    found: dict[str, dict[str, list[float]]] = {}
    right = True
    for name in names:
        number = SIZES[name]
        exchange = Exchange(number, fds[name], bells, rank)
        dist.barrier()
        exchange.claim()
        dist.barrier()
        values = [torch.randn(number, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
        truth, private, result = values[0] + values[1], values[rank].clone(), torch.empty(number)
        exchange.mine.copy_(private)
        exchange.all_reduce()
        dist.all_reduce(private)
        right = right and torch.equal(exchange.sum, truth) and torch.equal(private, truth)
        # gloo sums in place: sums of sums would overflow, so it gets zeros, which take as long.
        contenders: dict[str, Callable[[], object]] = {
            "ours": exchange.all_reduce, "gloo": partial(dist.all_reduce, torch.zeros(number)),
            "copies": partial(exchange.all_reduce_copied, private, result),
        }  # fmt: skip
        found[name] = {contender: [] for contender in contenders}
        for _ in range(repeats):
            for contender, act in contenders.items():
                found[name][contender].append(_timed(act, ITERATIONS[name]))
    pipe.send((right, found if rank == 0 else {}))
    dist.barrier()
    dist.destroy_process_group()
    bells.close()
    ours.close()
    theirs.close()


def _timed(act: Callable[[], object], iterations: int) -> float:
    """The mean: where processes take turns on a core, a median could show only the short turns."""
    dist.barrier()
    act()
    start = time.perf_counter()
    for _ in range(iterations):
        act()
    return (time.perf_counter() - start) / iterations


def measure(repeats: int, quick: bool) -> Result:
    """Both contenders in the same two processes, in turns."""
    names = list(SIZES)[:3] if quick else list(SIZES)
    fork = multiprocessing.get_context("fork")
    fds = {name: reserve(sections_for(SIZES[name]).size) for name in names}
    bell_fds = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(2)]
    with scratch() as where:
        pipes = [fork.Pipe(duplex=False) for _ in range(2)]
        shared = (str(where / "meet"), fds, bell_fds, repeats, names)
        children = [fork.Process(target=_rank, args=(rank, *shared, pipes[rank][1])) for rank in range(2)]
        for child, (_, theirs) in zip(children, pipes, strict=True):
            child.start()
            theirs.close()
        try:
            answers = [ours.recv() for ours, _ in pipes]
        except EOFError:
            raise Failed("a process of the all-reduce ended before its time; its trace is above") from None
        finally:
            for child in children:
                child.join(10.0)
                child.kill()
            for fd in (*fds.values(), *bell_fds):
                os.close(fd)
    found = answers[0][1]
    lines = []
    for name in names:
        series = {contender: Series(tuple(1e3 * s for s in found[name][contender])) for contender in found[name]}
        lines.append(Line(name, "ms", series["ours"], series["gloo"], "gloo", higher=False, target=TARGET))
    for name in names:
        series = {contender: Series(tuple(1e3 * s for s in found[name][contender])) for contender in found[name]}
        lines.append(Line(f"{name}, copied in and out", "ms", series["copies"], series["gloo"], "gloo", higher=False))
    right = all(answer[0] for answer in answers)
    return Result(
        "all_reduce", "All-reduce between two processes (float32, wall time)", lines,
        [Check("both sums equal the true one, bit for bit", str(right).lower(), "true", right)],
        ["figures are means of a round's iterations on rank 0; the sum stays in shared memory, where training uses it"],
    )  # fmt: skip
