"""Draw docs/images/modes.png: loss against time in every mode, on four machines that are equal, unequal, or pause.

    python tools/draw_modes.py [--measure]     (needs matplotlib; with --measure the runs are made first, some minutes)

The work of a unit is a sleep, standing for time on an accelerator, so four workers run side by side on any number of
cores. The model under it, a small network on handwritten digits, is really trained. All settings are the defaults: a
worker that is slow for good gives lanes away, in every mode. A curve is the mean of several seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).resolve().parents[1]
MODES = ("exact", "bounded:4", "async", "quorum:6", "local:8")
SETTINGS = {
    "equal": "four equal machines", "slow": "one of them at a quarter of the speed", "pausing": "all pause at random",
}  # fmt: skip
SEEDS = range(2)
SCRIPT = ROOT / "tools" / "modes_script.py"
KEPT = ROOT / "docs" / "images" / "modes.json"

Curve = list[tuple[float, float]]  #: (seconds, test loss) at the end of every epoch


def measure() -> dict[str, dict[str, Curve]]:
    """Setting -> mode -> how the run went on."""
    found: dict[str, dict[str, list[Curve]]] = {setting: {mode: [] for mode in MODES} for setting in SETTINGS}
    for seed in SEEDS:
        for setting, told in found.items():
            for mode, curves in told.items():
                curves.append(train(setting, mode, seed))
                print(f"{setting}, {mode}: {curves[-1][-1][0]:.1f} s, loss {curves[-1][-1][1]:.3f}", flush=True)
    return {setting: {mode: _mean(curves) for mode, curves in told.items()} for setting, told in found.items()}


def train(setting: str, mode: str, seed: int) -> Curve:
    """One run."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with tempfile.TemporaryDirectory() as where:
        out = Path(where, "losses.json")
        command = [
            sys.executable, "-m", "holdfast.cli.main", "run", "--dir", f"{where}/run", "--workers", "4",
            "--servers", "1", "--lanes", "8", "--seed", str(seed), "--sync", mode, str(SCRIPT),
            "--setting", setting, "--out", str(out),
        ]  # fmt: skip
        subprocess.run(command, check=True, env=environment, cwd=where, stdout=subprocess.DEVNULL)
        return [(seconds, loss) for seconds, loss in json.loads(out.read_text())]


def _mean(curves: list[Curve]) -> Curve:
    return [(mean(at for at, _ in points), mean(loss for _, loss in points)) for points in zip(*curves, strict=True)]


def draw(found: dict[str, dict[str, Curve]]) -> None:
    """The picture."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(14, 4.2), sharey=True)
    for axis, (setting, title) in zip(axes, SETTINGS.items(), strict=True):
        for mode, pairs in found[setting].items():
            axis.plot(*zip(*pairs, strict=True), label=mode, linewidth=1.6, marker=".")
        axis.set_title(title, fontsize=11)
        axis.set_xlabel("seconds")
        axis.set_xlim(left=0)
        axis.set_yscale("log")
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("test loss")
    axes[0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(KEPT.with_suffix(".png"), dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true", help="make the runs; else use what they showed last time")
    if parser.parse_args().measure:
        KEPT.write_text(json.dumps(measure()) + "\n")
    draw(json.loads(KEPT.read_text()))


if __name__ == "__main__":
    main()
