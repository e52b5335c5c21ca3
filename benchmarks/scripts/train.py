"""A plain PyTorch loop; without `--plain`, with the three lines that make it a Holdfast run."""

from __future__ import annotations

import json
import time
from typing import Any

import torch
from torch.utils.data import DataLoader

from benchmarks.scripts.options import Stopwatch, parser, write_figures
from benchmarks.workloads import Samples, StepLog, batch_itself, loss_of, model_of, optimizer_of


def version_of(run: Any) -> int:
    """What the unit at hand is computed from, in relaxed modes: no user of a run needs to know."""
    relaxed = run._training.bound.relaxed
    assert relaxed is not None, "a version is a step in exact"
    return int(relaxed.read)


def main() -> None:
    arguments = parser("Train under holdfast run, under plain python, or without holdfast.")
    arguments.add_argument("--plain", action="store_true", help="without holdfast")
    arguments.add_argument("--fused", action="store_true", help="ask torch for its fused optimizer")
    arguments.add_argument("--parts", type=int, default=1, help="without holdfast: add up gradients of so many parts")
    arguments.add_argument("--by-steps", action="store_true", help="loop by steps")
    arguments.add_argument("--sections", action="store_true", help="write where things lie in the arena")
    options = arguments.parse_args()
    length = (options.warm + options.steps) * options.batch
    if options.plain:
        torch.set_num_threads(1)
        torch.manual_seed(0)
    else:
        import holdfast as hf

        run = hf.join(lanes=options.lanes)
    data = Samples(options.workload, length)
    loader = DataLoader(data, batch_size=options.batch, shuffle=True, collate_fn=batch_itself)
    model = model_of(options.workload)
    optimizer = optimizer_of(options.optimizer, model, fused=options.fused)
    watch = Stopwatch(options.warm)
    if options.plain:
        for step, (x, y) in enumerate(loader):
            watch.at(step)
            for part_x, part_y in zip(x.chunk(options.parts), y.chunk(options.parts), strict=True):
                (loss_of(model, part_x, part_y) / options.parts).backward()
            optimizer.step()
            optimizer.zero_grad()
        write_figures(options.out, options, watch.seconds())
        return

    model, optimizer, loader = run.prepare(model, optimizer, loader)
    log = StepLog(options.out if options.note_steps or options.note_versions else None)
    nap = options.unit_ms / 1000 * (options.factor if run.worker == options.slow else 1)
    for _ in run.epochs(1):
        for turn in run.steps(loader) if options.by_steps else ():
            watch.at(turn.number)
            log.note(turn.number)
            for x, y in turn:
                loss_of(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
        for x, y in () if options.by_steps else loader:
            watch.at(run.step)
            log.note(version_of(run) if options.note_versions else run.step)
            if options.sections and run.lead and run.step == 1 and run._training is not None:
                spans = run._training.bound.arena.sections.spans  # the benchmark of memory looks inside
                (options.out / "sections.json").write_text(json.dumps(spans))
            if nap:
                time.sleep(nap * len(x) * options.lanes / options.batch)
            loss_of(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
    if options.note_steps:
        log.note(run.step)
    seconds = watch.seconds()
    if run.lead:
        write_figures(options.out, options, seconds, weights_sha256=run.weights_sha256())


if __name__ == "__main__":
    main()
