"""What becomes of the gradient that `.grad` shows between the inner loops of turns: used by optimizers, set to zero.

Inner loops begin with no gradients. In plain PyTorch they would add to what is left, so a script that has left an
optimizer's gradient where it is, and steps it again, meant something else: that is refused. What only happens to lie
there, such as the generator's gradient of the discriminator's loss, is nobody's.
"""

from __future__ import annotations

import torch

from holdfast.dataplane.memory.space import Space
from holdfast.dataplane.reduce.several_optimizers import each, groups_of
from holdfast.errors import NotExact

__all__ = ["GradientUse"]


class GradientUse:
    """Who has used the gradient at hand, of the optimizers of one script, and what was left of those before."""

    def __init__(self, space: Space, optimizer: torch.optim.Optimizer) -> None:
        self._space = space
        self.groups = [groups_of(optimizer, number) for number in range(len(each(optimizer)))]  #: of each optimizer
        self.zeroed = True  #: since it was shown, gradients were set to zero; or nothing was shown yet
        self._used: set[int] = set()
        self._left: set[int] = set()

    def shown(self) -> None:
        """`.grad` is the gradient of a whole step."""
        self.zeroed = False
        self._used.clear()

    def use(self, number: int, step: int) -> None:
        """An optimizer ends the step, or another phase of it, with what `.grad` is."""
        if number in self._left:
            raise _left(step)
        self._used.add(number)

    def zero(self, number: int) -> None:
        """`zero_grad()` was called on an optimizer."""
        self.zeroed = True
        self._used.discard(number)
        self._left.discard(number)

    def begin(self, step: int) -> None:
        """An inner loop begins."""
        several = range(len(self.groups))
        there = {number for number in several if self._lies_there(number)}
        unused = not self._used and not self.zeroed
        self._left = there & (self._used | self._left)
        if (there and unused) or (self._left and len(self.groups) == 1):
            raise _left(step)

    @property
    def given_up(self) -> bool:
        """Was the gradient that was shown set to zero?"""
        return self.zeroed or not any(map(self._lies_there, range(len(self.groups))))

    def _lies_there(self, number: int) -> bool:
        groups = self.groups[number]
        gradients = (
            parameter.grad
            for parameter, group in zip(self._space.trainable, self._space.groups, strict=True)
            if group in groups and parameter.grad is not None
        )
        return any(bool(gradient.any()) for gradient in gradients)


def _left(step: int) -> NotExact:
    return NotExact(
        f"step {step} would begin with the gradients of the step before it",
        "Call optimizer.zero_grad() once a turn, after optimizer.step() or before the loop over the units.",
    )
