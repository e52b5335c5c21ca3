"""A worker of the store for tests: pushes ones to a key until it has pushed so many, whoever is killed meanwhile.

    python store_worker.py ADDRESS NAME KIND PUSHES

Started again after a kill, it goes on after the last push that was applied. KIND is "dense", "rows" or "spread".
"""

from __future__ import annotations

import sys

import torch

from holdfast import store

SIZE = 1_500_000  # numbers, 6 MB: three pieces
ROWS, WIDTH = 400, 50


def main(address: str, name: str, kind: str, pushes: int) -> None:
    torch.set_num_threads(1)
    with store.connect(address, name) as mine:
        if kind == "dense":
            mine.init("w", torch.zeros(SIZE)).wait()
            value: torch.Tensor | store.Rows = torch.ones(SIZE)
        else:
            mine.init("w", torch.zeros(ROWS, WIDTH), spread=kind == "spread").wait()
            value = store.Rows(list(range(0, ROWS, 2)), torch.ones(ROWS // 2, WIDTH))
        print("going", flush=True)
        for number in range(mine.applied("w") + 1, pushes + 1):
            mine.push("w", value, number=number)
            if number % 5 == 0:
                mine.pull("w").result()
            if number % 50 == 0 and kind == "dense":
                mine.barrier(f"push {number}", clients=1).wait()


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
