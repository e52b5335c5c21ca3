"""Staleness: what becomes of a push that was computed from older parameters than it is applied to. Pure.

The age of a push is how much was applied in between, in whole steps: with four lanes a version of one push is a quarter
of one, so what an age means does not hang on the number of lanes. A push of age 0 is the same in every treatment, bit
by bit.

| treatment | a push of age `s` |
|---|---|
| `plain` | counts like any other |
| `scale` | counts 1 / (1 + 2 s) |
| `compensate` | counts like any other, and is moved to where the parameters are now (DC-ASGD) |

`auto` is `scale`, but for `quorum:K`, which has weights of its own, `plain`.

Delay compensation (Zheng et al., ICML 2017) takes the first two terms of the gradient at the parameters as they are
now, with the square of the gradient in the place of the second derivative: g + lambda * g * g * (now - then).
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.sync.modes import Mode

__all__ = ["COMPENSATION", "TREATMENTS", "Staleness", "treatment", "used"]

#: The factor lambda that the paper used on CIFAR-10 where it is constant.
COMPENSATION = 0.04
#: How fast the weight of a push falls with its age: half a step old, it counts half.
_STEEP = 2.0
#: What can be asked for.
TREATMENTS = ("auto", "plain", "scale", "compensate")


@dataclass(frozen=True, slots=True)
class Staleness:
    """One treatment of stale pushes."""

    treatment: str = "plain"
    compensation: float = COMPENSATION  #: lambda, where it is asked for

    @property
    def compensates(self) -> bool:
        """Are the parameters needed that a push was computed from?"""
        return self.treatment == "compensate"

    def weight(self, age: float) -> float:
        """How much a push of this age, in steps, counts.

        >>> [Staleness("scale").weight(age) for age in (0.0, 0.5, 1.5)]
        [1.0, 0.5, 0.25]
        """
        return 1.0 / (1.0 + _STEEP * age) if self.treatment == "scale" else 1.0


def treatment(asked: str, mode: Mode, compensation: float = COMPENSATION) -> Staleness:
    """What was asked for, by its name. Raises ValueError with a sentence.

    >>> treatment("auto", Mode("async", quorum=1, bound=None))
    Staleness(treatment='scale', compensation=0.04)
    """
    if asked not in TREATMENTS:
        raise ValueError(f"unknown; there is {', '.join(TREATMENTS)}")
    if asked in ("scale", "compensate") and (mode.exact or mode.rounds):
        raise ValueError(f"nothing is stale with sync = {mode.name}")
    if asked == "auto":
        asked = "plain" if mode.folds_late or mode.exact or mode.rounds else "scale"
    return Staleness(asked, compensation)


def used(asked: str, mode: Mode, compensation: float = COMPENSATION) -> Staleness:
    """What becomes of stale pushes in a mode that a run has or comes to, whatever it was started with.

    >>> used("scale", Mode("exact"))
    Staleness(treatment='plain', compensation=0.04)
    """
    return Staleness() if mode.exact or mode.rounds else treatment(asked, mode, compensation)
