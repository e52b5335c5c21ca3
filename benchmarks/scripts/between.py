"""All-reduce between hosts: one process of each host, with all contenders in turns.

Every contender sums the same numbers of all hosts. `fill` and `sum` are not timed; `all_reduce` is, and its CPU seconds
are counted, those of all threads of the process (and of whatever else a contender adds in `cpu_seconds`). Between
turns gloo's barrier holds the hosts together, whoever's turn it is.

A rank writes rank-N.json: for every size and contender, (wall seconds, CPU seconds) per iteration of each round.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import resource
import time
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["OURS", "PEERS", "Contender", "contenders"]

#: gloo, in one call, and in pieces that are under way together (two of its threads then work at once).
PEERS = ("gloo", "gloo in 4 pieces")
#: Where ours is, as module:function. It is called as `make(rank, addresses, number, meet)` on every host: its rank, the
#: hosts' addresses in order of rank, how many float32 numbers there are, and a directory that all hosts see and where
#: nothing else is. It returns a Contender. While there is no such module, the peers run alone.
OURS = "benchmarks.scripts.crossing:make"


class Contender(Protocol):
    """One way to sum float32 numbers over all hosts."""

    def fill(self, values: Tensor) -> None:
        """This host's numbers."""

    def all_reduce(self) -> None:
        """Sum them. When it returns, this host can read the whole sum."""

    def sum(self) -> Tensor:
        """What it is."""

    def cpu_seconds(self) -> float:
        """CPU seconds used so far on this host for it, all processes and threads."""

    def close(self) -> None:
        """Let go of everything."""


class Gloo:
    """torch.distributed's own, in `pieces` calls that are under way together."""

    def __init__(self, number: int, pieces: int = 1) -> None:
        self._tensor = torch.zeros(number)
        self._pieces = self._tensor.chunk(pieces)

    def fill(self, values: Tensor) -> None:
        self._tensor.copy_(values)

    def all_reduce(self) -> None:
        if len(self._pieces) == 1:
            dist.all_reduce(self._tensor)
            return
        for work in [dist.all_reduce(piece, async_op=True) for piece in self._pieces]:
            work.wait()

    def sum(self) -> Tensor:
        return self._tensor

    def cpu_seconds(self) -> float:
        return own_cpu_seconds()

    def close(self) -> None:
        pass


def own_cpu_seconds() -> float:
    """Of this process, all its threads, in user mode and in the kernel."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def contenders(rank: int, addresses: list[str], number: int, meet: Path) -> dict[str, Contender]:
    """Everybody who takes part, by name."""
    found: dict[str, Contender] = {}
    name, _, function = OURS.partition(":")
    if importlib.util.find_spec(name) is not None:
        found["ours"] = getattr(importlib.import_module(name), function)(rank, addresses, number, meet)
    return found | {"gloo": Gloo(number), "gloo in 4 pieces": Gloo(number, 4)}


def round_of(contender: Contender, iterations: int) -> tuple[float, float]:
    """(wall, CPU) seconds of one all-reduce, on this host."""
    dist.barrier()
    contender.all_reduce()
    dist.barrier()
    start, used = time.perf_counter(), contender.cpu_seconds()
    for _ in range(iterations):
        contender.all_reduce()
    return (time.perf_counter() - start) / iterations, (contender.cpu_seconds() - used) / iterations


def right(contender: Contender, values: list[Tensor], rank: int) -> bool:
    """Is its sum the true one, but for the order of additions?"""
    contender.fill(values[rank])
    dist.barrier()
    contender.all_reduce()
    truth = torch.stack(values).double().sum(0)
    good = bool(torch.allclose(contender.sum().double(), truth, rtol=1e-5, atol=1e-5))
    # gloo sums in place: sums of sums would overflow, so all get zeros from here on, which take as long.
    contender.fill(torch.zeros_like(values[rank]))
    dist.barrier()
    return good


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--rank", type=int, required=True)
    arguments.add_argument("--addresses", nargs="+", required=True)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--rounds", type=int, required=True)
    arguments.add_argument("--sizes", nargs="+", required=True, help="BYTES:ITERATIONS")
    arguments.add_argument("--only", help="one contender, to look at it alone")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    world = len(options.addresses)
    dist.init_process_group("gloo", init_method=f"file://{options.out}/meet", rank=options.rank, world_size=world)
    correct = True
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for text in options.sizes:
        size, iterations = map(int, text.split(":"))
        meet = options.out / f"ours-{size}"
        meet.mkdir(exist_ok=True)
        dist.barrier()
        number = size // 4
        taking_part = contenders(options.rank, options.addresses, number, meet)
        if options.only:
            taking_part = {options.only: taking_part[options.only]}
        values = [torch.randn(number, generator=torch.Generator().manual_seed(seed)) for seed in range(world)]
        for contender in taking_part.values():  # all of them, whatever was found: the others wait for this host
            correct = right(contender, values, options.rank) and correct
        found[str(size)] = {name: [] for name in taking_part}
        for _ in range(options.rounds):
            for name, contender in taking_part.items():
                found[str(size)][name].append(round_of(contender, iterations))
        dist.barrier()  # whoever is done first must not hang up on the others
        for contender in taking_part.values():
            contender.close()
    (options.out / f"rank-{options.rank}.json").write_text(json.dumps({"right": correct, "found": found}))
    dist.barrier()
    os._exit(0)  # seen: gloo's threads abort, now and then, in an orderly teardown; all is written by now


if __name__ == "__main__":
    main()
