"""A model of 20 MB whose processes say how they use memory, or run out of it. All its numbers are the same, always.

    large.py [--count DIR] [--starve WORKER:STEP]... [--starve-at-once WORKER] [--go FILE]

With --count, every process leaves in DIR how many bytes it has moved through sockets, and through files and pipes,
since it was prepared. With --starve, this worker or server runs out of memory where its optimizer runs, from this step
on: it limits its own address space, and asks for more; or at once, when it has joined. Units are slow until FILE is
there.
"""

from __future__ import annotations

import argparse
import resource
import socket
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast as hf

NUMBERS = 5_000_000
_RECEIVING = ("recv", "recv_into", "recvfrom", "recvfrom_into", "recvmsg", "recvmsg_into")
_SENDING = ("send", "sendmsg", "sendto", "sendall")


class Large(nn.Module):
    """Every number has the same gradient: one that went another way was not updated with the others."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(NUMBERS))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * x.mean() - 1.0).square().sum()


class Counted:
    """Bytes that this process moves."""

    def __init__(self) -> None:
        self.moved = 0
        self._files = self._rwchar()
        for name in (*_RECEIVING, *_SENDING):
            setattr(socket.socket, name, self._counting(name, getattr(socket.socket, name)))

    def _counting(self, name: str, act: Any) -> Any:
        def counted(this: socket.socket, *args: Any, **options: Any) -> Any:
            found = act(this, *args, **options)
            self.moved += len(args[0]) if name == "sendall" else _length(found)
            return found

        return counted

    def _rwchar(self) -> int:
        lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        return int(lines["rchar"]) + int(lines["wchar"])

    def said(self) -> str:
        return f"{self.moved} {self._rwchar() - self._files}\n"


def _length(found: Any) -> int:
    first = found[0] if isinstance(found, tuple) else found
    return first if isinstance(first, int) else len(first)


def starve() -> None:
    """Really have no memory left, as with `ulimit -v`."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (16 << 20), resource.RLIM_INFINITY))
    torch.empty(64 << 20)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=Path)
    parser.add_argument("--starve", action="append", default=[], metavar="WORKER:STEP")
    parser.add_argument("--starve-at-once", type=int, default=-1, metavar="WORKER")
    parser.add_argument("--go", type=Path)
    args = parser.parse_args()
    run = hf.join(reduction="mean")  # as in tally.py
    limits = {int(worker): int(step) for worker, step in (text.split(":") for text in args.starve)}
    if run.worker == args.starve_at_once:
        starve()

    class Starving(torch.optim.SGD):
        def step(self, closure: None = None) -> None:
            small = self.param_groups[0]["params"][0].numel() < 100  # it is only being tried
            if not small and run.step >= limits.get(run.worker, 1 << 60):
                starve()
            super().step(closure)

    model = Large()
    optimizer = Starving(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(TensorDataset(torch.arange(64.0) / 64), batch_size=8, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    counted = Counted() if args.count else None
    for _ in run.epochs(1):
        for (x,) in loader:
            time.sleep(0.2 if args.go and not args.go.exists() else 0.0)
            model(x).backward()
            optimizer.step()
            optimizer.zero_grad()
    if run.lead:
        print("numbers", *model.weight.unique().tolist())
    if counted is not None:
        (args.count / f"worker-{run.worker}").write_text(counted.said())


if __name__ == "__main__":
    main()
