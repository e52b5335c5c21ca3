"""A run of one process for every test that asks for one, closed after it so that the next can join."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import holdfast as hf
from holdfast.data.randomness import seed_everything
from holdfast.train import run as runs
from holdfast.train import seeding


@pytest.fixture
def join(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., hf.Run]]:
    """`hf.join`, once more after each `run.close()`. What other tests have seeded torch with counts for nothing."""
    monkeypatch.setattr(seeding, "_newest", None)
    seed_everything(0)
    yield hf.join
    run = runs.current()
    if run is not None:
        try:
            run.close()
        except hf.errors.OutOfSync:
            pass  # the test left a loop where it must not be left
