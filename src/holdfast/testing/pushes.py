"""Who makes pushes and who applies them, in the simulation of `servers`: the processes, and what a slice knows.

A push belongs to an *attempt*, a number that rises when its lane gets another driver, and counts when every slice has
it. Until then a newer attempt replaces an older one, and a worker sends its push again and again.
A server applies dockets to its slices, one slice at a time, each in order. All it knows of a slice is in the slice's
record; when that was fetched by another server it is *fenced*, and what this one still does to it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.clocks import Taken
from holdfast.testing.model import Violation

if TYPE_CHECKING:
    from holdfast.testing.servers import Cluster

__all__ = ["Push", "Record", "Server", "Worker"]

_REPEAT = 0.3  #: virtual seconds after which a push that is not complete is sent again


class Push(NamedTuple):
    """What a lane gives."""

    lane: int
    step: int
    attempt: int  #: how often the lane had changed hands before
    read: int  #: the version that it was computed from


class Record:
    """All that is known of a slice; it moves with it."""

    def __init__(self, lanes: int) -> None:
        self.generation = self.version = self.value = 0
        self.applied = [0] * lanes
        self.pushes: dict[tuple[int, int], Push] = {}

    def moved(self) -> Record:
        """A copy, for another server."""
        other = copy(self)
        other.applied, other.pushes = list(self.applied), dict(self.pushes)
        return other

    def accepts(self, push: Push, complete: bool) -> bool:
        """Is this push news? Not if it was applied, if all slices have one (`complete`), or here is a newer attempt."""
        held = self.pushes.get(push[:2])
        return not complete and push.step >= self.applied[push.lane] and (held is None or held.attempt < push.attempt)

    def apply(self, docket: Sequence[Taken]) -> list[Push]:
        """Go to the next version; returns what was applied."""
        used = []
        for taken in docket:
            if (push := self.pushes.pop(taken, None)) is None:
                raise Violation(f"version {self.version} takes {taken}, which is not there")
            self.applied[push.lane] = push.step + 1
            self.value = hash((self.value, push))
            used.append(push)
        self.version += 1
        return used


class Server:
    """A server: applies dockets to its slices, one slice at a time."""

    def __init__(self, cluster: Cluster, number: int, rate: float) -> None:
        self.cluster, self.number, self.rate = cluster, number, rate
        self.shelf: dict[int, Record] = {}  #: outlives the process, as an arena does
        self.owned: list[int] = []
        self.alive = True
        self.generation = 0
        self._heard = 0  # of a generation that begins here soon
        self._busy = False

    def hear(self, generation: int) -> None:
        """A generation begins. What is heard late is old news."""
        if generation == self.cluster.generation:
            self._heard = generation
            self.look()

    def look(self) -> None:
        """Do what is to be done now. A new generation begins between two actions, never inside one."""
        if self._busy or not self.alive:
            return
        if self._heard > self.generation:
            self._install()
        mine = [index for index in self.owned if self.holds(index)]
        index = min(mine, key=lambda n: self.shelf[n].version, default=None)
        if index is not None and self.shelf[index].version < len(self.cluster.log):
            self._busy = True
            seconds = self.cluster.sizes[index] / self.rate + self.cluster.pause()
            self.cluster.clock.after(seconds, self._done, index, self.shelf[index])

    def holds(self, index: int) -> bool:
        """Is this slice's record here, and mine to change?"""
        return index in self.shelf and self.shelf[index].generation == self.generation

    def receive(self, push: Push, indices: Sequence[int]) -> None:
        """A push has arrived, or comes again."""
        cluster = self.cluster
        complete = push.step < cluster.pushed[push.lane]
        for index in indices:
            if index in self.owned and self.holds(index) and self.shelf[index].accepts(push, complete):
                record = self.shelf[index]
                cluster.arrived(push, record.pushes.get(push[:2]))
                record.pushes[push[:2]] = push
            else:
                cluster.count["refused"] += 1

    def _install(self) -> None:
        self.generation = self._heard
        self.owned = [index for index, owner in enumerate(self.cluster.owner) if owner == self.number]
        for index in self.owned:
            if index in self.shelf:
                self.shelf[index].generation = self.generation
        self.cluster.decide_soon()

    def _done(self, index: int, record: Record) -> None:
        self._busy = False
        if not self.alive:
            return  # what it had begun is undone
        if self.fenced(record):
            self.cluster.count["fenced"] += 1
        else:
            self.cluster.published(index, record, record.apply(self.cluster.log[record.version]))
        self.look()

    def fenced(self, record: Record) -> bool:
        """Has somebody fetched the record since this server began to change it?"""
        return record.generation != self.generation


class Worker:
    """A worker: computes units, sends pushes, and sends them again until they are complete."""

    def __init__(self, cluster: Cluster, number: int, seconds: float) -> None:
        self.cluster, self.number, self.seconds = cluster, number, seconds
        self.lanes: dict[int, int] = {}  #: lane -> its attempt, as far as this worker knows
        self.alive = True
        self._busy = False
        self._sending: Push | None = None

    def look(self) -> None:
        """Begin the next unit, if there is one and nothing is under way."""
        cluster = self.cluster
        if self._sending is not None and self._sending.step < cluster.pushed[self._sending.lane]:
            self._sending, self._busy = None, False
        if self._busy or not self.alive:
            return
        lane = cluster.config.next_lane(cluster.config.mode, cluster.clocks, tuple(self.lanes))
        if not isinstance(lane, int):
            return
        self._busy = True
        push = Push(lane, cluster.pushed[lane], self.lanes[lane], cluster.version)
        cluster.check_begin(push)
        seconds = self.seconds * cluster.config.mode.inner * (0.8 + 0.4 * cluster.random.random())
        cluster.clock.after(seconds + cluster.pause(), self._computed, push)

    def told(self, lane: int, attempt: int) -> None:
        """Somebody else drives this lane in this attempt. It may be old news: this worker may drive it again."""
        if self.lanes.get(lane, attempt) < attempt:
            del self.lanes[lane]

    def _computed(self, push: Push) -> None:
        self._sending = push
        self._send()

    def _send(self) -> None:
        push = self._sending
        if push is None or not self.alive:
            return
        attempt = self.lanes.get(push.lane)
        if attempt is None or push.step < self.cluster.pushed[push.lane]:
            self._sending, self._busy = None, False
            self.look()
            return
        # The lane may have been with somebody else in between, whose newer attempt is on some slices already.
        self._sending = push._replace(attempt=attempt)
        self.cluster.send(self, self._sending)
        self.cluster.clock.after(_REPEAT, self._again, self._sending)

    def _again(self, push: Push) -> None:
        if self._sending is push:
            self._send()
