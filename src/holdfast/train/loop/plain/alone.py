"""A plain loop in a run of one process: the script computes what it computes without Holdfast.

No other process needs the gradient: the script's own optimizer steps, with the implementation and the state that the
script gave it, and with the script's number of threads. A turn has the whole batch. So the bits are those of the script
without Holdfast, as far as nothing in it is random.

The parameters lie in the arena all the same, for evaluations, and for a loop by steps that may follow: before one, the
optimizer's state is taken over into the arena once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from holdfast.core.shares import Share
from holdfast.dataplane.memory.board import StepFacts
from holdfast.dataplane.reduce.schema import pin
from holdfast.dataplane.reduce.work import StepWork
from holdfast.train.loop.plain.share_turns import ShareTurns

if TYPE_CHECKING:
    from holdfast.data.batches import Batches
    from holdfast.train.training import Training

__all__ = ["AloneTurns", "OwnOptimizer"]

#: What chooses an implementation, and with it the last bits (`schema.pin`).
_CHOICES = ("fused", "foreach")


class OwnOptimizer:
    """Which of the two steps: the script's optimizer as it was made, or the arena's."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer, self.used = optimizer, False
        self._made = [{key: group[key] for key in _CHOICES if key in group} for group in optimizer.param_groups]

    def take(self, training: Training) -> None:
        """The script's optimizer steps from now on."""
        if self.used:
            return
        training.fill_state()
        for group, made in zip(self._optimizer.param_groups, self._made, strict=False):
            group.update(made)
        training.set_threads(own=True)
        self.used = True

    def give_back(self, training: Training) -> None:
        """The arena's steps from now on, with the state that the script's has come to."""
        if not self.used:
            return
        self.used = False
        pin(self._optimizer)
        training.bound.seed_again()
        training.note_written()
        training.set_threads(own=False)


class AloneTurns(ShareTurns):
    """The turns of one plain loop of the only process there is."""

    def __init__(self, training: Training, batches: Batches, order: int, at: int) -> None:
        super().__init__(training, batches, order, at)
        training.own.take(training)

    def _begin_step(self) -> None:
        training = self._training
        self._begin, self._count, self._used = self.at, 0, {}
        self._work = StepWork(training.step, (0,), (0,) * training.num_lanes, training.bound.ahead, weighted=False)
        self._share = Share(0, training.num_lanes)

    def _enter(self) -> None:
        self._training.tap.reset()

    def step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None) -> Any:
        """`optimizer.step()`, as the class of the optimizer does it."""
        self._check_turn()
        training = self._training
        if training.bound.member.finite and not training.bound.member.scaled:
            training.check_loss(training.tap.value())  # with a closure, of what the one before has made
            training.check_gradients(whole=False)
        value = type(optimizer).step(optimizer, closure)
        self._complete()
        return value

    def drop(self) -> None:
        """A gradient scaler leaves the step out: it counts, and no parameter moves."""
        self._complete()

    def _complete(self) -> None:
        training = self._training
        board, version, samples = training.bound.board, self._work.version, self._count
        before = board.step_facts(version)
        facts = StepFacts(training.tap.value(), before.samples + samples, 0.0, before.extra)
        board.put_step(version + 1, facts)
        for slice_ in range(board.num_slices):
            board.publish(slice_, version + 1)
        self._show_pace()
        training.unit = None
        training.bound.member.facts = facts
        training.note_facts()
        self._end_step()
