"""What a step consists of, and what a unit of it gives besides its gradient."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StepWork", "UnitResult"]


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step consists of: a pure function of configuration and position."""

    step: int
    lanes: tuple[int, ...]  #: lanes with samples
    counts: tuple[int, ...]  #: samples of every lane
    ahead: int = 0  #: versions that were made beyond one a step, in exact training and before it
    turn: bool = False  #: the script has code of its own between the units of the step and its end (`run.steps`)
    weighted: bool | None = None  #: of a step of shares: are leaves multiplied by their samples? Else shares are lanes
    sums: bool = False  #: losses are sums over their samples, and so is the gradient of the step (`reduction`)

    @property
    def version(self) -> int:
        """Of the parameters that the step begins with; the board counts in versions."""
        return self.step + self.ahead

    @property
    def shares(self) -> bool:
        """Is a unit a worker's whole share of the step, shown as the first of its lanes (a plain loop)?"""
        return self.weighted is not None

    @property
    def even(self) -> bool:
        """Are the leaves summed as they are?"""
        if self.weighted is not None:
            return not self.weighted
        return len({self.counts[lane] for lane in self.lanes}) == 1

    @property
    def factor(self) -> float:
        """What the sum of the leaves is multiplied by."""
        if self.sums:
            return 1.0
        if not self.even:
            return 1.0 / max(1, sum(self.counts))
        return 1.0 / max(1, sum(self.counts[lane] > 0 for lane in self.lanes))

    def weight(self, lane: int) -> float | None:
        """What a leaf is multiplied by; None where the leaves are summed as they are."""
        return None if self.even or self.sums else float(self.counts[lane])


@dataclass(frozen=True, slots=True)
class UnitResult:
    """What a unit gives besides its gradient."""

    loss: float
    clip_norm: float  #: 0: no clipping by norm
    clip_value: float  #: 0: no clipping by value
