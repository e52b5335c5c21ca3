"""The options that the training scripts have in common, and what they write at their end."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

__all__ = ["Stopwatch", "parser", "write_figures"]


def parser(description: str) -> argparse.ArgumentParser:
    """What every script is told."""
    it = argparse.ArgumentParser(description=description)
    it.add_argument("--workload", choices=["lenet", "mlp", "resnet", "gpt", "tiny"], required=True)
    it.add_argument("--batch", type=int, required=True, help="global batch")
    it.add_argument("--steps", type=int, required=True, help="steps that are timed")
    it.add_argument("--warm", type=int, default=10, help="steps before them")
    it.add_argument("--optimizer", choices=["sgd", "adam"], default="sgd")
    it.add_argument("--lanes", type=int, default=2)
    it.add_argument("--unit-ms", type=float, default=0.0, help="sleep this long for every lane's share")
    it.add_argument("--slow", type=int, default=-1, help="the worker or rank that sleeps longer")
    it.add_argument("--factor", type=float, default=10.0, help="how many times as long")
    it.add_argument("--note-steps", action="store_true", help="note when each step is committed")
    it.add_argument("--note-versions", action="store_true", help="note when a unit begins with a new version")
    it.add_argument("--out", type=Path, required=True, help="the directory for what is measured")
    return it


class Stopwatch:
    """Times the steps after the first `warm`."""

    def __init__(self, warm: int) -> None:
        self._warm, self._start = warm, 0.0

    def at(self, step: int) -> None:
        """`step` begins."""
        if step >= self._warm and not self._start:
            self._start = time.perf_counter()

    def seconds(self) -> float:
        """Since the first step after the warm-up; this worker may have come later (0.0)."""
        return time.perf_counter() - self._start if self._start else 0.0


def write_figures(out: Path, options: argparse.Namespace, seconds: float, **more: Any) -> None:
    """One file, from one process."""
    samples = options.steps * options.batch
    rate = samples / seconds if seconds else 0.0
    figures = {"seconds": seconds, "samples_per_second": rate, "steps_per_second": rate / options.batch, **more}
    (out / "figures.json").write_text(json.dumps(figures))
