"""Draw the pictures of the docs that follow from the code: the tree, a step, a change of generation.

    pip install matplotlib                     (only for this: no dependency of the project)
    python tools/draw_diagrams.py docs/images

The tree is drawn from `holdfast.core.tree` itself, so it cannot drift from what is computed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from holdfast.core.tree import maximal_nodes

INK, PALE = "#22303c", "#d5dbe1"
WORKERS = ("#2f7ebc", "#e07b39", "#3f9b6b")
DPI = 130


def save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=DPI, bbox_inches="tight", facecolor="white", pad_inches=0.12)
    plt.close(figure)
    print(f"{path}: {path.stat().st_size // 1024} KB")


def box(axes: Any, at: tuple[float, float], size: tuple[float, float], text: str, colour: str, **more: Any) -> None:
    """A box with rounded corners around the point `at`, with text in it."""
    (x, y), (width, height) = at, size
    axes.add_patch(FancyBboxPatch(
        (x - width / 2, y - height / 2), width, height, boxstyle="round,pad=0,rounding_size=0.08",
        facecolor=colour, edgecolor=more.pop("edge", INK), linewidth=0.8, zorder=3,
    ))  # fmt: skip
    axes.text(x, y, text, ha="center", va="center", zorder=4, **{"fontsize": 9, "color": INK, **more})


def arrow(axes: Any, start: tuple[float, float], end: tuple[float, float], **more: Any) -> None:
    axes.add_patch(FancyArrowPatch(
        start, end, arrowstyle="-|>", mutation_scale=11, shrinkA=0, shrinkB=0,
        **{"color": INK, "linewidth": 1.1, "zorder": 2, **more},
    ))  # fmt: skip


# ---------------------------------------------------------------- the tree


def draw_tree(path: Path) -> None:
    figure, panels = plt.subplots(1, 2, figsize=(11, 3.9))
    tree_panel(panels[0], 8, (4, 4), "two workers")
    tree_panel(panels[1], 8, (3, 3, 2), "three workers, cut anywhere")
    figure.text(
        0.5, 0.015,
        "Colour: the worker that computes a lane, and the partial sums it adds up by itself and publishes (bold frame). "
        "Grey: finished by\nthe owner of each slice of the parameters. The additions are the same in both: so are the bits.",
        ha="center", va="bottom", fontsize=9, color=INK,
    )  # fmt: skip
    figure.subplots_adjust(bottom=0.17, wspace=0.06)
    save(figure, path)


def tree_panel(axes: Any, lanes: int, counts: tuple[int, ...], title: str) -> None:
    """One tree over `lanes` lanes, of which worker i drives `counts[i]` in a row."""
    held: dict[tuple[int, int], tuple[int, bool]] = {}  # node -> (worker, does it publish this one)
    start = 0
    for worker, count in enumerate(counts):
        for lane, span in maximal_nodes(start, start + count, lanes):
            inner = [(lane, span)]
            while inner:
                lo, size = inner.pop()
                held[lo, size] = (worker, (lo, size) == (lane, span))
                if size > 1:
                    inner += [(lo, size // 2), (lo + size // 2, size // 2)]
        start += count

    def node(lo: int, span: int) -> tuple[float, float]:
        centre, height = lo + (span - 1) / 2, span.bit_length() - 1.0
        worker, published = held.get((lo, span), (-1, False))
        if span > 1:
            for child in (node(lo, span // 2), node(lo + span // 2, span // 2)):
                axes.plot([centre, child[0]], [height, child[1]], color="#93a1ad", linewidth=1.2, zorder=1)
        name = str(lo) if span == 1 else f"{lo}–{lo + span - 1}"
        colour = PALE if worker < 0 else WORKERS[worker]
        axes.add_patch(FancyBboxPatch(
            (centre - 0.34, height - 0.2), 0.68, 0.4, boxstyle="round,pad=0,rounding_size=0.1", facecolor=colour,
            edgecolor=INK, linewidth=2.2 if published else 0.6, zorder=3,
        ))  # fmt: skip
        axes.text(
            centre, height, name, ha="center", va="center", fontsize=9, zorder=4, color=INK if worker < 0 else "white"
        )
        return centre, height

    node(0, lanes)
    start = 0
    for worker, count in enumerate(counts):
        middle = start + (count - 1) / 2
        axes.plot([start - 0.32, start + count - 0.68], [-0.42, -0.42], color=WORKERS[worker], linewidth=4)
        axes.text(middle, -0.62, f"worker {worker}", ha="center", va="top", fontsize=9, color=WORKERS[worker])
        start += count
    axes.text(-0.45, 3.05, title, fontsize=11, color=INK, weight="bold", va="center")
    axes.text(4.1, 3.05, "sum of all lanes", fontsize=8.5, color=INK, va="center", style="italic")
    axes.set(xlim=(-0.6, lanes - 0.4), ylim=(-1.0, 3.4))
    axes.axis("off")


# ---------------------------------------------------------------- a step


def draw_step(path: Path) -> None:
    figure, axes = plt.subplots(figsize=(11, 3.5))
    rows = {0: 2.35, 1: 1.2}
    parts = {
        0: [(0.0, 1.5, "unit (t, 0)", WORKERS[0]), (1.5, 3.0, "unit (t, 1)", WORKERS[0]),
            (4.75, 6.15, "finish slices\n0 – 3", "#9cc4e4"), (7.2, 8.7, "unit (t+1, 0)", WORKERS[0])],
        1: [(0.0, 1.9, "unit (t, 2)", WORKERS[1]), (1.9, 3.8, "unit (t, 3)", WORKERS[1]),
            (4.75, 6.3, "finish slices\n4 – 7", "#f2c4a2"), (7.2, 9.1, "unit (t+1, 2)", WORKERS[1])],
    }  # fmt: skip
    for worker, y in rows.items():
        axes.plot([0, 9.4], [y, y], color=PALE, linewidth=1.4, zorder=0)
        axes.text(-0.2, y, f"worker {worker}", ha="right", va="center", fontsize=10, color=WORKERS[worker], weight="bold")
        for left, right, text, colour in parts[worker]:
            light = colour not in WORKERS
            box(axes, ((left + right) / 2, y), (right - left - 0.06, 0.62), text, colour, color=INK if light else "white")
    for worker, x in ((0, 3.0), (1, 3.8)):
        axes.plot(x + 0.2, rows[worker], marker="D", color=INK, markersize=6, zorder=5)
    axes.text(3.2, 1.86, "arrived", fontsize=8.5, ha="center", color=INK)
    for x, text in (
        (4.45, "every lane of step t lies in the arena,\neverybody has arrived"), (6.75, "every slice is at version t+1:\nstep t is committed"),
    ):  # fmt: skip
        axes.plot([x, x], [0.75, 2.85], color=INK, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
        axes.text(x, 2.95, text, ha="center", va="bottom", fontsize=9, color=INK)
    axes.text(
        1.9, 2.95, "user code: forward, backward,\noptimizer.step() = \"take this gradient\"", ha="center", va="bottom",
        fontsize=9, color=INK,
    )  # fmt: skip
    notes = (
        (1.9, "gradients go into the lanes' slots;\nparameters do not move"),
        (5.5, "copy the slice to undo, finish the tree,\nrun the optimizer, publish with one store"),
        (8.2, "the loop gets its next batch"),
    )
    for x, text in notes:
        axes.text(x, 0.6, text, ha="center", va="top", fontsize=8.5, color="#55636f")
    axes.set(xlim=(-1.2, 9.5), ylim=(0.0, 3.5))
    axes.axis("off")
    save(figure, path)


# ---------------------------------------------------------------- generations


def draw_generations(path: Path) -> None:
    figure, axes = plt.subplots(figsize=(11, 4.9))
    columns = {"worker 1": 1.0, "coordinator": 4.0, "worker 0": 7.0, "worker 2 (new)": 9.6}
    colours = {"worker 1": WORKERS[1], "coordinator": INK, "worker 0": WORKERS[0], "worker 2 (new)": WORKERS[2]}
    top, bottom = 7.2, 0.0
    for name, x in columns.items():
        end = 5.75 if name == "worker 1" else bottom
        begin = 5.0 if name.endswith("(new)") else top
        axes.plot([x, x], [begin, end], color=colours[name], linewidth=1.5, zorder=0)
        box(axes, (x, begin + 0.2 if name.endswith("(new)") else top + 0.2), (1.75, 0.44), name, colours[name], color="white")
    axes.plot(columns["worker 1"], 5.75, marker="X", color="#b3261e", markersize=13, zorder=5)
    axes.text(1.25, 5.75, "kill -9", fontsize=10, color="#b3261e", va="center", weight="bold")

    def message(y: float, sender: str, receiver: str, text: str) -> None:
        start, end = columns[sender], columns[receiver]
        arrow(axes, (start, y), (end, y), color=colours[sender])
        axes.text((start + end) / 2, y + 0.07, text, ha="center", va="bottom", fontsize=9, color=INK)

    for name in ("worker 1", "worker 0"):
        box(axes, (columns[name], 6.6), (1.75, 0.42), "generation 1", "white", edge=colours[name])
    message(5.35, "worker 1", "coordinator", "closed descriptor, reaped: certainly gone")
    message(4.95, "coordinator", "worker 0", "Pause(2)")
    axes.text(7.15, 4.62, "ends its unit,\nor stops waiting", fontsize=8.5, color="#55636f", va="center")
    arrow(axes, (columns["coordinator"], 5.2), (columns["worker 2 (new)"] - 0.88, 5.2), color=INK, linestyle=(0, (4, 3)))
    axes.text(8.0, 5.27, "start", fontsize=9, color=INK, ha="center")
    message(4.2, "worker 0", "coordinator", "Paused(2): I touch nothing")
    message(3.65, "coordinator", "worker 0", "Install(2): you drive all lanes")
    axes.text(
        3.75, 3.72, "all who may write are quiet\nor certainly gone", ha="right", va="center", fontsize=8.5, color="#55636f"
    )
    box(axes, (columns["worker 0"], 3.2), (1.75, 0.42), "generation 2", "white", edge=WORKERS[0])
    axes.text(6.05, 3.2, "computes what is missing", ha="right", va="center", fontsize=8.5, color="#55636f")
    message(2.45, "worker 2 (new)", "coordinator", "Ready (numerics, golden unit, model)          ")
    message(1.9, "coordinator", "worker 2 (new)", "Welcome + the arena          ")
    axes.text(9.72, 1.55, "looks at the\nparameters", fontsize=8.5, color="#55636f", va="center")
    message(1.25, "coordinator", "worker 0", "Pause(3)  ...  Paused(3)")
    message(0.65, "coordinator", "worker 2 (new)", "Install(3)          ")
    for name in ("worker 0", "worker 2 (new)"):
        box(axes, (columns[name], 0.18), (1.75, 0.42), "generation 3", "white", edge=colours[name])
    axes.set(xlim=(-0.1, 11.0), ylim=(-0.1, 7.7))
    axes.axis("off")
    save(figure, path)


def main(directory: str = "docs/images") -> None:
    plt.rcParams["font.family"] = "DejaVu Sans"
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    draw_tree(folder / "tree.png")
    draw_step(folder / "step.png")
    draw_generations(folder / "generations.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
