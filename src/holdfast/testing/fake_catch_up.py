"""Simulated catch-up: a new host gets the state, and then every step, from one that is in the crew.

As the real donor does, this one copies the state at one version, holds back the sums of a step on its host until those
of the step before are written down, and gives up a follower that takes less than the crew makes. A donor whose own
host had to fetch a state, or finished a step without sums, has missed that step, and gives up as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.control.protocol.events import CatchUpEnded

if TYPE_CHECKING:
    from holdfast.testing.fake_host import FakeHost

__all__ = ["FakeCatchUp", "FakeDonor"]

_POLL = 0.004
_PATIENCE = 0.3  #: seconds until a donor that cannot be reached is given up
_BACKLOG = 3  #: steps that may wait for a follower


class _SumRecord(NamedTuple):
    step: int
    lanes: tuple[int, ...]
    facts: tuple[Any, ...]
    totals: tuple[tuple[int, int], ...]


class FakeDonor:
    """What a host of the crew does for one that follows."""

    def __init__(self, host: FakeHost, follower: FakeCatchUp) -> None:
        self.host, self._follower = host, follower
        self.over = False
        self._fetches = host.arena.fetches
        self._log: list[_SumRecord] = []
        self._sending = False
        self._copy()

    def end(self) -> None:
        """Let the follower go."""
        if not self.over:
            self.over = True
            self.host.arena.recorded.pop(id(self), None)
            self.host.moved()
            self._follower.ended("it hung up")

    def _gone(self) -> bool:
        if not self.host.up or self._follower.closed or self.host.arena.fetches != self._fetches:
            self.end()
        return self.over

    def _copy(self) -> None:
        arena, cluster = self.host.arena, self.host.cluster
        if self._gone():
            return
        if not arena.seeded or len(set(arena.versions)) > 1:
            cluster.clock.after(_POLL, self._copy)
            return
        arena.recorded[id(self)] = arena.step()
        self.host.moved()  # where the state went on while it was copied, sums of one more step may be made
        cluster.clock.after(cluster.carriage(self.host.factor) * 2, self._copied, arena.step())

    def _copied(self, version: int) -> None:
        arena, cluster = self.host.arena, self.host.cluster
        if self._gone():
            return
        if arena.step() != version or len(set(arena.versions)) > 1:
            self._copy()
            return
        cluster.clock.after(cluster.carriage(self.host.factor) * 4, self._follower.landed, version, arena.image())
        self._watch(version)

    def _watch(self, step: int) -> None:
        """Write down a step as soon as it is decided."""
        arena, cluster = self.host.arena, self.host.cluster
        if self._gone():
            return
        if arena.step() > step and any(at != step + 1 for at in arena.summed):
            self.end()  # the step was finished without sums: a lone host does that when it thinks nobody follows
            return
        if step < arena.model.steps and (arena.step() > step or arena.complete(step)):
            totals = tuple(zip(arena.sums, arena.norms, strict=True))
            lanes = tuple(arena.known(step))
            self._log.append(_SumRecord(step, lanes, arena.facts(step, lanes), totals))
            step += 1
            arena.recorded[id(self)] = step
            self.host.moved()
            self._send()
        if len(self._log) > _BACKLOG:
            self.end()
        else:  # now and then its machine has something else to do
            slow = cluster.jitter(1.0) < 0.1
            cluster.clock.after(cluster.jitter(0.2) if slow else _POLL, self._watch, step)

    def _send(self) -> None:
        cluster = self.host.cluster
        if self._log and not self._sending and not self.over:
            self._sending = True
            cluster.clock.after(cluster.carriage(self.host.factor), self._bring)

    def _bring(self) -> None:
        if self._gone():
            return
        if self.host.cut or self._follower.host.cut or not self._follower.takes(self._log[0].step):
            self.host.cluster.clock.after(_POLL, self._bring)
            return
        self._sending = False
        self._follower.land(self._log.pop(0))
        self._send()


class FakeCatchUp:
    """A host that follows."""

    def __init__(self, host: FakeHost, donor: int, generation: int) -> None:
        self.host, self._donor, self.generation = host, donor, generation
        self.closed = False
        host.cluster.clock.after(host.cluster.jitter(0.01), self._dial, host.cluster.clock.now + _PATIENCE)

    def close(self) -> None:
        """Follow no longer; nothing more is written."""
        self.closed = True

    def ended(self, why: str) -> None:
        """The donor has let go."""
        if not self.closed:
            self.closed = True
            self.host.hear(CatchUpEnded(self.host.number, f"host {self._donor} gives no more ({why})"))

    def takes(self, step: int) -> bool:
        """Whether the next step can be put in place: the ones before are finished."""
        arena = self.host.arena
        here = arena.seeded and arena.current >= self.generation and arena.step() >= step
        return here and not arena.readers_before(step)

    def landed(self, version: int, state: tuple[Any, ...]) -> None:
        """The state has come."""
        if self.closed or not self.host.up:
            return
        self.host.arena.check_fence(self.generation, "the state")
        self.host.arena.land_state(self.generation, version, state)
        self.host.fetched()

    def land(self, record: _SumRecord) -> None:
        """A step has come."""
        arena = self.host.arena
        arena.check_fence(self.generation, "a step")
        arena.land_facts(record.step, record.lanes, record.facts)
        for slice_, (total, norm) in enumerate(record.totals):
            arena.land_total(record.step, slice_, total, norm)
        self.host.moved()

    def _dial(self, until: float) -> None:
        cluster = self.host.cluster
        if self.closed or not self.host.up:
            return
        there = cluster.hosts.get(self._donor)
        if there is not None and there.up and not there.cut and not self.host.cut:
            cluster.config.donor(there, self)
        elif cluster.clock.now > until:
            self.ended("it cannot be reached")
        else:
            cluster.clock.after(_POLL, self._dial, until)
