"""DistributedDataParallel under torchrun's elastic agent: what it trains when ranks come and go.

    torchrun --nnodes 2:3 ... elastic.py --batch 64 --steps 100000 --out DIR [--timeout S]

After a restart it begins anew, as a script without checkpoints does; only the time until it steps again is looked at.
`--timeout` is that of collectives: a rank whose peer has gone silent waits that long (torch's default: 30 minutes).
"""

from __future__ import annotations

import argparse
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.workloads import Samples, StepLog, loss_of, model_of, optimizer_of


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--batch", type=int, required=True)
    arguments.add_argument("--steps", type=int, required=True)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--timeout", type=float, help="seconds")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", timeout=timedelta(seconds=options.timeout) if options.timeout else None)
    rank, world = dist.get_rank(), dist.get_world_size()
    share = options.batch // world
    data = Samples("lenet", 1 << 20)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(1))
    model = DistributedDataParallel(model_of("lenet"), gradient_as_bucket_view=True, static_graph=True)
    optimizer = optimizer_of("sgd", model, fused=True)
    log = StepLog(options.out)
    for step in range(options.steps):
        log.note(step)
        start = (step * options.batch + rank * share) % (len(data) - share)
        x, y = data.__getitems__(order[start : start + share])
        loss_of(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
