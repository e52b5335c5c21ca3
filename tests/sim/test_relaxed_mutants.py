"""The mutation drill of relaxed modes: with one rule taken out, the simulation has a complaint within a few seeds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

import msgspec
import pytest

from holdfast.control.machine import Machine
from holdfast.control.membership.hosts import Hosts
from holdfast.control.membership.roster import CrewLimits
from holdfast.control.protocol.messages import Reached
from holdfast.core.shares import Share
from holdfast.core.sync import mirroring, modes
from holdfast.core.sync.mirroring import Due
from holdfast.core.sync.modes import Clocks, HeldBack, Mode, TakenPush, parse
from holdfast.dataplane.relaxed.pushes import Pushes, PushRecord, pushes_bytes
from holdfast.testing.cluster import Config
from holdfast.testing.relaxed.relaxed_cluster import RelaxedWorker, draw, simulate
from holdfast.testing.relaxed.relaxed_session import RelaxedSession, Rules
from holdfast.testing.relaxed.relaxed_state import RelaxedState
from tests.sim.mutants import InstallsAtOnce, caught
from tests.sim.relaxed_runs import draw_lost, draw_rounds, draw_turning, draw_unequal, unharmed

SEEDS = range(300)


class GivesUp(RelaxedState):
    """Gives up its replica with the mode that it is of."""

    def turn(self, reached: Reached, *, fetches: bool) -> None:
        if reached.serial != self.pace.reached.serial:
            self.copy = None
        super().turn(reached, fetches=fetches)


def clocks_before_slices(versions: Sequence[int], sent: Sequence[int], telling: int | None) -> Due:
    """Tells of a version before its slices have gone."""
    return Due(clocks=True) if telling is not None else mirroring.to_mirror(versions, sent, telling)


def sends_twice(sent: Mapping[int, int], pushed: Mapping[int, int]) -> list[TakenPush]:
    """Sends a push that has gone once more."""
    again = [lane for lane, gone in sent.items() if 0 < gone == pushed[lane]]
    return [TakenPush(lane, sent[lane] - 1) for lane in again[:1]] or mirroring.to_primary(sent, pushed)


class DecidesEarly(RelaxedWorker):
    """Goes on from a version that replicas do not hold."""

    def may_decide(self, versions: Sequence[int], *, decided: bool, free: bool) -> bool:
        return super().may_decide(versions, decided=decided, free=True)


class NeverPulls(RelaxedWorker):
    """Computes with the parameters that it began with."""

    def pulled(self) -> int:
        return 0


class IgnoresTheBound(RelaxedWorker):
    """Lets lanes run ahead of others for ever."""

    def next_share(self, now: Clocks, mine: Sequence[int]) -> Share | HeldBack | None:
        mode = self.tended.mode
        return modes.next_share(mode if mode.bound is None else replace(mode, bound=1000), now, mine)


class AllowsOneMore(RelaxedWorker):
    """Lets lanes be one step further ahead than they may."""

    def next_share(self, now: Clocks, mine: Sequence[int]) -> Share | HeldBack | None:
        mode = self.tended.mode
        return modes.next_share(mode if mode.bound is None else replace(mode, bound=mode.bound + 1), now, mine)


class IgnoresTheRoom(RelaxedWorker):
    """Lets lanes push more than there is room for."""

    def next_share(self, now: Clocks, mine: Sequence[int]) -> Share | HeldBack | None:
        return super().next_share(now._replace(applied=now.pushed), mine)


class DrivesItsFirstLane(RelaxedWorker):
    """Forgets the other lanes that it drives."""

    def next_share(self, now: Clocks, mine: Sequence[int]) -> Share | HeldBack | None:
        return super().next_share(now, mine[:1])


class CountsLaneByLane(RelaxedState):
    """Lets the lanes of a share count one after the other, as if each had pushed by itself."""

    def count(self, lane: int, record: PushRecord) -> None:
        for other in range(lane, lane + record.lanes):
            super().count(other, record._replace(lanes=1))


class Unparted(Pushes):
    """Clocks of lanes that gave nothing themselves, which do not follow."""

    def _part(self, lane: int) -> None:
        """Leave them as they are."""


class NeverParts(RelaxedState):
    """Forgets that a push was for other lanes, too, when they have another driver and the first one pushes again."""

    def _keep_step_by(self, mode: Mode) -> None:
        super()._keep_step_by(mode)
        lanes = self.model.lanes
        self.pushes = Unparted(memoryview(bytearray(pushes_bytes(lanes))), lanes)


class LeavesLateLanesOut(RelaxedWorker):
    """Takes only pushes of the newest step."""

    def commit_set(self, now: Clocks) -> tuple[TakenPush, ...] | None:
        made = super().commit_set(now)
        return made and tuple(push for push in made if push.step == max(step for _, step in made))


class SkipsALane(RelaxedWorker):
    """Leaves the last lane for another time, where there are others."""

    def commit_set(self, now: Clocks) -> tuple[TakenPush, ...] | None:
        made = super().commit_set(now)
        return made and (made[:-1] or made)


class WaitsForLanesThatWait(RelaxedWorker):
    """Wants a quorum of all lanes that have steps left, also of those held back until there is a commit set."""

    def commit_set(self, now: Clocks) -> tuple[TakenPush, ...] | None:
        made = super().commit_set(now)
        wanted = min(self.tended.mode.quorum or len(now.taken), sum(taken < now.steps for taken in now.taken))
        return made if made is not None and len(made) >= wanted else None


class DoesNotWait(RelaxedWorker):
    """Makes commit sets of whatever there is."""

    def commit_set(self, now: Clocks) -> tuple[TakenPush, ...] | None:
        return modes.commit_set(replace(self.tended.mode, quorum=1), now)


class AppliesTwice(RelaxedState):
    """Applies what a commit set takes once more."""

    def take(self, index: int, taken: Sequence[TakenPush]) -> None:
        super().take(index, [push for push in taken for _ in range(2)])


class CountsWhatWasLost(RelaxedState):
    """A replica that is made the primary counts pushes whose gradients were lost with the one before."""

    def inherit(self) -> None:
        assert self.copy is not None
        told = self.copy.told
        super().inherit()
        if told is not None:
            self.pushes.inherit(msgspec.structs.replace(told, applied=told.pushed))


class InheritsTheVersionBefore(RelaxedState):
    """A replica that is made the primary does the last version again."""

    def inherit(self) -> None:
        super().inherit()
        told = self.pushes.told(min(self.versions))
        if told is not None and told.version > 0:
            applied = [max(0, applied - 1) for applied in told.applied]
            self.pushes.inherit(msgspec.structs.replace(told, applied=applied))


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


def with_worker(worker: type[RelaxedWorker]) -> Callable[[Config], Config]:
    return lambda config: replace(config, worker=worker)


def with_state(state: type[RelaxedState]) -> Callable[[Config], Config]:
    return lambda config: replace(config, arena=partial(state, mode=parse(config.sync)))


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
    "never pulls": (with_worker(NeverPulls), "too stale", draw),
    "ignores the bound": (with_worker(IgnoresTheBound), "ahead of the slowest", draw),
    "allows one more": (with_worker(AllowsOneMore), "ahead of the slowest", draw),
    "ignores the room": (with_worker(IgnoresTheRoom), "there is no room", draw),
    "drives its first lane": (with_worker(DrivesItsFirstLane), "starves", draw),
    "counts lane by lane": (with_state(CountsLaneByLane), "lies there", draw),
    "never parts": (with_state(NeverParts), "is computed again", draw),
    "says not for how many lanes": (ruled(Rules(together=False)), "starves", draw),
    "leaves late lanes out": (with_worker(LeavesLateLanesOut), "leaves out", draw),
    "skips a lane": (with_worker(SkipsALane), "leaves out", draw),
    "waits for lanes that wait": (with_worker(WaitsForLanesThatWait), "starves", draw_unequal),
    "does not wait": (with_worker(DoesNotWait), "did not wait", draw),
    "applies twice": (with_state(AppliesTwice), "has applied", draw),
    "sends a push twice": (ruled(Rules(inward=sends_twice)), "is due", draw),
    "counts what was lost": (with_state(CountsWhatWasLost), "leaves out", draw_lost),
    "inherits the version before": (with_state(InheritsTheVersionBefore), "is computed again", draw_lost),
    "installs at once": (partial(replace, machine=InstallsAtOnce), "has begun while worker", draw),
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
    caught(simulate, SEEDS, drawn, mutate, expected)


def test_a_replica_that_does_not_outlive_a_change_of_the_mode_is_caught() -> None:
    caught(unharmed, range(80), draw_turning, with_state(GivesUp), "no host that is left had all of it")


@pytest.mark.parametrize(
    ("arena", "expected"),
    [(OldOptimizers, "optimizers are as Kept"), (OldClocks, "is computed again")],
)
def test_a_replica_that_does_not_take_up_a_mode_is_caught(arena: type[RelaxedState], expected: str) -> None:
    caught(unharmed, range(60), draw_rounds, with_state(arena), expected)
