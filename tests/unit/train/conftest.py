"""A run of one process for every test that asks for one, closed after it so that the next can join."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import holdfast as hf
from holdfast.train import run as runs


@pytest.fixture
def join() -> Iterator[Callable[..., hf.Run]]:
    """`hf.join`, once more after each `run.close()`."""
    yield hf.join
    run = runs.current()
    if run is not None:
        try:
            run.close()
        except hf.errors.OutOfSync:
            pass  # the test left a loop where it must not be left
