"""Reads an audit trail: was every sample of every pass used in exactly one committed unit?

Pure but for `read` and `trim`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PassAudit", "audit", "read", "trim"]


@dataclass(frozen=True, slots=True)
class PassAudit:
    """One pass over a loader."""

    order: int
    units: int
    samples: int
    repeated: tuple[int, ...]  #: samples that two units of the pass used
    contradictions: tuple[tuple[int, int], ...]  #: (step, lane) whose lines differ
    recomputed: int  #: units that were computed more than once, with equal samples
    gaps: tuple[int, ...]  #: steps between the first and the last that have no line

    @property
    def exact(self) -> bool:
        """Every sample in one unit only, every unit the same whoever computed it, and no step left out."""
        return not self.repeated and not self.contradictions and not self.gaps

    def told(self) -> str:
        """In a sentence."""
        if self.exact:
            again = f"; {self.recomputed} units were computed more than once" if self.recomputed else ""
            return f"pass {self.order}: {self.samples} samples in {self.units} units, each in exactly one{again}"
        return (
            f"pass {self.order}: NOT exact: samples {list(self.repeated[:8])} were used in more than one unit, units "
            f"{list(self.contradictions[:8])} differ between workers, steps {list(self.gaps[:8])} have no line"
        )


def audit(lines: Iterable[str], steps: int) -> list[PassAudit]:
    """Judge a trail; lines of steps from `steps` on were never committed and do not count.

    Nor do shares of a step, in a plain loop, that it does not consist of.
    """
    units: dict[int, dict[tuple[int, int], list[tuple[int, ...]]]] = {}
    lines = list(lines)
    came = {int(words[1]): set(map(int, words[2:])) for line in lines if (words := line.split())[0] == "came"}
    for line in lines:
        if line.startswith("came"):
            continue
        order, step, lane, *ids = map(int, line.split())
        if step < steps and lane in came.get(step, (lane,)):
            units.setdefault(order, {}).setdefault((step, lane), []).append(tuple(ids))
    audits = []
    for order, found in sorted(units.items()):
        used = Counter(sample for tries in found.values() for sample in tries[0])
        audits.append(
            PassAudit(
                order, len(found), len(used), tuple(s for s, times in used.items() if times > 1),
                tuple(unit for unit, tries in found.items() if len(set(tries)) > 1),
                sum(len(tries) > 1 for tries in found.values()), _gaps({step for step, _ in found}),
            )
        )  # fmt: skip
    return audits


def _gaps(steps: set[int]) -> tuple[int, ...]:
    return tuple(step for step in range(min(steps), max(steps)) if step not in steps)


def trim(directory: Path, steps: int) -> None:
    """Leave of a trail what counts for a run that goes on with so many steps: the steps after them are made again."""
    for path in sorted(directory.glob("worker-*.txt")):
        *whole, _cut = path.read_text().split("\n")
        kept = [line for line in whole if int(line.split()[1]) < steps]
        new = path.with_name(f"{path.name}.new")
        new.write_text("".join(f"{line}\n" for line in kept))
        new.replace(path)


def read(directory: Path) -> list[str]:
    """All complete lines of a run's trail."""
    lines: list[str] = []
    for path in sorted(directory.glob("worker-*.txt")):
        *whole, _cut = path.read_text().split("\n")
        lines += whole
    return lines
