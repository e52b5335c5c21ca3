"""What a simulated run is made of, and random ones: a seed names a cluster and all that goes wrong in it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from holdfast.control.machine import Machine
from holdfast.control.membership.roster import CrewLimits
from holdfast.core import tree
from holdfast.core.sync import exact as core_step
from holdfast.testing.fake_arena import FakeArena
from holdfast.testing.fake_catch_up import FakeDonor
from holdfast.testing.fake_session import FakeSession
from holdfast.testing.fake_worker import FakeWorker
from holdfast.testing.faults import STEP_POINTS, Schedule, after, at, host_swarm, swarm
from holdfast.testing.model import Model
from holdfast.testing.shares.share_arena import ShareArena
from holdfast.testing.shares.share_worker import ShareWorker

__all__ = ["Config", "draw", "draw_hosts", "draw_plain", "draw_plain_hosts", "plain"]


_MODES = ("exact", "bounded:2", "async", "local:4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One simulated run. The last seven are replaced to see whether the simulation notices."""

    model: Model
    workers: int  #: on host 0; 0: the coordinator's machine trains nothing
    servers: int = 0
    sums_only: bool = False  #: the servers sum, and the workers finish
    hosts: tuple[int, ...] = ()  #: slots of other hosts that join at the start, numbered from 1
    awaited: int = 1  #: hosts that the first generation waits for
    follow: bool = True  #: hosts that come late follow first
    #: How lanes keep step; relaxed modes have an arena, a peer session and workers of their own (`relaxed_cluster`).
    sync: str = "exact"
    replicas: int = 0
    schedule: Schedule = field(default_factory=Schedule)
    limit: float = 120.0  #: virtual seconds within which the run must end
    machine: Callable[[CrewLimits], Machine] = Machine
    decide: Callable[[core_step.StepView, core_step.BoardView], core_step.Action] = core_step.next_action
    plan: Callable[..., tree.Plan] = tree.plan
    arena: Callable[..., FakeArena] = FakeArena
    session: type[FakeSession] = FakeSession
    donor: type[FakeDonor] = FakeDonor
    worker: type[FakeWorker] = FakeWorker

    def __post_init__(self) -> None:
        if self.model.shares and self.arena is FakeArena:
            object.__setattr__(self, "arena", ShareArena)
        if self.model.shares and self.worker is FakeWorker:
            object.__setattr__(self, "worker", ShareWorker)


def draw(seed: int) -> Config:
    """The cluster and schedule of a seed. Every 250th is a large one."""
    rng = random.Random(seed)
    if seed % 250 == 249:
        lanes, steps = rng.randrange(110, 320), 2
        workers = rng.randrange(100, min(lanes, 300))
    else:
        lanes, steps = rng.choice((1, 2, 3, 4, 5, 6, 8, 8, 12)), rng.randrange(8, 25)
        workers = rng.randrange(1, min(lanes, 8) + 1)
    short = rng.randrange(1, lanes + 1) if rng.random() < 0.3 else 0
    model = Model(lanes, rng.randrange(1, 7), steps, clip=rng.random() < 0.3, short=short)
    servers = rng.choice((0, 0, 1, 2))
    schedule = swarm(rng, workers=workers + servers, lanes=lanes, steps=steps)
    turns = rng.random() < 0.3
    if turns:
        span = 0.5 + 0.03 * steps * lanes / workers
        asked = tuple(after(rng.random() * span).sync(rng.choice(_MODES)) for _ in range(rng.randrange(1, 4)))
        schedule = replace(schedule, faults=(*schedule.faults, *asked))
    if servers > 1 and rng.random() < 0.7:  # one that applies slowly, so that slices move
        slow = at(worker=workers + rng.randrange(servers), step=rng.randrange(steps), during="finish")
        schedule = replace(schedule, faults=(*schedule.faults, slow.slow(rng.choice((3.0, 10.0, 100.0)))))
    sums_only = bool(servers) and not turns and rng.random() < 0.4  # where they only sum, the mode stays
    schedule = _struck_in_turns(seed, model, workers + servers, schedule)
    model = replace(model, by_steps=_by_steps(seed))
    return Config(model=model, workers=workers, servers=servers, sums_only=sums_only, schedule=schedule)


