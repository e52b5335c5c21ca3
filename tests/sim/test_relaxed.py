"""relaxed modes, on several hosts, with replicas: random clusters, named faults, broken rules.

A failure names its seed; `simulate(seed)` plays it again, event by event.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

import pytest

from holdfast.control.machine import Machine
from holdfast.control.membership.hosts import Hosts
from holdfast.control.membership.roster import CrewLimits
from holdfast.control.protocol.messages import Reached
from holdfast.core.sync import mirroring
from holdfast.core.sync.mirroring import Due
from holdfast.core.sync.modes import parse
from holdfast.testing import faults
from holdfast.testing.cluster import Config, SimReport
from holdfast.testing.faults import Fault, Schedule
from holdfast.testing.model import Model, Violation
from holdfast.testing.relaxed_cluster import RelaxedWorker, draw, relaxed, simulate
from holdfast.testing.relaxed_session import RelaxedSession, Rules
from holdfast.testing.relaxed_state import RelaxedState
from tests.sim.mutants import caught

SEEDS, CHUNK = 300, 50
MODEL = Model(lanes=6, slices=4, steps=12)


def config(*found: Fault, mode: str = "bounded:2", replicas: int = 2, hosts: tuple[int, ...] = (2, 2, 2)) -> Config:
    plain = Config(model=MODEL, workers=0, hosts=hosts, awaited=len(hosts), schedule=Schedule(found))
    return relaxed(plain, mode, replicas)


def run(*found: Fault, seed: int = 1, mode: str = "bounded:2", replicas: int = 2) -> SimReport:
    return simulate(seed, config(*found, mode=mode, replicas=replicas))


# ------------------------------------------------------------ random clusters


@pytest.mark.parametrize("start", range(0, SEEDS, CHUNK))
def test_seeds(start: int) -> None:
    for seed in range(start, start + CHUNK):
        report = simulate(seed)
        if seed % 10 == 0:
            assert simulate(seed).trace_hash == report.trace_hash, f"seed {seed} went two ways"


@pytest.mark.chaos
@pytest.mark.parametrize("start", range(SEEDS, 40 * SEEDS, CHUNK))
def test_many_more_seeds(start: int) -> None:
    for seed in range(start, start + CHUNK):
        simulate(seed)


def test_seeds_see_every_mode_and_every_kind_of_fault() -> None:
    configs = [draw(seed) for seed in range(SEEDS)]
    assert {one.sync.partition(":")[0] for one in configs} == {"bounded", "async", "quorum", "local"}
    assert {one.replicas for one in configs} == {0, 1, 2}
    kinds = {fault.what for one in configs for fault in one.schedule.faults}
    assert kinds >= {"lose", "cut", "unlink", "slow", "leave", "join", "lose host", "cut host", "kill", "scale", "sync"}


# ------------------------------------------------------------ named faults


@pytest.mark.parametrize("mode", ["bounded:0", "bounded:2", "async", "quorum:3", "local:5"])
@pytest.mark.parametrize("replicas", [0, 1, 2, 5])
def test_undisturbed(mode: str, replicas: int) -> None:
    report = run(mode=mode, replicas=replicas, seed=2)
    assert (report.outcome, report.generations, report.lost) == ("end", 1, 0)


def primaries(report: SimReport) -> set[str]:
    """Hosts that others got the state from."""
    return {part.split()[0].rstrip(";") for part in report.story.split("gets the state from host ")[1:]}


@pytest.mark.parametrize("mode", ["bounded:0", "bounded:2", "async", "quorum:3", "local:1"])
def test_the_primary_is_lost_and_then_whoever_took_its_place(mode: str) -> None:
    """Two of three hosts, at whatever moment: the last of the chain goes on, and nothing is taken back."""
    for seed in range(12):
        (primary,) = primaries(run(seed=seed, mode=mode))
        first = faults.host(int(primary), after=0.95 + 0.01 * seed).lose()  # by now all replicas have something
        left = [number for number in (1, 2, 3) if number != int(primary)]
        second = faults.host(left[0], after=1.0 + 0.05 * seed).lose()
        report = run(first, second, seed=seed, mode=mode)
        assert (report.outcome, report.lost) == ("end", 4)


def test_the_primary_is_lost_without_replicas() -> None:
    (primary,) = primaries(run(replicas=0))
    report = run(faults.host(int(primary), after=0.8).lose(), replicas=0)
    assert report.outcome == "ResourceError"
    assert "no host that is left had all of it" in report.message


def test_a_new_replica_takes_the_place_of_one_that_was_lost() -> None:
    for seed in range(12):
        (primary,) = primaries(run(seed=seed, replicas=1))
        left = [number for number in (1, 2, 3) if number != int(primary)]
        found = [faults.host(left[0], after=0.75).lose(), faults.host(int(primary), after=1.0 + 0.02 * seed).lose()]
        assert run(*found, seed=seed, replicas=1).outcome == "end"


def draw_turning(seed: int) -> Config:
    """The mode changes, and the primary is lost at whatever moment before, meanwhile or after. There is one replica."""
    before, after = ("bounded:2", "async", "quorum:3", "bounded:0")[seed % 4], ("async", "bounded:1")[seed % 3 == 0]
    (primary,) = primaries(run(seed=seed, mode=before, replicas=1))
    lost = faults.host(int(primary), after=0.95 + 0.01 * (seed % 40)).lose()
    return config(faults.after(1.0).sync(after if after != before else "bounded:3"), lost, mode=before, replicas=1)


def draw_rounds(seed: int) -> Config:
    """The same to and from local steps, there and back again, or to rounds of another length."""
    modes = (("async", "local:2"), ("local:2", "bounded:1"), ("local:2", "local:3"), ("local:2", "async", "local:2"))
    before, *after = modes[seed % 4]
    (primary,) = primaries(run(seed=seed, mode=before, replicas=1))
    asked = [faults.after(1.1 + 0.6 * index).sync(mode) for index, mode in enumerate(after)]
    lost = faults.host(int(primary), after=1.05 + 0.007 * (seed % 60)).lose()
    return replace(config(*asked, lost, mode=before, replicas=1), model=replace(MODEL, steps=40))


def unharmed(seed: int, drawn: Config) -> SimReport:
    """Play it. The state must not be lost, nor anything that was shown."""
    report = simulate(seed, drawn)
    if report.outcome != "end" or "made again" in report.story:
        raise Violation(f"seed {seed}: {report.message}")
    return report


@pytest.mark.parametrize("drawn", [draw_turning, draw_rounds])
def test_the_primary_is_lost_around_a_change_of_the_mode(drawn: Callable[[int], Config]) -> None:
    turned = 0
    for seed in range(60):
        report = unharmed(seed, drawn(seed))
        assert report.lost == 2
        turned += "lanes keep step by" in report.story
    assert turned == 60, "whoever is lost, the mode changes"


# ------------------------------------------------------------ mutants


class GivesUp(RelaxedState):
    """Gives up its replica with the mode that it is of."""

    def turn(self, reached: Reached, *, fetches: bool) -> None:
        if reached.serial != self.pace.reached.serial:
            self.copy = None
        super().turn(reached, fetches=fetches)


def gives_up(config: Config) -> Config:
    return replace(config, arena=partial(GivesUp, mode=parse(config.sync)))


def clocks_before_slices(versions: Sequence[int], sent: Sequence[int], telling: int | None) -> Due:
    """Tells of a version before its slices have gone."""
    return Due(clocks=True) if telling is not None else mirroring.to_mirror(versions, sent, telling)


class DecidesEarly(RelaxedWorker):
    """Goes on from a version that replicas do not hold."""

    def may_decide(self, versions: Sequence[int], *, decided: bool, free: bool) -> bool:
        return super().may_decide(versions, decided=decided, free=True)


class _Oldest(Hosts):
    def best(self, numbers: Collection[int], before: int) -> int:
        return min((n for n in numbers if self.live[n].level >= 0), key=lambda n: (self.live[n].level, n))


class GoesOnFromTheOldest(Machine):
    """Makes the host the primary whose replica lags behind most."""

    def __init__(self, limits: CrewLimits) -> None:
        super().__init__(limits)
        self._run.crew.hosts = _Oldest()


class Unfenced(RelaxedSession):
    """Lets what was sent in an old generation land in a newer one."""

    fenced = False


def draw_lost(seed: int) -> Config:
    """Three hosts hold the state, and its primary is lost."""
    (primary,) = primaries(run(seed=seed))
    return config(faults.host(int(primary), after=0.7 + 0.01 * seed).lose())


def ruled(rules: Rules) -> Callable[[Config], Config]:
    session = type("Ruled", (RelaxedSession,), {"rules": rules})
    return lambda config: replace(config, session=session)


MUTANTS: dict[str, tuple[Callable[[Config], Config], str, Callable[[int], Config]]] = {
    "clocks before slices": (ruled(Rules(outward=clocks_before_slices)), "come before its slices", draw),
    "copies what changes": (ruled(Rules(gives_up=False)), "a replica of version", draw),
    "confirms before the next one holds it": (ruled(Rules(confirm_early=True)), "is shown, and replica", draw),
    "shows at once what it inherits": (ruled(Rules(hasty=True)), "is shown, and replica", draw_lost),
    "counts a push before it is there": (ruled(Rules(whole=False)), "lies there", draw),
    "news before what they are news of": (ruled(Rules(early=True)), "is due", draw),
    "decides before replicas hold it": (partial(replace, worker=DecidesEarly), "a replica of version", draw),
    "goes on from the oldest": (partial(replace, machine=GoesOnFromTheOldest), "from which it was not made", draw),
    "has no fence": (partial(replace, session=Unfenced), "comes in generation", draw),
}


class OldOptimizers(RelaxedState):
    """Leaves what optimizers keep, in its replica, as the mode before had it."""

    def take_up(self) -> None:
        assert self.copy is not None
        values = self.copy.values
        super().take_up()
        self.copy.values = values


class OldClocks(RelaxedState):
    """Goes on with clocks of the mode before."""

    def take_up(self) -> None:
        assert self.copy is not None
        told = self.copy.told
        super().take_up()
        self.copy.told = told


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name: str) -> None:
    mutate, expected, drawn = MUTANTS[name]
    caught(simulate, range(SEEDS), drawn, mutate, expected)


def test_a_replica_that_does_not_outlive_a_change_of_the_mode_is_caught() -> None:
    caught(unharmed, range(80), draw_turning, gives_up, "no host that is left had all of it")


@pytest.mark.parametrize(
    ("arena", "expected"),
    [(OldOptimizers, "optimizers are as Kept"), (OldClocks, "slice 0 has applied")],
)
def test_a_replica_that_does_not_take_up_a_mode_is_caught(arena: type[RelaxedState], expected: str) -> None:
    mutate = lambda config: replace(config, arena=partial(arena, mode=parse(config.sync)))  # noqa: E731
    caught(unharmed, range(60), draw_rounds, mutate, expected)
