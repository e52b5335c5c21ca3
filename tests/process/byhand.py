"""What a run of `scripts/adam.py` comes to through several modes, computed once more in plain torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.config.worker_spec import OUTER
from tests.process.scripts.adam import BATCH, DECAY, LANES, RATE, SAMPLES, Points

STEPS = SAMPLES // BATCH  # of an epoch


@dataclass(frozen=True)
class State:
    """What Adam keeps."""

    steps: int
    mean: Tensor
    square: Tensor

    def next(self, weights: Tensor, gradient: Tensor, rate: float) -> tuple[Tensor, State]:
        """One step: the weights and the state after it."""
        new = State(
            self.steps + 1, 0.9 * self.mean + 0.1 * gradient, 0.999 * self.square + 0.001 * gradient**2
        )
        mean, square = new.mean / (1 - 0.9**new.steps), new.square / (1 - 0.999**new.steps)
        return weights - rate * mean / (square.sqrt() + 1e-8), new


def gradient(weights: Tensor, samples: Sequence[int]) -> Tensor:
    points = [Points()[index] for index in samples]
    x, y = torch.stack([point[0] for point in points]), torch.stack([point[1] for point in points])
    weights = weights.clone().requires_grad_()
    torch.nn.functional.mse_loss(x @ weights[:3, None] + weights[3], y).backward()
    assert weights.grad is not None
    return weights.grad


def by_hand(
    units: Mapping[tuple[int, int], Sequence[int]], samples: Mapping[int, Sequence[int]],
    modes: Sequence[Mapping[str, Any]], steps: int, loaded: tuple[int, float, float] = (0, 0.0, 0.0),
) -> Tensor:  # fmt: skip
    """The weights after `steps`, of which `samples` were used in each; with local steps those of each lane's `units`.

    `modes` is what the summary says; of those that depend on timing there may be none.
    """
    weights = torch.tensor([0.5, 0.5, 0.5, 0.0], dtype=torch.float64)
    owners = State(loaded[0], *(torch.full_like(weights, number) for number in loaded[1:]))
    lanes: list[State] = []
    momentum: Tensor | None = None
    ends = [*(mode["step"] for mode in modes[1:]), steps]
    for mode, end in zip(modes, ends, strict=True):
        step, sync = mode["step"], mode["sync"]
        local = int(sync.partition(":")[2]) if sync.startswith("local:") else 0
        if local and not lanes:
            lanes, momentum = [owners] * LANES, None
        elif not local and lanes:
            parts = [torch.stack([getattr(lane, name) for lane in lanes]).mean(0) for name in ("mean", "square")]
            owners, lanes = State(lanes[0].steps, *parts), []
        while step < end and not local:
            whole = gradient(weights, samples[step])
            weights, owners = owners.next(weights, whole, RATE * DECAY**step)
            step += 1
        while step < end:
            last, gone = min(step + local, (step // STEPS + 1) * STEPS), []
            assert last <= end, "a mode changes at the end of a round"
            for lane in range(LANES):
                mine = weights
                for at in range(step, last):
                    mine, lanes[lane] = lanes[lane].next(mine, gradient(mine, units[at, lane]), RATE * DECAY**at)
                gone.append(weights - mine)
            outward = torch.stack(gone).mean(0)
            momentum = outward if momentum is None else OUTER[1] * momentum + outward
            weights, step = weights - OUTER[0] * (outward + OUTER[1] * momentum), last
    return weights
