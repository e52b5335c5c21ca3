"""Relaxed modes, on several simulated hosts: the real machine, the real clocks, all else pretended.

    report = simulate(seed=7)                       # a random cluster under a random schedule of faults
    report = simulate(seed=7, config=Config(...))   # this one

One host holds the state, the others mirror it, and some hold replicas (`relaxed_state`, `relaxed_session`). What must
hold: every push goes into the first commit set that can take it, and is applied exactly once to every slice, no staler
than its mode allows (`relaxed_audit`); a version is shown when all replicas hold it, and not taken back while somebody
holds it, nor silently; no lane starves; and every run comes to its end, or says that nobody holds its state any more.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from holdfast.control.protocol.commands import EndRun
from holdfast.control.protocol.messages import AtBoundary, Install
from holdfast.core.roles import Assignment, Role, primary_of
from holdfast.core.shares import Share
from holdfast.core.sync import mirroring, modes
from holdfast.core.sync.modes import parse
from holdfast.dataplane.relaxed.pushes import PushRecord
from holdfast.testing.cluster import SimCluster, SimReport
from holdfast.testing.config import Config
from holdfast.testing.fake_session import homes
from holdfast.testing.fake_worker import FakeWorker
from holdfast.testing.faults import At, Fault, HostFault, Schedule, Timed, after, host_swarm
from holdfast.testing.model import Model, Violation
from holdfast.testing.relaxed.relaxed_audit import LaneProgress
from holdfast.testing.relaxed.relaxed_session import RelaxedSession
from holdfast.testing.relaxed.relaxed_state import RelaxedState, SimPush

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["RelaxedWorker", "draw", "relaxed", "simulate"]

_WATCH = 0.5  #: virtual seconds between two looks at how lanes get on
_MODES = ("bounded:0", "bounded:1", "bounded:3", "async", "quorum:2", "local:2", "local:3")


class RelaxedWorker(FakeWorker):
    """A worker that computes the units of its lanes as the clocks let it, and owns slices where the state is."""

    _standing: Role
    _primary = False  # is the state on this host?
    _limit: int | None = None  # pushes that lanes make before they stand, because the mode is to change
    _push = SimPush(-1, -1, -1, 1)  # what it computes

    @property
    def tended(self) -> RelaxedState:
        """The memory of this host."""
        assert isinstance(self.arena, RelaxedState)
        return self.arena

    def may_decide(self, versions: Sequence[int], *, decided: bool, free: bool) -> bool:
        """See `core.sync.mirroring`."""
        return mirroring.may_decide(versions, decided=decided, free=free)

    def next_share(self, now: modes.Clocks, mine: Sequence[int]) -> Share | modes.HeldBack | None:
        """See `core.sync.modes`. With local steps lanes train by themselves."""
        mode = self.tended.mode
        if not mode.rounds:
            return modes.next_share(mode, now, mine)
        lane = modes.next_lane(mode, now, mine)
        return Share(lane, lane + 1) if isinstance(lane, int) else lane

    def commit_set(self, now: modes.Clocks) -> tuple[modes.TakenPush, ...] | None:
        """See `core.sync.modes`."""
        return modes.commit_set(self.tended.mode, now)

    def pulled(self) -> int:
        """The version that a unit which begins now is computed from."""
        return min(self.tended.versions)

    def may_stand(self, *, held: bool) -> bool:
        """May it stand at a step boundary? When replicas hold the version: see `dataplane.relaxed.relaxed_member`."""
        return held

    def torn(self, part: float) -> None:
        """It dies in the middle of something: a slice stays torn, a gradient may be there that does not count."""
        if self.unit is not None and part > 0.8:
            self.tended.land(self._push)
        self.cluster.wake(self.number)

    def _install(self, install: Install) -> bool:
        self.fetching = None
        arena = self.tended
        primary = primary_of(install.hosts, install.sources)
        crew = Assignment(
            install.members, install.rows, install.drivers, install.hosts, servers=install.servers, primary=primary
        )  # fmt: skip
        share = partial(homes, slices=arena.model.slices)
        self._standing = Role.of(self.number, crew, share, [0] * arena.model.slices, complete=False)
        self._primary = self.host.number == primary
        turns = install.sync != install.reached.sync
        self._limit = self._furthest(install.turn) if turns else None
        self.step = max(self.step, 0)
        arena.installed(self.number, install.generation)
        return not self.struck("install") and not self._busy

    def _furthest(self, turn: int) -> int:
        """How many pushes lanes make before the mode changes: see `dataplane.relaxed`."""
        arena, version = self.tended, self.tended.version
        return arena.pushes.made(version) + max(0, turn - version) if arena.mode.rounds else arena.pushes.furthest()

    def _act(self) -> bool:
        """Take the next action; False when it takes time or there is none."""
        arena, at = self.tended, self._standing
        pushes = arena.pushes
        steps = arena.pushes_in_all() if self._limit is None else min(self._limit, arena.pushes_in_all())
        self.awaits = frozenset(at.members)
        if not pushes.settled:
            return False
        if self._primary and isinstance(self.host.session, RelaxedSession):
            self.host.session.show(pushes.shown(arena.version))
        if self._limit is not None and not pushes.begun(0):
            return self._stand_at(arena.pace.reached.step)
        now = pushes.clocks(arena.version, steps)
        if self._primary and self._own(now):
            return not self._busy
        if not pushes.begun(0):
            return False
        mine = [lane for lane, driver in enumerate(at.driver) if driver == self.number]
        share = self.next_share(now, mine)
        if isinstance(share, Share):
            return self._begin_unit(share, now.pushed[share.first])
        if share is None and min(now.applied) >= steps:
            self.step = arena.steps_of(steps)
            return self._stand_at(self.step) if self.step < arena.model.steps else self._end()
        return False

    def _stand_at(self, step: int) -> bool:
        """All lanes have made so many steps, and it is known everywhere: stand there, because the mode is to change."""
        version = self.tended.version
        if self.may_stand(held=self.tended.pushes.held(version)) and self._level is None and not self.struck("stand"):
            self._state(AtBoundary(self.number, self.generation, version, step))
        return False

    def _own(self, now: modes.Clocks) -> bool:
        """Do what an owner has to do. False: nothing."""
        arena, owner = self.tended, self._standing.owner
        pushes, version = arena.pushes, arena.version
        if owner[0] == self.number:
            if not pushes.begun(0):
                pushes.begin(0, arena.model.steps, version, arena.pace.reached.step, rounds=arena.mode.rounds)
                self.cluster.wake(self.number)
                return True
            free, decided = pushes.free(version), pushes.decided(version)
            if self.may_decide(arena.versions, decided=decided, free=free) and not decided:
                found = self.commit_set(now)
                if found is not None:
                    arena.decide(found, now.steps)
                    self.cluster.wake(self.number)
                    return True
        if not pushes.decided(version):
            return False
        index = next((s for s, at in enumerate(arena.versions) if at == version and owner[s] == self.number), None)
        if index is None:
            return False
        duration = self.cluster.unit_seconds * 0.1 * self.pace()
        arena.begin(self.number, self.generation, self.step, "finish", (index,))
        arena.torn.add(index)
        self._busy = True
        self.struck("finish", duration)
        self.later(duration, self._taken, index, version)
        return True

    def _taken(self, index: int, version: int) -> None:
        if self.tended.mode.rounds:
            self._check_since(self.tended.values[index].kept.since)
        self.tended.take(index, self.tended.pushes.commit_set(version))
        self._acted()

    def _check_since(self, since: int) -> None:
        """Lanes' optimizers have begun where the run says that local steps did."""
        told, begun = self.cluster.machine.snapshot(), -1
        for step, sync in told.modes:
            begun = (step if begun < 0 else begun) if parse(sync).rounds else -1
        if since != begun and told.generation == self.generation:  # else it is cut off, and does not know
            raise Violation(f"optimizers of lanes have begun at step {since}, and local steps at {begun}")

    def _begin_unit(self, share: Share, step: int) -> bool:
        arena = self.tended
        bound, slowest = arena.mode.bound, min(arena.applied)
        ahead = arena.steps_of(step) - slowest
        if bound is not None and ahead > bound:
            raise Violation(f"step {step} of lane {share.first} begins {ahead} steps ahead of the slowest")
        lanes = share.last - share.first
        self.step, self._push = arena.steps_of(step), SimPush(share.first, step, self.pulled(), lanes)
        return self._compute(share.first, range(share.first + 1, share.last))

    def _computed(self, lane: int) -> None:
        arena, push = self.tended, self._push
        arena.land(push)
        arena.count(lane, PushRecord(push.step, push.read, push.lanes, 0.0, 0.0, 0.0, push.lanes))
        self.measured = True
        self._acted()


