"""Whether two states are the same, bit for bit: tensors, and dicts and lists of them, as `state_dict` gives them."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["assert_same"]


def assert_same(mine: Any, theirs: Any, where: str = "") -> None:
    if isinstance(theirs, torch.Tensor):
        assert mine.dtype == theirs.dtype and torch.equal(mine, theirs), f"{where}: {mine} and {theirs}"
    elif isinstance(theirs, dict):
        assert list(mine) == list(theirs), where
        for name, value in theirs.items():
            assert_same(mine[name], value, f"{where} {name}")
    elif isinstance(theirs, list | tuple):
        assert len(mine) == len(theirs), where
        for number, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            assert_same(one, other, f"{where} {number}")
    else:
        assert mine == theirs, where
