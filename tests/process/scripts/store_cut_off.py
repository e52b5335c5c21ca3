"""A store on one host and a client on another one whose cable is pulled out.

    store_cut_off.py serve ADDRESS DIRECTORY
    store_cut_off.py push DIRECTORY

The client pushes until a push is late, says why, waits for it, pushes once more, and compares the value.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

from holdfast import store
from holdfast.errors import StoreTimeout

SIZE = 500_000


def serve(address: str, directory: Path) -> None:
    with store.local(listen=address) as group:
        group.write_credentials(directory / "credentials")
        (directory / "new").write_text(group.far_address)
        (directory / "new").rename(directory / "address")
        time.sleep(600)  # whoever started us ends us


def push(directory: Path) -> None:
    with store.connect((directory / "address").read_text(), "far", credentials=directory / "credentials") as mine:
        mine.init("w", torch.zeros(SIZE)).wait()
        pushes, late = 0, None
        while late is None:
            handle = mine.push_pull("w", torch.ones(SIZE))
            pushes += 1
            try:
                handle.result(timeout=1.0)
                if pushes == 10:
                    print("going", flush=True)
            except StoreTimeout as error:
                late = handle
                print(error, flush=True)
        assert late.result(timeout=60.0).min() == pushes
        last = mine.push_pull("w", torch.ones(SIZE)).result(timeout=60.0)
        assert last.min() == last.max() == pushes + 1
        print("all counted once", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], Path(sys.argv[3]))
    else:
        push(Path(sys.argv[2]))