class RelaxedCluster(SimCluster):
    """The shell, with what must be true of lanes while such a run goes on, and at its end."""

    def __init__(self, seed: int, config: Config) -> None:
        super().__init__(seed, config)
        self.progress = LaneProgress(config.model.lanes)
        self.clock.after(_WATCH, self._watch)

    def _watch(self) -> None:
        """Does every lane get on?"""
        there = [host.arena for host in self.hosts.values() if host.up and not host.cut]
        holders = [arena for arena in there if isinstance(arena, RelaxedState) and arena.seeded and not arena.mirrors]
        if holders:
            furthest = max(holders, key=lambda arena: sum(arena.applied))  # one that was the primary may be behind
            lane = self.progress.starved(self.clock.now, furthest.applied, self.config.model.steps)
            if lane is not None:
                raise Violation(f"lane {lane} starves at step {furthest.applied[lane]}: {_why_held(furthest, lane)}")
        self.clock.after(_WATCH, self._watch)

    def check_end(self, end: EndRun) -> None:
        """Every push of every lane is in every slice, and all slices have had the same."""
        steps, lanes = self.config.model.steps, self.config.model.lanes
        if self.witness.taken_back and "is lost, and is made again" not in self.machine.story.tail(1000):
            raise Violation("what was shown was taken back, and nobody was told")
        if (end.result.get("steps") or 0) != steps:
            raise Violation(f"the run ended after {end.result} of {steps} steps")
        there = [host for host in self.hosts.values() if host.up and not host.cut]
        for host in [host for host in there if any(worker.ended for worker in host.workers.values())]:
            assert isinstance(host.arena, RelaxedState)
            for index, value in enumerate(host.arena.values):
                if value.applied != (steps,) * lanes:
                    raise Violation(f"slice {index} on host {host.number} ended with {value.applied} of {steps} steps")


