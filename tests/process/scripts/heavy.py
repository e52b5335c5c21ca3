"""Optimizers that take their time, on some processes more than on others: `WORKER:SECONDS` for a million numbers."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch


def heavy(kind: type[torch.optim.Optimizer], worker: int, told: Sequence[str]) -> type[torch.optim.Optimizer]:
    """The same optimizer. It takes this worker, or server, as long as it is told."""
    seconds = {int(who): float(how_long) for who, how_long in (text.split(":") for text in told)}.get(worker, 0.0)

    class Heavy(kind):  # type: ignore[misc,valid-type]
        def step(self, closure: None = None) -> None:
            time.sleep(seconds * sum(p.numel() for group in self.param_groups for p in group["params"]) / 1e6)
            super().step(closure)

    return Heavy
