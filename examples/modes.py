"""One script in several modes: what `--sync` does to the time, the loss and the weights.

    python examples/modes.py                                               five modes, on handwritten digits
    python examples/modes.py --modes exact local:8 --plot modes.png        two of them, with a picture (matplotlib)
    python examples/modes.py --data fashion-mnist --epochs 10 --workers 4

It runs `fit.py` under `holdfast run`, once for each mode, and reads what it prints after every epoch. The script is the
same in all of them. Which to choose is in docs/modes.md.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

SCRIPT = Path(__file__).with_name("fit.py")
MODES = ["exact", "bounded:4", "quorum:3", "async", "local:8"]


class Curve(NamedTuple):
    """One run: when it had which loss, its last accuracy, and what its weights hash to."""

    points: list[tuple[float, float]]
    accuracy: float
    weights: str


def train(mode: str, workers: int, script: list[str]) -> Curve:
    """Run the script in a mode. Seconds are counted from the start of the command."""
    with tempfile.TemporaryDirectory() as where:
        begun, points, accuracy = time.monotonic(), [], 0.0
        command = ["run", "--workers", str(workers), "--sync", mode, "--dir", f"{where}/run", *script]
        child = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli.main", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
        assert child.stdout is not None
        told = []
        for line in child.stdout:
            told.append(line)
            if found := re.search(r"epoch \d+: test accuracy ([\d.]+), loss ([\d.]+)", line):
                points.append((time.monotonic() - begun, float(found[2])))
                accuracy = float(found[1])
        if child.wait() or not points:
            raise SystemExit(f"The run with --sync {mode} ended with status {child.returncode}:\n{''.join(told)}")
        summary = json.loads(Path(where, "run", "summary.json").read_text())
    return Curve(points, accuracy, str(summary["weights_sha256"]))


def plot(curves: dict[str, Curve], path: Path) -> None:
    """Draw loss against time (needs matplotlib)."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    for mode, curve in curves.items():
        axes.plot(*zip(*curve.points, strict=True), marker="o", label=f"--sync {mode}")
    axes.set(xlabel="seconds", ylabel="test loss", title="One script, several modes")
    axes.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--modes", nargs="+", default=MODES, metavar="MODE")
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--epochs", type=int, default=5)
    arguments.add_argument("--data", default="digits", metavar="WHAT", help="digits, fashion-mnist or a directory")
    arguments.add_argument("--plot", type=Path, metavar="FILE", help="draw loss against time")
    options = arguments.parse_args()
    script = [str(SCRIPT), "--data", options.data, "--epochs", str(options.epochs)]
    curves: dict[str, Curve] = {}
    for mode in options.modes:
        curve = curves[mode] = train(mode, options.workers, script)
        seconds, loss = curve.points[-1]
        print(f"{mode}: {seconds:.1f} s, test accuracy {curve.accuracy:.4f}, loss {loss:.4f}, weights {curve.weights}")
    if options.plot:
        plot(curves, options.plot)


if __name__ == "__main__":
    main()