def _why_held(arena: RelaxedState, lane: int) -> str:
    held = modes.held_back(arena.mode, arena.pushes.clocks(arena.version, arena.pushes_in_all()), lane)
    return modes.why(held.word) if held is not None else "nothing holds it"


def relaxed(config: Config, mode: str, replicas: int) -> Config:
    """The same run, with relaxed modes."""
    found = parse(mode, config.model.lanes)
    return replace(
        config, sync=found.name, replicas=replicas, arena=partial(RelaxedState, mode=found), session=RelaxedSession,
        worker=RelaxedWorker,
    )  # fmt: skip


def draw(seed: int) -> Config:
    """The cluster and the schedule of a seed. In every fourth, hosts stay, and their workers do not."""
    rng = random.Random(seed ^ 0x9ACED)
    return _mode_changes(rng, _restless(rng) if seed % 4 == 3 else _struck(rng))


def _mode_changes(rng: random.Random, config: Config) -> Config:
    """In every other one the mode changes, among those in which one host holds the state."""
    asked = [after(0.4 + rng.random() * 2).sync(rng.choice(_MODES)) for _ in range(rng.randrange(1, 5))]
    faults = asked if rng.random() < 0.5 else []
    return replace(config, schedule=replace(config.schedule, faults=(*config.schedule.faults, *faults)))


def _restless(rng: random.Random) -> Config:
    """One worker on each host, killed again and again: the primary changes while the old one is there."""
    lanes, steps, hosts = rng.choice((2, 3, 4)), rng.randrange(8, 20), rng.choice((2, 2, 3))
    faults: list[Fault] = []
    for worker in range(14):
        if rng.random() < 0.7:
            strike = At(worker, rng.randrange(steps), rng.choice(("finish", "finish", "compute")), rng.random())
            faults.append(strike.kill() if rng.random() < 0.8 else strike.leave())
    if rng.random() < 0.3:
        what = rng.choice(("lose", "unlink"))
        faults.append(HostFault(rng.randrange(1, 4), 0.5 + rng.random() * 2, what))
    config = Config(
        model=Model(lanes, rng.randrange(1, 4), steps), workers=0, hosts=(1,) * hosts, awaited=hosts,
        schedule=Schedule(tuple(faults)),
    )  # fmt: skip
    return relaxed(config, rng.choice(("bounded:1", "async", "quorum:2", "local:2")), rng.choice((1, 1, 2)))


def _struck(rng: random.Random) -> Config:
    """Whatever can strike workers and hosts."""
    lanes, steps = rng.choice((2, 3, 4, 5, 6)), rng.randrange(4, 13)
    own = 0 if rng.random() < 0.5 else rng.randrange(1, min(lanes, 2) + 1)
    hosts = tuple(rng.randrange(1, 3) for _ in range(rng.randrange(1, 4) + (not own)))
    workers = min(own + sum(hosts), lanes)
    swarm = host_swarm(rng, workers=workers, hosts=range(1, len(hosts) + 1), lanes=lanes, steps=steps)
    # What ends a run early has a simulation of its own; which modes are asked for is drawn later.
    faults = [f for f in swarm.faults if not (isinstance(f, Timed) and f.what in ("drain", "sync"))]
    if rng.random() < 0.6:  # in these modes one host matters most: whoever was there first
        first = rng.choice((1, 1, 2))
        faults.append(HostFault(first, 0.4 + rng.random() * 1.5, rng.choice(("lose", "cut", "unlink")), float("inf")))
    if rng.random() < 0.4:
        faults.append(At(rng.randrange(workers + 3), rng.randrange(steps), "finish", rng.random()).kill())
    config = Config(
        model=Model(lanes, rng.randrange(1, 5), steps), workers=own, servers=rng.choice((0, 0, 1)) if own else 0,
        hosts=hosts, awaited=rng.randrange(1, len(hosts) + 1 + bool(own)), schedule=Schedule(tuple(faults), swarm.link),
    )  # fmt: skip
    return relaxed(config, rng.choice(_MODES), rng.choice((0, 1, 2, 2)))


def simulate(seed: int, config: Config | None = None) -> SimReport:
    """Run a simulated cluster to its end.

    Raises:
        Violation: something happened that must never happen; the message has the seed and the story.
    """
    config = config if config is not None else draw(seed)
    cluster = RelaxedCluster(seed, config)
    try:
        return cluster.run()
    except (AssertionError, ValueError, KeyError) as problem:
        what = f"seed {seed} ({config.sync}, {config.replicas} replicas): {problem}"
        raise Violation(f"{what}\n{cluster.machine.story.tail(20)}") from problem


