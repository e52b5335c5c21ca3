"""A gradient that is not finite, in one unit: the first time it is computed, or every time."""

from __future__ import annotations

import os

from torch import nn

import holdfast as hf


def poison(run: hf.Run, model: nn.Module, where: str) -> None:
    """`where` is STEP:LANE:FILE, to do it only while FILE is not there, or STEP:LANE: for ever."""
    step, _, rest = where.partition(":")
    lane, _, file = rest.partition(":")
    if run.unit is not None and run.unit[:2] == (int(step), int(lane)):
        if file:
            try:
                os.close(os.open(file, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
        next(model.parameters()).grad.fill_(float("nan"))
