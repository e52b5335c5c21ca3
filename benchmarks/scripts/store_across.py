"""The store between two hosts: one keeps the servers, the other one is the client.

    store_across.py serve ADDRESS DIRECTORY          says "ready" in DIRECTORY/address, serves until it is ended
    store_across.py trips DIRECTORY OUT ROUNDS SIZE:TIMES ...

The client writes to OUT, for each size, the seconds of one push + apply + pull (the mean of TIMES, one figure for each
round), and whether the servers have the true value at the end. What they do is real: w -= 0.1 * g.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from benchmarks.harness import wait_until
from benchmarks.scripts.store_contender import RATE
from holdfast import store


def serve(address: str, directory: Path) -> None:
    """Keep one server, reached over the network."""
    handler = f"{Path(__file__).with_name('store_contender.py')}:descend"
    with store.local(servers=1, handler=handler, listen=address) as group:
        group.write_credentials(directory / "credentials")
        (directory / "address.new").write_text(group.far_address)
        (directory / "address.new").rename(directory / "address")
        time.sleep(3600)  # whoever started us ends us


def trips(directory: Path, out: Path, rounds: int, sizes: dict[int, int]) -> None:
    """Push + apply + pull, as often as asked."""
    torch.set_num_threads(1)
    where = directory / "address"
    wait_until(where.exists, f"{where}")
    found: dict[int, list[float]] = {}
    right = True
    with store.connect(where.read_text(), "client", credentials=directory / "credentials") as mine:
        for size, times in sizes.items():
            gradient = torch.randn(size // 4, generator=torch.Generator().manual_seed(0))
            key, made = str(size), 1
            mine.init(key, torch.zeros_like(gradient)).wait()
            value = mine.push_pull(key, gradient).result()
            found[size] = []
            for _ in range(rounds):
                start = time.perf_counter()
                for _ in range(times):
                    del value
                    value = mine.push_pull(key, gradient).result()
                found[size].append((time.perf_counter() - start) / times)
                made += times
            # As many steps of -0.1 g, rounded each time: near enough shows that all of them were made.
            right &= torch.allclose(value, -RATE * made * gradient, rtol=1e-3, atol=1e-3)
    out.write_text(json.dumps({"found": found, "right": right}))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], Path(sys.argv[3]))
    else:
        pairs = (word.split(":") for word in sys.argv[5:])
        trips(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), {int(size): int(n) for size, n in pairs})
