"""What a simulated run trains, and what must come out.

"Training" is a chain of hashes. The gradient of a lane is a hash of all slices, the step and the lane; a sum
is a hash of its two halves, so a sum has the right value only if the *shape* of the whole tree was right; the
new version of a slice is a hash of the old one and the sum. `golden_chain` computes the same without any crew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from holdfast.core import tree

__all__ = ["Model", "Violation", "add", "golden_chain", "gradient", "norm", "update"]


class Violation(AssertionError):
    """Something happened that must never happen."""


@dataclass(frozen=True, slots=True)
class Model:
    """What is trained: nothing of this depends on the crew."""

    lanes: int
    slices: int
    steps: int
    clip: bool = False
    by_steps: bool = False  #: the script has code between a step's units and its end, which reads the whole gradient
    shares: bool = False  #: its loop is a plain one: a unit is a worker's whole share of a step
    short: int = 0  #: every third step only this many lanes have work; 0: all have

    def __post_init__(self) -> None:
        if self.shares and self.by_steps:
            raise ValueError("shares and by_steps: a script's loop is a plain one, or one by steps")

    def lanes_at(self, step: int) -> Sequence[int]:
        """Lanes that have work in this step."""
        return range(self.short if self.short and step % 3 == 2 else self.lanes)


def gradient(state: tuple[int, ...], step: int, lane: int) -> int:
    """What a lane gives."""
    return hash((state, step, lane))


def add(left: int, right: int) -> int:
    """A partial sum, from its two halves."""
    return hash((left, right))


def norm(total: int, slice_: int) -> int:
    """The norm of a slice of the gradient."""
    return hash((total, slice_, 1))


def update(old: int, total: int, slice_: int, norms: tuple[int, ...]) -> int:
    """The next version of a slice."""
    return hash((old, total, slice_, norms))


@lru_cache(maxsize=512)
def golden_chain(model: Model) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """The states before step 0, 1, ..., and the sums of all steps, computed without any crew."""
    states, sums = [tuple(range(model.slices))], []
    for step in range(model.steps):
        state = states[-1]
        gradients = {lane: gradient(state, step, lane) for lane in model.lanes_at(step)}
        total = tree.reference_sum(gradients, model.lanes, add)
        norms = tuple(norm(total, s) for s in range(model.slices)) if model.clip else ()
        states.append(tuple(update(state[s], total, s, norms) for s in range(model.slices)))
        sums.append(total)
    return tuple(states), tuple(sums)
