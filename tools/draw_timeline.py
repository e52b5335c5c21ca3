"""Draw a real run with a kill: which worker drives which lane, over time.

    pip install matplotlib                     (only for this: no dependency of the project)
    python tools/draw_timeline.py docs/images/timeline.png [--holdfast COMMAND]

Starts `holdfast run` on two workers, kills one, adds one, takes two away, and watches with
`holdfast status --json`. When generations began comes from the run's story.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

SCRIPT = Path(__file__).parents[1] / "examples" / "fashion_mnist.py"
INK, GREY, RED = "#22303c", "#55636f", "#b3261e"
WORKERS = ("#2f7ebc", "#e07b39", "#3f9b6b", "#8c6bb1", "#c9a227", "#607d8b")


class Watched:
    """A run and what was seen of it."""

    def __init__(self, command: list[str], directory: Path) -> None:
        self._command, self._directory = command, directory
        options = ["run", "--workers", "2", "--dir", str(directory), str(SCRIPT), "--epochs", "3"]
        self._child = subprocess.Popen([*command, *options])
        self.seen: list[dict[str, Any]] = []
        self.did: list[tuple[float, str]] = []

    def until(self, share: float) -> dict[str, Any]:
        """Watch until this share of all steps is done; the last status."""
        while self._child.poll() is None:
            time.sleep(0.1)
            words = [*self._command, "status", str(self._directory), "--json"]
            answer = subprocess.run(words, capture_output=True, check=False)
            if answer.returncode:
                continue
            status: dict[str, Any] = json.loads(answer.stdout)
            if status.get("state") == "ended":
                break
            self.seen.append(status)
            if status["total_steps"] and status["step"] >= share * status["total_steps"]:
                return status
        assert self._child.wait() == 0, "the run did not end well"
        return self.seen[-1]

    def kill(self, share: float) -> None:
        status = self.until(share)
        os.kill(status["workers"][-1]["pid"], signal.SIGKILL)
        self.did.append((status["seconds"], "kill -9"))

    def scale(self, share: float, workers: int) -> None:
        status = self.until(share)
        subprocess.run([*self._command, "scale", str(self._directory), "--workers", str(workers)], check=True)
        self.did.append((status["seconds"], f"scale to {workers}"))


def lanes_of(status: dict[str, Any]) -> dict[int, int]:
    """Lane -> worker."""
    return {lane: worker["worker"] for worker in status["workers"] for lane in worker["lanes"]}


def stretches(seen: list[dict[str, Any]], lane: int, end: float) -> list[tuple[int, float, float]]:
    """(worker, begin, end) of each time that one worker drove this lane."""
    found: list[tuple[int, float, float]] = []
    for status in seen:
        worker, now = lanes_of(status)[lane], status["seconds"]
        if found and found[-1][0] != worker:
            found[-1] = (*found[-1][:2], now)
        if not found or found[-1][0] != worker:
            found.append((worker, now, end))
    return found


def draw(run: Watched, path: Path, summary: dict[str, Any]) -> None:
    seen = [status for status in run.seen if status["generation"]]
    zero = seen[0]["seconds"]
    figure, (lanes, speed) = plt.subplots(
        2, 1, figsize=(11, 4.6), sharex=True, gridspec_kw={"height_ratios": [2.2, 1], "hspace": 0.12}
    )
    end = seen[-1]["seconds"] + 0.2
    for lane in range(4):
        for worker, begin, stop in stretches(seen, lane, end):
            colour = WORKERS[worker % len(WORKERS)]
            lanes.barh(lane, stop - begin, left=begin - zero, height=0.82, color=colour, linewidth=0)
            if stop - begin > 0.075 * (end - zero):  # where the name fits
                name = f"worker {worker}"
                lanes.text(begin - zero + 0.25, lane, name, va="center", fontsize=8.5, color="white")
    for when, what in run.did:
        for axes in (lanes, speed):
            axes.axvline(when - zero, color=RED, linewidth=1.3, linestyle=(0, (4, 2)))
        lanes.text(when - zero, -0.62, what, color=RED, fontsize=9.5, ha="center", va="bottom", weight="bold")
    lanes.set(yticks=range(4), yticklabels=[f"lane {lane}" for lane in range(4)], ylim=(3.5, -0.5))
    speed.plot([s["seconds"] - zero for s in seen], [s["step"] for s in seen], color=INK, linewidth=1.8)
    speed.set(xlabel="seconds since the first step", ylabel="step", xlim=(0, end - zero), ylim=(0, None))
    for axes in (lanes, speed):
        axes.tick_params(colors=GREY, labelsize=9)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    text = f"weights_sha256 {summary['weights_sha256']}: that of one undisturbed worker"
    figure.text(0.5, -0.045, text, ha="center", fontsize=8.5, color=INK)
    figure.savefig(path, dpi=120, bbox_inches="tight", facecolor="white")
    print(f"{path}: {path.stat().st_size // 1024} KB, weights_sha256 {summary['weights_sha256']}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw a real run with a kill.")
    parser.add_argument("path", type=Path)
    parser.add_argument("--holdfast", default="holdfast", metavar="COMMAND", help="how to call holdfast")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder, "run")
        run = Watched(shlex.split(args.holdfast), directory)
        run.kill(0.3)
        run.scale(0.55, 3)
        run.scale(0.8, 1)
        run.until(2.0)
        draw(run, args.path, json.loads((directory / "summary.json").read_text()))


if __name__ == "__main__":
    main()
