"""How many replicas a model is to have, between a least and a most number. Pure.

    scaling = Scaling(ScalingLimits(least=1, most=8), objective=0.05, replicas=1)
    if (decision := scaling.look(load, now)) is not None:
        service.want(decision.replicas)

Two things are looked at: how long requests wait for a replica, and what comes in a second of what replicas can compute
in one. (How busy replicas are says little: one that has no other batch takes a batch of one item.) The first is what
clients feel, the second says how many replicas it takes.

It does not flap: replicas are added when there have been too few for a second, and only when those of the decision
before answer; one is taken away when one fewer would have been plenty for half a minute. Where that was a mistake, and
it has to be added again soon, the next try waits twice as long.
"""

from __future__ import annotations

import math
from typing import NamedTuple

__all__ = ["Load", "Scaling", "ScalingDecision", "ScalingLimits"]


class ScalingLimits(NamedTuple):
    """What a model may have, and how patient its scaling is."""

    least: int
    most: int
    high: float = 0.85  #: of what replicas can compute, above which there are too few
    aim: float = 0.65  #: of it, which is aimed at
    low: float = 0.5  #: of what one replica fewer could compute, below which there is one too many
    up: float = 1.0  #: seconds of too few before some are added
    down: float = 30.0  #: seconds of too many before one is taken away
    most_down: float = 600.0
    memory: float = 1.0  #: seconds over which is counted what comes


class Load(NamedTuple):
    """What a model has had to do since the last look, and what its replicas can do."""

    items: int  #: that came, taken or not
    refused: int  #: requests
    waited: float  #: seconds for a replica, on the average
    rate: float  #: items a second that all replicas which answer can compute; 0: not known
    replicas: int  #: that answer


class ScalingDecision(NamedTuple):
    """So many replicas from now on, and why."""

    replicas: int
    reason: str


class Scaling:
    """The replicas of one model."""

    def __init__(self, limits: ScalingLimits, objective: float, replicas: int) -> None:
        self._limits, self._objective = limits, objective
        self.replicas = replicas  #: that are wanted now
        self._looked = -math.inf
        self._coming = 0.0  # items a second
        self._crowded = 0.0  # seconds of too few, less those of enough
        self._plenty_since = math.inf
        self._patience = limits.down
        self._taken_away = -math.inf

    def look(self, load: Load, now: float) -> ScalingDecision | None:
        """What follows from the time since the last look; called a few times a second."""
        passed, self._looked = now - self._looked, now
        if not 0.0 < passed < math.inf:
            return None
        fresh = 1.0 - math.exp(-passed / self._limits.memory)
        self._coming += (load.items / passed - self._coming) * fresh
        if load.replicas < self.replicas or not load.rate:  # those of the last decision do not answer yet
            self._crowded, self._plenty_since = 0.0, math.inf
            return None
        each = load.rate / load.replicas
        crowded = self._is_crowded(load)
        self._crowded = min(self._limits.up, max(0.0, self._crowded + (passed if crowded else -passed)))
        if crowded or not self._is_plenty(load, each):
            self._plenty_since = math.inf
        else:
            self._plenty_since = min(self._plenty_since, now)
        if self._crowded >= self._limits.up and self.replicas < self._limits.most:
            return self._add(load, each, now)
        if now - self._plenty_since >= self._patience and self.replicas > self._limits.least:
            return self._take_away(load, each, now)
        return None

    def _is_crowded(self, load: Load) -> bool:
        waits = load.waited > 0.5 * self._objective
        return load.refused > 0 or waits or self._coming > self._limits.high * load.rate

    def _is_plenty(self, load: Load, each: float) -> bool:
        enough = self._coming < self._limits.low * each * (self.replicas - 1)
        return enough and load.waited < 0.1 * self._objective

    def _add(self, load: Load, each: float, now: float) -> ScalingDecision:
        if now - self._taken_away < 2.0 * self._patience:
            self._patience = min(self._limits.most_down, 2.0 * self._patience)
        else:
            self._patience = self._limits.down
        needed, share = 2.0 * self.replicas, self._limits.aim * each
        if share > 0:
            needed = min(needed, self._coming / share)
        wanted = max(self.replicas + 1, math.ceil(needed))
        refused = f", and {load.refused} were refused" if load.refused else ""
        return self._decide(
            min(wanted, self._limits.most),
            f"{self._coming:.0f} items a second come, {_replicas(load.replicas)} can compute {load.rate:.0f}; requests "
            f"wait {1000 * load.waited:.0f} ms{refused}",
        )

    def _take_away(self, load: Load, each: float, now: float) -> ScalingDecision:
        self._taken_away = now
        fewer = self.replicas - 1
        return self._decide(
            fewer,
            f"for {self._patience:.0f} s few items have come, {self._coming:.0f} a second now; {_replicas(fewer)} can "
            f"compute {each * fewer:.0f}",
        )

    def _decide(self, replicas: int, reason: str) -> ScalingDecision:
        before, self.replicas = self.replicas, replicas
        self._crowded, self._plenty_since = 0.0, math.inf
        return ScalingDecision(replicas, f"{_replicas(replicas)} instead of {before}: {reason}")


def _replicas(number: int) -> str:
    return f"{number} replica{'s' * (number != 1)}"
