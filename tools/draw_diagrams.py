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

INK, GREY, PALE = "#22303c", "#55636f", "#d5dbe1"
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
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.1))
    tree_panel(panels[0], 8, (4, 4), "8 lanes on two workers")
    tree_panel(panels[1], 8, (3, 3, 2), "8 lanes on three workers")
    caption = (
        "Coloured: computed by that worker; with a bold frame: the partial sums that it publishes. Grey: finished by "
        "the owner\nof each slice of the parameters. Both trees make the same additions, so the sums are the same."
    )
    figure.text(0.5, 0.03, caption, ha="center", va="bottom", fontsize=9, color=INK)
    figure.subplots_adjust(bottom=0.16, wspace=0.06)
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
        name = str(lo) if span == 1 else f"{lo}-{lo + span - 1}"
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
    axes.text((lanes - 1) / 2, 3.75, title, fontsize=11, color=INK, weight="bold", ha="center", va="center")
    axes.text(4.0, 3.0, "the step's gradient", fontsize=9, color=INK, va="center", style="italic")
    axes.set(xlim=(-0.6, lanes - 0.4), ylim=(-1.0, 4.0))
    axes.axis("off")


# ---------------------------------------------------------------- a step


def draw_step(path: Path) -> None:
    figure, axes = plt.subplots(figsize=(11, 3.7))
    light = ("#9cc4e4", "#f2c4a2")
    rows = (2.35, 1.2)
    units = (((0.0, 3.0), (8.0, 9.6)), ((0.0, 3.8), (8.0, 10.0)))
    for worker, y in enumerate(rows):
        colour = WORKERS[worker]
        axes.plot([0, 10.1], [y, y], color=PALE, linewidth=1.4, zorder=0)
        axes.text(-0.2, y, f"worker {worker}", ha="right", va="center", fontsize=10, color=colour, weight="bold")
        names = (f"its share of step t\n(lanes {2 * worker} and {2 * worker + 1})", "its share of t+1")
        for (left, right), name in zip(units[worker], names, strict=True):
            box(axes, ((left + right) / 2, y), (right - left - 0.06, 0.62), name, colour, color="white")
        slices = "0 to 3" if worker == 0 else "4 to 7"
        box(axes, (6.1, y), (1.5 + 0.2 * worker, 0.62), f"finish slices\n{slices}", light[worker])
        arrived = units[worker][0][1] + 0.22
        axes.plot(arrived, y, marker="D", color=INK, markersize=6, zorder=5)
        axes.text(arrived + 0.05, y - 0.2, "arrived", fontsize=8.5, ha="left", va="top", color=INK)
    for x, text in (
        (4.75, "every share of step t is in the arena,\nand everybody has arrived"),
        (7.55, "every slice is at version t+1:\nstep t is committed"),
    ):
        axes.plot([x, x], [0.75, 2.85], color=INK, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
        axes.text(x, 2.95, text, ha="center", va="bottom", fontsize=9, color=INK)
    for x, text in (
        (1.6, "your code: forward, backward; optimizer.step()\nputs the gradient into its slot"),
        (6.15, "copy the slice to undo, finish the tree,\nrun the optimizer, publish with one store"),
        (9.0, "optimizer.step() returns:\nyour code goes on"),
    ):
        axes.text(x, 0.6, text, ha="center", va="top", fontsize=8.5, color=GREY)
    axes.set(xlim=(-1.2, 10.2), ylim=(-0.1, 3.5))
    axes.axis("off")
    save(figure, path)


# ---------------------------------------------------------------- generations


def draw_generations(path: Path) -> None:
    figure, axes = plt.subplots(figsize=(11, 5.6))
    columns = {"worker 1": 1.0, "coordinator": 4.4, "worker 0": 7.6, "worker 2 (new)": 10.2}
    colours = dict(zip(columns, (WORKERS[1], INK, WORKERS[0], WORKERS[2]), strict=True))
    top = 8.2
    spans = {"worker 1": (top, 6.7), "coordinator": (top, 0.0), "worker 0": (top, 0.0), "worker 2 (new)": (5.6, 0.0)}
    for name, (begin, end) in spans.items():
        axes.plot([columns[name]] * 2, [begin, end], color=colours[name], linewidth=1.5, zorder=0)
        box(axes, (columns[name], begin + 0.2), (1.75, 0.46), name, colours[name], color="white")

    def message(y: float, sender: str, receiver: str, text: str, **more: Any) -> None:
        start, end = columns[sender], columns[receiver]
        arrow(axes, (start, y), (end, y), color=colours[sender], **more)
        # Where the arrow crosses a life line, the text stands left of it.
        middle = 6.0 if {sender, receiver} == {"coordinator", "worker 2 (new)"} else (start + end) / 2
        axes.text(middle, y + 0.08, text, ha="center", va="bottom", fontsize=9, color=INK)

    def note(x: float, y: float, text: str, side: str = "left") -> None:
        axes.text(x, y, text, ha=side, va="center", fontsize=8.5, color=GREY)

    def generation(name: str, y: float, number: int) -> None:
        box(axes, (columns[name], y), (1.75, 0.44), f"generation {number}", "white", edge=colours[name])

    generation("worker 1", 7.5, 1)
    generation("worker 0", 7.5, 1)
    axes.plot(columns["worker 1"], 6.75, marker="X", color="#b3261e", markersize=13, zorder=5)
    axes.text(1.25, 6.75, "kill -9", fontsize=10, color="#b3261e", va="center", weight="bold")
    message(6.2, "worker 1", "coordinator", "descriptor closed, process reaped")
    note(4.25, 5.85, "certainly gone: its lanes may be given away", "right")
    message(5.8, "coordinator", "worker 2 (new)", "", linestyle=(0, (4, 3)))
    axes.text(6.0, 5.88, "start a process", ha="center", va="bottom", fontsize=9, color=INK)
    message(5.2, "coordinator", "worker 0", "Pause(2)")
    note(7.75, 4.98, "ends its unit, or\nstops waiting")
    message(4.6, "worker 0", "coordinator", "Paused(2): I touch nothing")
    note(4.25, 4.3, "all who could write are quiet or gone", "right")
    message(4.0, "coordinator", "worker 0", "Install(2): you drive all lanes")
    generation("worker 0", 3.5, 2)
    note(6.6, 3.5, "computes what is missing", "right")
    message(2.75, "worker 2 (new)", "coordinator", "Ready: numerics, golden, model")
    note(4.25, 2.75, "the same bits, the same model?", "right")
    message(2.15, "coordinator", "worker 2 (new)", "Welcome, with the arena")
    note(10.35, 1.85, "maps the\nparameters")
    message(1.55, "coordinator", "worker 0", "Pause(3), answered by Paused(3)")
    message(0.95, "coordinator", "worker 2 (new)", "Install(3)")
    note(4.25, 0.95, "to both", "right")
    arrow(axes, (columns["coordinator"], 0.95), (columns["worker 0"], 0.95))
    generation("worker 0", 0.3, 3)
    generation("worker 2 (new)", 0.3, 3)
    axes.set(xlim=(-0.1, 11.4), ylim=(-0.1, 8.7))
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
