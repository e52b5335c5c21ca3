"""Draw docs/images/modes.png: loss against time in every mode, on four equal workers and with one that is slow.

    python tools/draw_modes.py [--measure]     (needs matplotlib; with --measure the runs are made first, some minutes)

The work of a unit is a sleep of 10 ms, standing for time on an accelerator, so four workers run side by side on any
number of cores; the slow one takes 40 ms. The model under it, a small network on handwritten digits, is really trained.
Lanes stay where they are, to show what the modes do by themselves.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODES = ("exact", "bounded:4", "async", "quorum:3", "local:8")
SETTINGS = {"equal": "four equal workers", "slow": "one of four workers at a quarter of the speed"}
SCRIPT = ROOT / "tools" / "modes_script.py"
KEPT = ROOT / "docs" / "images" / "modes.json"


def measure() -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Setting -> mode -> (seconds, loss) as the run went on."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {setting: {} for setting in SETTINGS}
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    for setting, told in found.items():
        for mode in MODES:
            with tempfile.TemporaryDirectory() as where:
                out = Path(where, "losses.json")
                command = [
                    sys.executable, "-m", "holdfast.cli.main", "run", "--dir", f"{where}/run", "--workers", "4",
                    "--servers", "1", "--sync", mode, "--set", "crew.settle=1000000s", str(SCRIPT), "--out", str(out),
                ]  # fmt: skip
                command += ["--slow"] if setting == "slow" else []
                subprocess.run(command, check=True, env=environment, cwd=where, stdout=subprocess.DEVNULL)
                told[mode] = [tuple(pair) for pair in json.loads(out.read_text())]
                print(f"{setting}, {mode}: {told[mode][-1][0]:.1f} s, loss {told[mode][-1][1]:.3f}", flush=True)
    return found


def draw(found: dict[str, dict[str, list[tuple[float, float]]]]) -> None:
    """The picture."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True)
    for axis, (setting, title) in zip(axes, SETTINGS.items(), strict=True):
        for mode, pairs in found[setting].items():
            axis.plot(*zip(*pairs, strict=True), label=mode, linewidth=1.6)
        axis.set_title(title, fontsize=11)
        axis.set_xlabel("seconds")
        axis.set_yscale("log")
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("test loss")
    axes[1].legend(frameon=False)
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
