"""What checkpoints cost: throughput with one every ten seconds, for how long the state stands still, a resumed start.

The model has 20 million parameters and Adam, so a checkpoint has 317 MiB. Beside it, how long `torch.save` and torch's
DCP (`async_save`) keep a process from training when they save the same model and optimizer. A run is resumed after
everything was killed; how much later than a fresh one its first generation begins is what a resume costs.
"""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path
from statistics import median

import torch
from torch.distributed.checkpoint.state_dict_saver import async_save

from benchmarks.harness import Crew, crew_figures, scratch, wait_until
from benchmarks.report import Check, Line, Result, Series
from benchmarks.workloads import model_of

#: At most 3% slower.
THROUGHPUT = 0.97
WAITS = 20.0  # ms
RESUMED = 5.0  # seconds more than a fresh start
_MLP = ("--workload", "mlp", "--batch", "32", "--optimizer", "adam", "--lanes", "4")


def _rate(every: str, quick: bool) -> tuple[float, list[tuple[float, float]]]:
    """Samples per second, and for how many milliseconds the state stood still and the crew waited, each time."""
    length = ("--steps", "60", "--warm", "5") if quick else ("--steps", "600", "--warm", "20")
    with scratch() as where:
        found = crew_figures(2, *_MLP, *length, where=where, options=["--threads", "1", "--checkpoint", every])
        story = (where / "run" / "story.jsonl").read_text()
    return found["samples_per_second"], [
        (float(held), float(waited))
        for held, waited in re.findall(r"stood still for (\d+) ms, of which the crew waited (\d+)", story)
    ]


def _peers() -> tuple[float, float]:
    """Milliseconds for which torch.save, and the staging of DCP's async_save, keep a process from training."""
    model = model_of("mlp")
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    with scratch() as where:
        began = time.perf_counter()
        torch.save(state, where / "state.pt")
        saved = time.perf_counter() - began
        began = time.perf_counter()
        future = async_save(state, checkpoint_id=str(where / "dcp"), no_dist=True)
        staged = time.perf_counter() - began
        getattr(future, "result", lambda: None)()
    return 1000 * saved, 1000 * staged


def _began(directory: Path) -> float:
    """When the first generation of a run began, in seconds of its own."""
    for line in (directory / "story.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if "generation 1 begins" in entry["sentence"]:
            return float(entry["now"])
    return float("nan")


def _resumed() -> tuple[float, float]:
    """The same of a fresh run of LeNet, and of that run resumed after all of it was killed."""
    lenet = ("--workload", "lenet", "--batch", "64", "--steps", "4000", "--warm", "1", "--lanes", "4")
    with scratch() as where:
        with Crew(2, *lenet, where=where, options=["--checkpoint", "50steps"]) as crew:
            wait_until(lambda: any((crew.directory / "checkpoints").glob("step-*")), "a checkpoint", 60.0)
            fresh = _began(crew.directory)
            crew.launcher.send_signal(signal.SIGKILL)
            crew.launcher.wait()
        with Crew(2, *lenet, where=where, options=["--resume", str(crew.directory)]) as crew:
            earlier = crew.directory / "earlier" / "1"  # the story of the time before goes there
            wait_until(lambda: earlier.exists() and _began(crew.directory) >= 0.0, "the first generation", 60.0)
            resumed = _began(crew.directory)
            crew.launcher.send_signal(signal.SIGKILL)
            crew.launcher.wait()
    return fresh, resumed


def measure(repeats: int, quick: bool) -> Result:
    """With checkpoints and without, in turns; then the rest."""
    every = "2s" if quick else "10s"
    rates: dict[str, list[float]] = {}
    still: list[tuple[float, float]] = []
    for turn in range(repeats):
        for name in ("off", every) if turn % 2 == 0 else (every, "off"):
            rate, each = _rate(name, quick)
            rates.setdefault(name, []).append(rate)
            still += each
    peers = [_peers() for _ in range(repeats)]
    starts = [_resumed() for _ in range(repeats)]
    saved, staged = Series(tuple(a for a, _ in peers)), Series(tuple(b for _, b in peers))
    fresh, resumed = Series(tuple(a for a, _ in starts)), Series(tuple(b for _, b in starts))
    later = median(b - a for a, b in starts)
    stood, waited = (median(one) for one in zip(*still, strict=True)) if still else (float("nan"), float("nan"))
    lines = [
        Line(f"20M parameters, Adam, a checkpoint every {every}", "samples/s", Series(tuple(rates[every])),
             Series(tuple(rates["off"])), "without", target=THROUGHPUT),
        Line("the crew waits for a save, beside torch.save", "ms", Series((waited,) * repeats), saved, "torch.save",
             higher=False),
        Line("the crew waits for a save, beside DCP async_save", "ms", Series((waited,) * repeats), staged,
             "async_save", higher=False),
        Line("LeNet, start to the first generation, resumed", "s", resumed, fresh, "fresh", higher=False),
    ]  # fmt: skip
    checks = [
        Check("20M parameters with Adam: the crew waits for a save",
              f"{waited:.0f} ms ({len(still)} times; the state stands still for {stood:.0f} ms)",
              f"<= {WAITS:.0f} ms", waited <= WAITS),
        Check("everything killed: later than a fresh start", f"{later:.2f} s", f"<= {RESUMED:.0f} s", later <= RESUMED),
    ]  # fmt: skip
    title = "Checkpoints: what they cost, and how soon a run goes on"
    return Result("checkpoints", title, lines, checks, extra={"stood_still_ms": still})
