"""Mutants: simulations with one rule broken, which must be caught. Here is what drills have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

import pytest

from holdfast.control.machine import Machine
from holdfast.control.membership.crew import Crew
from holdfast.control.membership.roster import CrewLimits, Worker
from holdfast.testing.model import Violation

__all__ = ["InstallsAtOnce", "caught"]

_Config = TypeVar("_Config")


class _NeverWaits(Crew):
    def waited_for(self) -> list[Worker]:
        return []


class InstallsAtOnce(Machine):
    """Installs a generation without waiting for quiet."""

    def __init__(self, limits: CrewLimits) -> None:
        super().__init__(limits)
        self._run.crew = _NeverWaits(limits)


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
