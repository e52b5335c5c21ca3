"""The same training under DistributedDataParallel on gloo: one process per rank, meeting through a file.

`--variant` says how DDP is set up; the benchmarks try all of them and let the fastest stand for DDP:

* default: as in the tutorial;
* view: `gradient_as_bucket_view=True`;
* best: that, `static_graph=True`, and the fused optimizer.

Under torchrun (for the benchmark of pauses) rank and world come from its environment.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.scripts.options import Stopwatch, parser, write_figures
from benchmarks.workloads import Samples, StepLog, loss_of, model_of, optimizer_of

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "view": {"gradient_as_bucket_view": True},
    "best": {"gradient_as_bucket_view": True, "static_graph": True},
}


def main() -> None:
    arguments = parser("Train under DistributedDataParallel.")
    arguments.add_argument("--variant", choices=sorted(VARIANTS), default="best")
    arguments.add_argument("--rank", type=int)
    arguments.add_argument("--world", type=int)
    arguments.add_argument("--meet", help="a file that does not exist yet")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        dist.init_process_group("gloo")
    else:
        meet = f"file://{options.meet}"
        dist.init_process_group("gloo", init_method=meet, rank=options.rank, world_size=options.world)
    rank, world = dist.get_rank(), dist.get_world_size()
    share, steps = options.batch // world, options.warm + options.steps
    data = Samples(options.workload, steps * options.batch)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(1))
    model = DistributedDataParallel(model_of(options.workload), **VARIANTS[options.variant])
    optimizer = optimizer_of(options.optimizer, model, fused=options.variant == "best")
    log = StepLog(options.out if options.note_steps else None)
    # Here a rank has an equal share of the batch for ever: so many lanes' worth of sleep.
    nap = options.unit_ms / 1000 * options.lanes / world * (options.factor if rank == options.slow else 1)
    watch = Stopwatch(options.warm)
    for step in range(steps):
        if step == options.warm:
            dist.barrier()
        watch.at(step)
        log.note(step)
        start = step * options.batch + rank * share
        x, y = data.__getitems__(order[start : start + share])
        if nap:
            time.sleep(nap)
        loss_of(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    log.note(steps)
    seconds = watch.seconds()
    if rank == 0:
        write_figures(options.out, options, seconds)
    dist.barrier()
    os._exit(0)  # seen: gloo's threads abort, now and then, in an orderly teardown; all is written by now


if __name__ == "__main__":
    main()
