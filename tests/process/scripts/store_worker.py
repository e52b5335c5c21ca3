"""A worker of the store for tests: pushes ones to a key until it has pushed so many, whoever is killed meanwhile.

    python store_worker.py ADDRESS NAME KIND PUSHES [CREDENTIALS]

Started again after a kill, it goes on after the last push that was applied. KIND is "dense", "both" (push_pull of the
same), "rows", "spread" or "several" (one push of many keys). CREDENTIALS are for servers on another host.
"""

from __future__ import annotations

import sys

import torch

from holdfast import store

SIZE = 1_500_000  # numbers, 6 MB: three pieces
ROWS, WIDTH = 400, 50
KEYS = [f"w{i}" for i in range(20)]  # at all servers, several at each


def main(address: str, name: str, kind: str, pushes: str, credentials: str | None = None) -> None:
    torch.set_num_threads(1)
    with store.connect(address, name, credentials=credentials) as mine:
        if kind == "several":
            several(mine, int(pushes))
            return
        if kind in ("dense", "both"):
            mine.init("w", torch.zeros(SIZE)).wait()
            value: torch.Tensor | store.Rows = torch.ones(SIZE)
        else:
            mine.init("w", torch.zeros(ROWS, WIDTH), spread=kind == "spread").wait()
            value = store.Rows(list(range(0, ROWS, 2)), torch.ones(ROWS // 2, WIDTH))
        print("going", flush=True)
        for number in range(mine.applied("w") + 1, int(pushes) + 1):
            if kind == "both":
                view = mine.push_pull("w", value, number=number).result()
                assert number <= view.min() == view.max(), "it is of one version, and has our push"
                continue
            mine.push("w", value, number=number)
            if number % 5 == 0:
                mine.pull("w").result()
            if number % 50 == 0 and kind == "dense":
                mine.barrier(f"push {number}", clients=1).wait()


def several(mine: store.Store, pushes: int) -> None:
    mine.init(KEYS, [torch.zeros(WIDTH)] * len(KEYS)).wait()
    values = [torch.ones(WIDTH)] * len(KEYS)
    print("going", flush=True)
    for number in range(mine.applied(KEYS) + 1, pushes + 1):
        if number % 5:
            mine.push(KEYS, values, number=number)
            continue
        views = mine.push_pull(KEYS, values, number=number).result()
        assert all(number <= view.min() == view.max() for view in views), "each is of one version, and has our push"


if __name__ == "__main__":
    main(*sys.argv[1:])