def _by_steps(seed: int) -> bool:
    """Does the script of a seed loop by steps? From a source of its own, so that the rest of the draw stays."""
    return random.Random(~seed).random() < 0.4


def _struck_in_turns(seed: int, model: Model, workers: int, schedule: Schedule) -> Schedule:
    """With workers struck between a step's units and its end, too."""
    rng = random.Random(~seed ^ 0x57E95)
    strikes = [
        at(worker=rng.randrange(workers + 2), step=rng.randrange(model.steps), during=rng.choice(STEP_POINTS)).kill()
        for _ in range(rng.randrange(3) if _by_steps(seed) else 0)
    ]
    return replace(schedule, faults=(*schedule.faults, *strikes))


def draw_plain(seed: int) -> Config:
    """The cluster and schedule of a seed, with a script that has a plain loop."""
    return plain(draw(seed))


def draw_plain_hosts(seed: int) -> Config:
    """The cluster of several hosts and the schedule of a seed, with a script that has a plain loop."""
    return plain(draw_hosts(seed))


def plain(config: Config) -> Config:
    """The same with a plain loop. Steps of relaxed modes know no shares, so the mode stays."""
    faults = tuple(fault for fault in config.schedule.faults if fault.what != "sync")
    model = replace(config.model, shares=True, by_steps=False)
    return replace(config, model=model, schedule=replace(config.schedule, faults=faults))


def draw_hosts(seed: int) -> Config:
    """The cluster of several hosts and the schedule of a seed."""
    rng = random.Random(seed ^ 0x40575)
    lanes, steps = rng.choice((2, 3, 4, 5, 6, 8, 8)), rng.randrange(4, 13)
    short = rng.randrange(1, lanes + 1) if rng.random() < 0.4 else 0
    model = Model(lanes, rng.randrange(1, 6), steps, clip=rng.random() < 0.3, short=short)
    own = 0 if rng.random() < 0.3 else rng.randrange(1, min(lanes, 3) + 1)
    hosts = tuple(rng.randrange(1, 4) for _ in range(rng.randrange(1, 4) + (not own)))
    awaited = rng.randrange(1, len(hosts) + 1 + bool(own))
    if rng.random() < 0.25:  # most come when the run is well under way
        awaited, steps = 1, rng.randrange(14, 26)
        model = replace(model, steps=steps)
    workers = min(own + sum(hosts), lanes)
    schedule = host_swarm(rng, workers=workers, hosts=range(1, len(hosts) + 1), lanes=lanes, steps=steps)
    if steps >= 14:
        late = tuple(after(0.6 + rng.random()).join(slots) for slots in hosts[1 - bool(own):])
        hosts, schedule = hosts[: 1 - bool(own)], replace(schedule, faults=(*schedule.faults, *late))
    if schedule.misfits:
        awaited = 1  # hosts that do not fit are let go, and those that do may never be enough
    follow = rng.random() < 0.6
    servers = rng.choice((0, 0, 1, 2))
    turns = rng.random() < 0.4
    if turns:
        asked = tuple(after(0.3 + rng.random() * 2).sync(rng.choice(_MODES)) for _ in range(rng.randrange(1, 5)))
        schedule = replace(schedule, faults=(*schedule.faults, *asked))
    sums_only = bool(servers) and not turns and rng.random() < 0.4
    replicas = rng.choice((0, 1, 2)) if turns else 0
    schedule = _struck_in_turns(seed, model, workers + servers, schedule)
    return Config(
        model=replace(model, by_steps=_by_steps(seed)), workers=own, servers=servers, sums_only=sums_only, hosts=hosts,
        awaited=awaited, follow=follow, schedule=schedule, replicas=replicas,
    )
