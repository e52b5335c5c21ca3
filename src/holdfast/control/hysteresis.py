"""Hysteresis: what moves for the sake of speed alone moves seldom. Pure.

Who drives a lane or owns a slice never changes a result, so moving it is only ever about time, and doing nothing is
always right. Hence, for lanes (`lane_balance`) as for slices (`slice_balance`):

* what is better must show in two reports in a row, and `settle` seconds after the last change, before it is taken;
* who is so slow that it has nothing can not show that it has become fast again. It is tried with a little after `probe`
  seconds, and after twice the time whenever that did not help. Who has something in calm times has passed its trial.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self, TypeVar

from holdfast.config.limits import CrewConfig

__all__ = ["Hysteresis", "Probe"]

_Change = TypeVar("_Change")


@dataclass(frozen=True, slots=True)
class Probe:
    """A worker (or server) that was found too slow for any: when it is tried next, and how long to wait after that."""

    at: float
    wait: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hysteresis:
    """What the last reports have shown, and who is to be tried."""

    hits: int = 0  #: reports in a row that showed something better
    calm: int = 0  #: reports in a row that showed nothing
    probes: Mapping[int, Probe] = field(default_factory=dict)

    def judged(
        self, better: _Change | None, busy: Collection[int], probe: Callable[[Self], _Change | None], *, settled: bool
    ) -> tuple[Self, _Change | None]:
        """Take in what a report has shown, while those in `busy` have something; and what is to be changed now.

        `probe` tries somebody, if it is time. Nothing is changed before the last change has `settled`.
        """
        if better is not None:
            after = replace(self, hits=self.hits + 1, calm=0)
            return after, better if settled and after.hits >= 2 else None
        calm, probes = self.calm + 1, self.probes
        if calm >= 2:
            probes = {member: probe for member, probe in probes.items() if member not in busy}
        after = replace(self, hits=0, calm=calm, probes=probes)
        return after, probe(after) if settled else None

    def due(self, now: float, busy: Collection[int]) -> list[int]:
        """Who has nothing, and is to be tried now."""
        return [member for member, probe in sorted(self.probes.items()) if member not in busy and probe.at <= now]

    def probes_after(
        self, now: float, busy: Collection[int], members: Sequence[int], crew: CrewConfig
    ) -> dict[int, Probe]:
        """Who of these is to be tried and when, now that a generation has begun in which those in `busy` have some."""
        after: dict[int, Probe] = {}
        for member in members:
            known = self.probes.get(member)
            if member not in busy:
                wait = known.wait if known else crew.probe
                after[member] = Probe(now + wait, wait)
            elif known:  # it is being tried: should it lose the lane again, the next try comes later
                after[member] = Probe(known.at, min(2 * known.wait, crew.probe_limit))
        return after
