"""Figures and how they are shown: a series, a line of a table, a check, and the result of a benchmark.

A figure is the median over the rounds, its spread the least and the most. A ratio is taken per round,
between neighbours in time, and its median is what a target is held against.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

__all__ = ["Check", "Line", "Result", "Series", "machine", "quantity"]


@dataclass(frozen=True, slots=True)
class Series:
    """One figure, measured several times."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.values)

    def shown(self, unit: str = "") -> str:
        """The median, and from the least to the most where there are several."""
        spread = f" ({quantity(min(self.values))}-{quantity(max(self.values))})" if len(self.values) > 1 else ""
        return f"{quantity(self.median)}{unit}{spread}"


@dataclass(frozen=True, slots=True)
class Line:
    """Ours and a peer's figure. `ratio` is how many times ours is better, whichever way better is."""

    what: str
    unit: str
    ours: Series
    peer: Series | None = None
    peer_name: str = ""
    higher: bool = True  #: more is better
    target: float | None = None  #: the least ratio; None: shown for information

    @property
    def ratio(self) -> Series | None:
        if self.peer is None:
            return None
        pairs = zip(self.ours.values, self.peer.values, strict=True)
        return Series(tuple(ours / peer if self.higher else peer / ours for ours, peer in pairs))

    @property
    def met(self) -> bool | None:
        return None if self.target is None or self.ratio is None else self.ratio.median >= self.target

    def cells(self) -> list[str]:
        """This line as a row of the table."""
        ratio = self.ratio
        return [
            f"{self.what} [{self.unit}]",
            self.ours.shown(),
            f"{self.peer.shown()} {self.peer_name}" if self.peer else "-",
            ratio.shown("x") if ratio else "-",
            "-" if self.target is None else f">= {quantity(self.target)}x",
            {True: "yes", False: "NO", None: "-"}[self.met],
        ]


@dataclass(frozen=True, slots=True)
class Check:
    """Something that must simply be so, or a limit on one figure."""

    what: str
    found: str
    wanted: str
    met: bool


@dataclass(frozen=True, slots=True)
class Result:
    """What a benchmark found."""

    name: str
    title: str
    lines: Sequence[Line] = ()
    checks: Sequence[Check] = ()
    notes: Sequence[str] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)  #: raw numbers for the JSON

    def missed(self) -> list[str]:
        """What was not reached."""
        return [line.what for line in self.lines if line.met is False] + [c.what for c in self.checks if not c.met]

    def table(self) -> str:
        """For people, and for docs/benchmarks.md."""
        text = [f"## {self.title}"]
        if self.lines:
            text += _columns(["", "holdfast", "peer", "ratio", "target", "met"], [line.cells() for line in self.lines])
        if self.checks:
            rows = [[c.what, c.found, c.wanted, "yes" if c.met else "NO"] for c in self.checks]
            text += ["", *_columns(["check", "found", "wanted", "met"], rows)]
        return "\n".join([*text, *(f"note: {note}" for note in self.notes)])

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        lines = [asdict(x) | {"ratio": x.ratio.median if x.ratio else None, "met": x.met} for x in self.lines]
        return {
            "name": self.name, "title": self.title, "lines": lines, "checks": [asdict(c) for c in self.checks],
            "notes": list(self.notes), "extra": dict(self.extra),
        }


def quantity(value: float) -> str:
    """Three digits, no exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def machine() -> dict[str, str]:
    """What the figures depend on."""
    cpu = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in cpu if line.startswith("model name")]
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / 2**20
    return {
        "cpu": models[0] if models else platform.machine(), "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory:.0f} GiB", "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(), "torch": version("torch"),
    }


def _columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    ruled = [head, ["-" * width for width in widths], *rows]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in ruled]
    return ["| " + " | ".join(row) + " |" for row in padded]
