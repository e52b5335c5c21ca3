"""What a worker says of an exception of its script."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from holdfast.config.worker_spec import WorkerSpec
from holdfast.train.worker import _failure

SPEC = WorkerSpec(worker=3, row=0, script="train.py", args=(), dir="runs/x")


def kind_of(act: Any) -> str:
    steered: Any = SimpleNamespace(generation=1)
    with pytest.raises(BaseException) as caught:
        act()
    return _failure(SPEC, steered, caught.value).kind


def raises(error: BaseException) -> Any:
    def act() -> None:
        raise error

    return act


def test_no_memory_is_told_as_such_whoever_wanted_it() -> None:
    assert kind_of(lambda: torch.ones(10**14)) == "MemoryError"
    assert kind_of(raises(MemoryError())) == "MemoryError"
    assert kind_of(raises(RuntimeError("no"))) == "RuntimeError"
