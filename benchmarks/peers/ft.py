"""torchft's fault-tolerant DDP: one replica group of one process on each host, as in its train_ddp.py.

    ft.py --address MINE --lighthouse http://HOST:PORT --batch 64 --out DIR [--collective S] [--timeout S]

The default timeouts are those of torchft's own example. A step counts when `should_commit` said yes: the manager's step
number goes up then, and not when a replica died in the middle of it.
"""

from __future__ import annotations

import argparse
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # it is documented there
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

from benchmarks.workloads import Samples, StepLog, loss_of, model_of, optimizer_of


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--address", required=True)
    arguments.add_argument("--lighthouse", required=True)
    arguments.add_argument("--batch", type=int, required=True, help="of all replicas, when there are 3")
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--collective", type=float, default=5.0, help="seconds")
    arguments.add_argument("--timeout", type=float, default=10.0, help="seconds")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    share = options.batch // 3
    data = Samples("lenet", 1 << 20)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(1))
    store = TCPStore(options.address, 0, is_master=True, wait_for_workers=False)
    net = model_of("lenet")
    inner = optimizer_of("sgd", net, fused=True)

    def load(tree: dict[str, Any]) -> None:
        net.load_state_dict(tree["model"])
        inner.load_state_dict(tree["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=options.collective)),
        min_replica_size=2, load_state_dict=load,
        state_dict=lambda: {"model": net.state_dict(), "optimizer": inner.state_dict()},
        replica_id=f"host_{options.address}", timeout=timedelta(seconds=options.timeout), rank=0, world_size=1,
        store_addr=options.address, store_port=store.port, lighthouse_addr=options.lighthouse,
        hostname=options.address,
    )  # fmt: skip
    model = DistributedDataParallel(manager, net)
    optimizer = Optimizer(manager, inner)
    log = StepLog(options.out)
    while True:
        log.note(manager.current_step())
        start = (manager.current_step() * options.batch) % (len(data) - share)
        x, y = data.__getitems__(order[start : start + share])
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
