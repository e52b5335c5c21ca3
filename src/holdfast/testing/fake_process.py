"""A simulated process: what kills, stops and delays it.

Faults strike between two actions or in the middle of one. A frozen process does nothing at all, but all that
would have happened to it happens when it goes on; a dead one does nothing ever, though what it said before
is still on its way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.testing.faults import At

if TYPE_CHECKING:
    from holdfast.testing.cluster import SimCluster

__all__ = ["FakeProcess"]


class FakeProcess(ABC):
    """Life and death of a worker; what it does with its life is in `fake_worker`."""

    def __init__(self, cluster: SimCluster, number: int, faults: list[At]) -> None:
        self.cluster, self.number = cluster, number
        self.alive = True
        self.frozen_since: float | None = None
        self.factor = 1.0  #: how many times slower than usual it is
        self.step = -1  #: where its script is; -1 before its first step
        self._faults = faults
        self._deferred: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    @abstractmethod
    def resume(self) -> None:
        """Look again at what there is to do."""

    @abstractmethod
    def torn(self, part: float) -> None:
        """Leave behind what a kill at this part of the current action leaves behind."""

    @abstractmethod
    def asked_to_leave(self) -> None:
        """The machine it runs on wants it gone (SIGTERM)."""

    def later(self, seconds: float, do: Callable[..., object], *args: Any) -> None:
        """Do something later, if alive then; once it is frozen, only when it goes on."""
        self.cluster.clock.after(seconds, self._fire, do, args)

    def _fire(self, do: Callable[..., object], args: tuple[Any, ...]) -> None:
        if self.alive:
            if self.frozen_since is None:
                do(*args)
            else:
                self._deferred.append((do, args))

    def struck(self, point: str, duration: float = 0.0) -> bool:
        """Let the next fault strike if this is its moment; True if the process does not go on from here.

        With `duration`, an action of that length begins now, and the fault strikes in the middle of it.
        """
        early = point in ("start", "fetch")  # before there is a step
        fault = next((f for f in self._faults if f.during == point and (early or self.step >= f.step)), None)
        if fault is None:
            return False
        self._faults.remove(fault)
        self.cluster.note("fault", self.number, fault)
        if fault.what == "leave":
            self.asked_to_leave()
        elif fault.what == "slow":
            self.factor = fault.factor
        elif fault.what == "lose host":
            self.cluster.clock.after(duration * fault.part, self.cluster.host_of(self.number).end)
        elif fault.what == "cut host":
            cut = self.cluster.host_of(self.number).cut_off
            self.cluster.clock.after(duration * fault.part, cut, fault.seconds)
        elif duration:
            self.cluster.clock.after(duration * fault.part, self._strike, fault)
        else:
            self._strike(fault)
        return not self.alive or self.frozen_since is not None

    def _strike(self, fault: At) -> None:
        if not self.alive:
            return
        if fault.what == "kill":
            if self.frozen_since is None:
                self.torn(fault.part)
            self.cluster.died(self.number, "signal", 9)
        elif self.frozen_since is None:
            self.frozen_since = self.cluster.clock.now
            if fault.seconds < float("inf"):
                self.cluster.clock.after(fault.seconds, self._thaw)

    def _thaw(self) -> None:
        if self.alive:
            self.frozen_since = None
            deferred, self._deferred = self._deferred, []
            for do, args in deferred:
                self.later(0.0, do, *args)
            self.later(0.0, self.resume)
