"""The mutation drill for plain loops: each mutant has one rule of the protocol of shares taken out, and is caught."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import fields, replace

import msgspec
import pytest

from holdfast.control.machine import CrewLimits, Machine
from holdfast.control.membership.hosts import Hosts
from holdfast.control.protocol import messages
from holdfast.control.protocol.commands import Command, Send
from holdfast.control.protocol.events import Event, HostLevel
from holdfast.control.protocol.messages import Install
from holdfast.core.shares import LostPart, Share, left_over
from holdfast.core.transfers import TransferRoute
from holdfast.testing.cluster import Config, simulate
from holdfast.testing.config import draw_plain, draw_plain_hosts
from holdfast.testing.fake_host import FakeHost
from holdfast.testing.fake_session import FakeSession
from holdfast.testing.fake_view import FakeView
from holdfast.testing.shares.share_arena import FakeShare, ShareArena
from holdfast.testing.shares.share_worker import ShareView, ShareWorker
from tests.sim.mutants import caught

SEEDS = range(1500)
#: Where hosts that come back begin with a step that is decided, and one has begun the next.
BACK_AT_ONCE = (14851,)


def outcome(seed: int, config: Config) -> str:
    return simulate(seed, config).outcome


class ForgetsTheGiven(Machine):
    """Does not tell a generation which shares of the step at hand have come."""

    def handle(self, event: Event, now: float) -> list[Command]:
        return [self._without(command) for command in super().handle(event, now)]

    def _without(self, command: Command) -> Command:
        if isinstance(command, Send) and isinstance(command.message, Install):
            return Send(command.worker, msgspec.structs.replace(command.message, at_hand=-1, given={}))
        return command


class _CountsAll(Hosts):
    def given(self, numbers: Collection[int], before: Collection[int]) -> tuple[int, dict[int, int]]:
        return super().given(numbers, numbers)


class CountsTheAbsent(Machine):
    """Counts shares of hosts that were not there when the step was shared out anew."""

    def __init__(self, limits: CrewLimits) -> None:
        super().__init__(limits)
        self._run.crew.hosts = _CountsAll()


class GoesBack(Machine):
    """Makes a step once more that a host without workers has made, as if it came out the same."""

    def handle(self, event: Event, now: float) -> list[Command]:
        if isinstance(event, HostLevel):
            event = msgspec.structs.replace(event, shares=False)
        return super().handle(event, now)


class HasNoneToGive(ShareArena):
    """Does not tell the coordinator which shares are here."""

    def given(self) -> list[int]:
        return []


class KeepsOldFacts(ShareArena):
    """Keeps what shares gave that will never come whole, or do not count."""

    def forget_shares(self, step: int, but: Collection[int]) -> None:
        pass


class DropsTheBacklog(ShareArena):
    """Forgets what is left over when others are lost in the step that was to use it."""

    def left(self, came: Sequence[FakeShare], step: int) -> tuple[LostPart, ...]:
        return left_over([share.share for share in came], (), self.whole(step), 0)


class OverwritesTheBacklog(ShareArena):
    """Has one copy of the backlog only, which changes before the step is finished."""

    def backlog(self, version: int) -> tuple[LostPart, ...]:
        return max(self._backlog)[1]


class KeepsItsLanes(ShareWorker):
    """Takes the step at hand to be what it was in the generation before."""

    def _renew(self) -> None:
        self._renews = False
        self.arena.put_work(self.step, self._lanes)


class GivesNothing(ShareWorker):
    """Does not give the empty share where one is waited for."""

    def _renew(self) -> None:
        view, self._renews = self._board_view, False
        assert view is not None
        self._lanes = view.planned(self.step)
        self.arena.put_work(self.step, self._lanes)


class _SharesOutAlways(ShareView):
    def mine(self, step: int) -> Share | None:
        return self._plan(step).get(self._worker) if self._shares.step() <= step and not self.following else None


class SharesOutAlways(ShareWorker):
    """Takes a share of a step that was shared out in an older generation."""

    def _stand_in(self, install: Install) -> FakeView:
        super()._stand_in(install)
        return _SharesOutAlways(self.arena, self.number, install)


class _FollowsThePlan(ShareView):
    def __init__(self, arena: ShareArena, worker: int, install: Install) -> None:
        super().__init__(arena, worker, install)
        self.following = False

    def planned(self, step: int) -> tuple[int, ...]:
        if not self._at.following:
            return super().planned(step)
        found = [share for share in self._plan(step).values() if self.samples(step, share)]
        return tuple(sorted(share.first for share in found))


class FollowsThePlan(ShareWorker):
    """Takes a step that it follows to be made of the shares of the generation in which it began to."""

    def _stand_in(self, install: Install) -> FakeView:
        super()._stand_in(install)
        return _FollowsThePlan(self.arena, self.number, install)


class RunsTurnsAgain(ShareWorker):
    """Begins its turn anew in a new generation, as a lane is computed again."""

    def _renew(self) -> None:
        self._begun = self._renews = False


class Overwrites(FakeSession):
    """Puts partial sums where those of the step before are needed still."""

    def __init__(self, host: FakeHost, install: messages.Install) -> None:
        super().__init__(host, install)
        for sender in self._senders:
            sender.waits = False


class _OfAllSteps(TransferRoute):
    def of(self, step: int, lanes: frozenset[int]) -> _OfAllSteps:
        object.__setattr__(self, "_only", (step, lanes))
        return self

    def mine(self, step: int) -> frozenset[int]:
        begun: tuple[int, frozenset[int]] = object.__getattribute__(self, "_only")
        return begun[1] if step == begun[0] else self.lanes


class SendsWhatIsDecided(FakeSession):
    """Sends gradients of the step before one that was begun, too."""

    def __init__(self, host: FakeHost, install: messages.Install) -> None:
        super().__init__(host, install)
        for sender in self._senders:
            route = sender._route
            told = {field.name: getattr(route, field.name) for field in fields(route)}
            sender._route = _OfAllSteps(**{**told, "at_hand": -1}).of(route.at_hand, route.begun)


class SendsItsLanes(FakeSession):
    """Sends of the step at hand what is its own in this generation, not what came before."""

    def __init__(self, host: FakeHost, install: messages.Install) -> None:
        super().__init__(host, install)
        for sender in self._senders:
            sender._route = replace(sender._route, begun=self._lanes)


def with_machine(machine: Callable[[CrewLimits], Machine]) -> Callable[[Config], Config]:
    return lambda config: replace(config, machine=machine)


MUTANTS: dict[str, tuple[Callable[[Config], Config], str]] = {
    "forgets the given": (with_machine(ForgetsTheGiven), "have come, and [] are to count"),
    "has none to give": (lambda c: replace(c, arena=HasNoneToGive), "have come, and [] are to count"),
    "drops the backlog": (lambda c: replace(c, arena=DropsTheBacklog), "and leaves"),
    "overwrites the backlog": (lambda c: replace(c, arena=OverwritesTheBacklog), "and leaves"),
    "keeps its lanes": (lambda c: replace(c, worker=KeepsItsLanes), "after it gave its share"),
    "gives nothing": (lambda c: replace(c, worker=GivesNothing), "after it gave its share"),
    "shares out always": (lambda c: replace(c, worker=SharesOutAlways), "under share"),
    "runs turns again": (lambda c: replace(c, worker=RunsTurnsAgain), "runs the body of step"),
}

HOST_MUTANTS: dict[str, tuple[Callable[[Config], Config], str]] = {
    "forgets the given": (with_machine(ForgetsTheGiven), "have come, and [] are to count"),
    "counts the absent": (with_machine(CountsTheAbsent), "after it gave its share"),
    "goes back": (with_machine(GoesBack), "but hosts"),
    "keeps old facts": (lambda c: replace(c, arena=KeepsOldFacts), "is finished with lanes"),
    "follows the plan": (lambda c: replace(c, worker=FollowsThePlan), "is not the golden one"),
    "overwrites": (lambda c: replace(c, session=Overwrites), "is needed still"),
    "sends its lanes": (lambda c: replace(c, session=SendsItsLanes), "no end after"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name: str) -> None:
    mutate, expected = MUTANTS[name]
    caught(outcome, SEEDS, draw_plain, mutate, expected)


@pytest.mark.parametrize("name", HOST_MUTANTS)
def test_mutant_is_caught_on_several_hosts(name: str) -> None:
    mutate, expected = HOST_MUTANTS[name]
    caught(outcome, SEEDS, draw_plain_hosts, mutate, expected)


def test_gradients_of_a_step_that_is_decided_everywhere_are_not_to_be_sent() -> None:
    def mutate(config: Config) -> Config:
        return replace(config, session=SendsWhatIsDecided)

    caught(outcome, BACK_AT_ONCE, draw_plain_hosts, mutate, "takes the place of one of the step after it")
