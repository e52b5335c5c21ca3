"""Who makes pushes and who applies them, in the simulation of `servers`: the processes, and what a slice knows.

A push belongs to an *attempt*, a number that rises when its lane gets another driver, and counts when every slice has
it. Until then a newer attempt replaces an older one, and a worker sends its push again and again.
A server applies commit sets to its slices, one slice at a time, each in order. All it knows of a slice is in the
slice's record; when that was fetched by another server it is *fenced*, and what this one still does to it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.sync.modes import TakenPush
from holdfast.testing.model import Violation

if TYPE_CHECKING:
    from holdfast.testing.servers import Cluster

__all__ = ["Group", "Push", "Record", "Server", "Worker"]

_REPEAT = 0.3  #: virtual seconds after which a push that is not complete is sent again


class Push(NamedTuple):
    """What a lane gives."""

    lane: int
    step: int
    attempt: int  #: how often the lane had changed hands before
    read: int  #: the version that it was computed from


class Record:
    """All that is known of a slice; it moves with it."""

    def __init__(self) -> None:
        self.generation = self.version = self.value = 0
        self.pushes: dict[tuple[int, int], Push] = {}  #: (lane, step) -> what is not applied yet

    def moved(self) -> Record:
        """A copy, for another server."""
        other = copy(self)
        other.pushes = dict(self.pushes)
        return other

    @staticmethod
    def receive(records: Sequence[Record], push: Push, complete: bool) -> tuple[int, list[Push]]:
        """Take a push into these records, where it is news: not if all slices have one, or here is a newer attempt.

        Returns how many took it in, and which older attempts it replaced in them.
        """
        taken, replaced, key = 0, list[Push](), push[:2]
        if complete:
            return taken, replaced
        for record in records:
            pushes = record.pushes
            if key in pushes:
                if pushes[key].attempt >= push.attempt:
                    continue
                replaced.append(pushes[key])
            pushes[key] = push
            taken += 1
        return taken, replaced

    def apply(self, commit_set: Sequence[TakenPush]) -> list[Push]:
        """Go to the next version; returns what was applied."""
        try:
            used = list(map(self.pushes.pop, commit_set))
        except KeyError as problem:
            raise Violation(f"version {self.version} takes {problem.args[0]}, which is not there") from None
        self.value = hash((self.value, *used))
        self.version += 1
        return used


class Server:
    """A server: applies commit sets to its slices, one slice at a time."""

    def __init__(self, cluster: Cluster, number: int, rate: float) -> None:
        self.cluster, self.number, self.rate = cluster, number, rate
        self.values: dict[int, Record] = {}  #: outlives the process, as an arena does
        self.applied = (0, 0.0)  #: bytes, and the seconds that it took for them
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
        index = min(mine, key=lambda n: self.values[n].version, default=None)
        if index is not None and self.values[index].version < len(self.cluster.commit_sets):
            self._busy = True
            seconds = self.cluster.sizes[index] / self.rate + self.cluster.pause()
            self.cluster.clock.after(seconds, self._done, index, self.values[index], seconds)

    def holds(self, index: int) -> bool:
        """Is this slice's record here, and mine to change?"""
        return index in self.values and self.values[index].generation == self.generation

    def _install(self) -> None:
        self.generation = self._heard
        self.owned = [index for index, owner in enumerate(self.cluster.owner) if owner == self.number]
        for index in self.owned:
            if index in self.values:
                self.values[index].generation = self.generation
        self.cluster.changes += 1
        self.cluster.decide_soon()

    def _done(self, index: int, record: Record, seconds: float) -> None:
        self._busy = False
        if not self.alive:
            return  # what it had begun is undone
        if self.fenced(record):
            self.cluster.count["fenced"] += 1
        else:
            self.applied = self.applied[0] + self.cluster.sizes[index], self.applied[1] + seconds
            self.cluster.published(index, record, record.apply(self.cluster.commit_sets[record.version]))
        self.look()

    def fenced(self, record: Record) -> bool:
        """Has somebody fetched the record since this server began to change it?"""
        return record.generation != self.generation


class Group:
    """Servers that get a push in one message, and the slices that they own as far as its sender knows."""

    def __init__(self, servers: Mapping[Server, Sequence[int]]) -> None:
        self.slices = sum(map(len, servers.values()))
        self._servers = servers
        self._ready: list[Record] = []
        self._at = -1

    def ready(self, changes: int) -> list[Record]:
        """The records that can take a push in now: known as long as nothing has changed."""
        if self._at != changes:
            self._at = changes
            self._ready = [
                server.values[index] for server, indices in self._servers.items() if server.alive for index in indices
                if index in server.owned and server.holds(index)
            ]  # fmt: skip
        return self._ready


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
        if self._sending is not None and self._sending.step < cluster.clocks.pushed[self._sending.lane]:
            self._sending, self._busy = None, False
        if self._busy or not self.alive:
            return
        lane = cluster.config.next_lane(cluster.config.mode, cluster.clocks, tuple(self.lanes))
        if not isinstance(lane, int):
            return
        self._busy = True
        push = Push(lane, cluster.clocks.pushed[lane], self.lanes[lane], self.pulled())
        cluster.audit.begun(push)
        seconds = self.seconds * cluster.config.mode.inner * (0.8 + 0.4 * cluster.random.random())
        cluster.clock.after(seconds + cluster.pause(), self._computed, push)

    def pulled(self) -> int:
        """The version that it computes from."""
        return self.cluster.version

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
        if attempt is None or push.step < self.cluster.clocks.pushed[push.lane]:
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
