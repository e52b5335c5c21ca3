"""Mutants: simulations with one rule broken, which must be caught."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

import pytest

from holdfast.testing.model import Violation

__all__ = ["caught"]

_Config = TypeVar("_Config")


def caught(
    play: Callable[[int, _Config], object], seeds: Collection[int], drawn: Callable[[int], _Config],
    mutate: Callable[[_Config], _Config], expected: str,
) -> None:  # fmt: skip
    """Some seed shows that the rule is broken, and says so in these words; with the rule as it is, it plays well."""
    for seed in seeds:
        try:
            play(seed, mutate(drawn(seed)))
        except Violation as violation:
            if expected in str(violation):
                break
    else:
        pytest.fail(f"the mutant came through {len(seeds)} seeds")
    assert play(seed, drawn(seed))
