"""The mutation drill: the simulation is worth something only if it catches machines that are broken.

Each mutant has one rule of the design taken out. All must be caught within a small number of seeds, on which
the machine as it is has no complaint. Those of the second half are about several hosts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import msgspec
import pytest

from holdfast.control.machine import CrewLimits, Machine
from holdfast.control.membership.crew import Crew
from holdfast.control.membership.hosts import Hosts
from holdfast.control.membership.roster import Stage, Worker
from holdfast.control.protocol import messages
from holdfast.control.protocol.commands import Command, Send
from holdfast.control.protocol.events import Event, HostLost, LinkBroken
from holdfast.core.sync import exact as core_step
from holdfast.core.tree import Node, Plan
from holdfast.testing.cluster import Config, draw, draw_hosts, simulate
from holdfast.testing.fake_arena import FakeArena
from holdfast.testing.fake_session import FakeSession
from holdfast.testing.faults import Schedule, after, host
from holdfast.testing.model import Model
from tests.sim.mutants import InstallsAtOnce, caught

SEEDS = range(1000)


class TrustsOldQuiet(Machine):
    """Takes quiet for an old generation for quiet in this one."""

    def _paused(self, event: messages.Paused) -> None:
        change = self._run.crew.change
        if change is not None:
            event = msgspec.structs.replace(event, generation=change.generation)
        super()._paused(event)


class _ForgetsTheDoomed(Crew):
    def waited_for(self) -> list[Worker]:
        return [worker for worker in super().waited_for() if worker.stage is not Stage.DOOMED]


class ForgetsTheFrozen(Machine):
    """Goes on without a frozen worker before its kill is confirmed."""

    def __init__(self, limits: CrewLimits) -> None:
        super().__init__(limits)
        self._run.crew = _ForgetsTheDoomed(limits)


class AssignsTwice(Machine):
    """Tells every member that it drives lane 0."""

    def handle(self, event: Event, now: float) -> list[Command]:
        return [self._twice(command) for command in super().handle(event, now)]

    def _twice(self, command: Command) -> Command:
        if isinstance(command, Send) and isinstance(command.message, messages.Install):
            drivers = [command.worker, *command.message.drivers[1:]]
            return Send(command.worker, msgspec.structs.replace(command.message, drivers=drivers))
        return command


class OwnsTwice(Machine):
    """Tells a server that is to give slices away that it keeps them."""

    def handle(self, event: Event, now: float) -> list[Command]:
        before = self._run.crew.installation()
        commands = super().handle(event, now)
        if self._run.crew.generation > before.generation and self._run.crew.servers == tuple(before.servers):
            return [self._kept(command, before.owners) for command in commands]
        return commands

    def _kept(self, command: Command, owners: list[tuple[int, int]]) -> Command:
        install = command.message if isinstance(command, Send) else None
        if isinstance(install, messages.Install) and command.worker == min(install.servers, default=-1):
            return Send(command.worker, msgspec.structs.replace(install, owners=owners))
        return command


class ReusesRows(Machine):
    """Gives the row of a worker away when its kill is ordered, not when it is gone."""

    def handle(self, event: Event, now: float) -> list[Command]:
        for worker in self._run.crew.workers.values():
            if worker.stage is Stage.DOOMED and worker.row < 1000:
                worker.row += 1000
        return super().handle(event, now)

    def _check_invariants(self, event: Event, before: int) -> None:
        """Its own invariants would stop it; here the simulation is to."""


def commits_early(place: core_step.StepView, board: core_step.BoardView) -> core_step.Action:
    """Finish a step when one lane is still missing."""
    action = core_step.next_action(place, board)
    if isinstance(action, core_step.Wait) and action.why.startswith("the gradients of lanes") and board.nodes:
        return core_step.next_action(place, board._replace(nodes=[Node(0, len(place.driver))]))
    return action


def skips_arrival(place: core_step.StepView, board: core_step.BoardView) -> core_step.Action:
    """Change parameters before everybody has arrived."""
    return core_step.next_action(place, board._replace(arrived=dict.fromkeys(place.members, place.step)))


def skips_closing(place: core_step.StepView, board: core_step.BoardView) -> core_step.Action:
    """Change parameters while the script of somebody still reads them."""
    action = core_step.next_action(place, board)
    if isinstance(action, core_step.Wait) and action.why.startswith("the end of their step"):
        return core_step.next_action(place, board._replace(closed=dict.fromkeys(place.members, place.step)))
    return action


def leaves_early(place: core_step.StepView, board: core_step.BoardView) -> core_step.Action:
    """Show the script a gradient of which slices are missing."""
    action = core_step.next_action(place, board)
    early = isinstance(action, core_step.Wait) and action.why == "their part of the gradient"
    return core_step.Leave() if early and not place.closing else action


def sums_over(place: core_step.StepView, board: core_step.BoardView) -> core_step.Action:
    """Sum a step once its gradients are there, whoever's script still reads the gradient of the step before."""
    action = core_step.next_action(place, board)
    if isinstance(action, core_step.Wait) and action.why.startswith("their arrival"):
        eager = core_step.next_action(place, board._replace(arrived=dict.fromkeys(place.members, place.step)))
        return eager if isinstance(eager, core_step.Sum) else action
    return action


def in_order_of_arrival(nodes: Sequence[Node], lanes: Sequence[int], num_lanes: int) -> Plan:
    """Add partial sums as they came."""
    first, *others = [node.lane for node in nodes]
    return (first, *(code for lane in others for code in (lane, -1)))


def outcome(seed: int, config: Config) -> str:
    return simulate(seed, config).outcome


class TurnsTooEarly(Machine):
    """Has the mode changed before a step that somebody may have begun."""

    def handle(self, event: Event, now: float) -> list[Command]:
        return [self._earlier(command) for command in super().handle(event, now)]

    def _earlier(self, command: Command) -> Command:
        if isinstance(command, Send) and isinstance(command.message, messages.Install) and command.message.turn:
            return Send(command.worker, msgspec.structs.replace(command.message, turn=command.message.turn - 1))
        return command


def with_machine(machine: Callable[[CrewLimits], Machine]) -> Callable[[Config], Config]:
    return lambda config: replace(config, machine=machine)


MUTANTS: dict[str, tuple[Callable[[Config], Config], str]] = {
    "trusts old quiet": (with_machine(TrustsOldQuiet), "has begun while worker"),
    "installs at once": (with_machine(InstallsAtOnce), "has begun while worker"),
    "forgets the frozen": (with_machine(ForgetsTheFrozen), "has begun while worker"),
    "assigns a lane twice": (with_machine(AssignsTwice), "both compute"),
    "has a slice owned twice": (with_machine(OwnsTwice), "both finish"),
    "reuses rows early": (with_machine(ReusesRows), "while it is in use"),
    "commits without all lanes": (lambda config: replace(config, decide=commits_early), "is finished with lanes"),
    "does not wait for arrival": (lambda config: replace(config, decide=skips_arrival), "changes parameters"),
    "does not wait for the script": (lambda config: replace(config, decide=skips_closing), "changes parameters"),
    "leaves before the gradient is whole": (lambda config: replace(config, decide=leaves_early), "before it is whole"),
    "sums where the script reads": (lambda config: replace(config, decide=sums_over), "read the gradient"),
    "sums in order of arrival": (lambda config: replace(config, plan=in_order_of_arrival), "not the golden one"),
    "turns too early": (with_machine(TurnsTooEarly), "which has begun"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name: str) -> None:
    mutate, expected = MUTANTS[name]
    caught(outcome, SEEDS, draw, mutate, expected)


# ---------------------------------------------------------------- several hosts


def applies_early(place: core_step.StepView, board: core_step.BoardView) -> core_step.Action:
    """Apply the optimizer while sums of other hosts are still missing."""
    action = core_step.next_action(place, board)
    if isinstance(action, core_step.Wait) and action.why == "gradients and sums of the other hosts":
        return core_step.next_action(place, board._replace(summed=[place.step + 1] * len(board.versions), unknown=()))
    return action


def applies_without_facts(place: core_step.StepView, board: core_step.BoardView) -> core_step.Action:
    """Apply the optimizer before it is known what all lanes gave besides gradients."""
    return core_step.next_action(place, board._replace(unknown=()))


def sums_early(place: core_step.StepView, board: core_step.BoardView) -> core_step.Action:
    """Sum a slice once the gradients are there, whoever may still be at the step before."""
    action = core_step.next_action(place, board)
    if place.home is not None and isinstance(action, core_step.Wait) and action.why.startswith("their arrival"):
        eager = core_step.next_action(place, board._replace(arrived=dict.fromkeys(place.members, place.step)))
        return eager if isinstance(eager, core_step.Sum) else action
    return action


class Unfenced(FakeSession):
    """Lets what was sent in an old generation land in a newer one."""

    fenced = False


class ServesEarly(FakeSession):
    """Lets others fetch a state that is about to change."""

    def serves(self) -> bool:
        self.level = -1
        return super().serves()


class KeepsSums(FakeArena):
    """Goes into a generation with whatever sums came in the one before."""

    def begin_generation(self, lanes: frozenset[int], given: frozenset[int] = frozenset()) -> None:
        summed = list(self.summed)
        super().begin_generation(lanes, given)
        self.summed = summed


class KeepsMerged(FakeArena):
    """Takes what was merged for other lanes for what is to be sent now."""

    def begin_generation(self, lanes: frozenset[int], given: frozenset[int] = frozenset()) -> None:
        gathered = list(self.gathered)
        super().begin_generation(lanes, given)
        self.gathered = gathered


class _Low(Hosts):
    def sources(self, numbers: Collection[int]) -> dict[int, int]:
        levels = {number: self.live[number].level for number in sorted(numbers)}
        holding = {number: level for number, level in levels.items() if level >= 0}
        worst = min(holding, key=lambda number: (holding[number], number))
        return {number: worst for number, level in levels.items() if level < 0 or level > holding[worst]}


class FetchesTheOldest(Machine):
    """Has hosts get the state from the one that lags behind most."""

    def __init__(self, limits: CrewLimits) -> None:
        super().__init__(limits)
        self._run.crew.hosts = _Low()


class WaitsForTheLost(Machine):
    """Takes the workers of a lost host for workers that are still there."""

    def __init__(self, limits: CrewLimits) -> None:
        super().__init__(limits)
        assert HostLost in self._handlers
        self._handlers[HostLost] = self._keeps_its_workers

    def _keeps_its_workers(self, event: HostLost) -> None:
        if host := self._run.hosts.live.get(event.host):
            host.share = 0


class _Hasty(Crew):
    def waited_for(self) -> list[Worker]:
        assert self.change is not None
        self.change.also = ()
        return super().waited_for()


class TakesFollowersByStorm(Machine):
    """Takes those who followed into a generation in the middle of whatever they do."""

    def __init__(self, limits: CrewLimits) -> None:
        super().__init__(limits)
        self._run.crew = _Hasty(limits)


class MissesBrokenLinks(Machine):
    """Does not care about connections between hosts."""

    def __init__(self, limits: CrewLimits) -> None:
        super().__init__(limits)
        assert LinkBroken in self._handlers
        self._handlers[LinkBroken] = lambda event: None


class _Altered(Machine):
    """Tells hosts something else about who has the state."""

    def alters(self, install: messages.Install) -> bool:
        raise NotImplementedError

    def handle(self, event: Event, now: float) -> list[Command]:
        return [self._altered(command) for command in super().handle(event, now)]

    def _altered(self, command: Command) -> Command:
        if isinstance(command, Send) and isinstance(command.message, messages.Install) and self.alters(command.message):
            return Send(command.worker, msgspec.structs.replace(command.message, sources={}))
        return command


class NamesManyHomes(_Altered):
    """Lets every host go on with the state that it has, though one is to hold it."""

    def alters(self, install: messages.Install) -> bool:
        return install.reached.sync != "exact"


class TrustsMirrors(_Altered):
    """Takes what a host mirrored for the state, when all are to hold it again."""

    def alters(self, install: messages.Install) -> bool:
        return install.reached.sync == "exact" and install.reached.serial > 0


def draw_followers(seed: int) -> Config:
    """Three hosts, and slow ones that join them one by one, while generations come and go."""
    rng = random.Random(seed)
    breaks = [host(rng.randrange(1, 3), after=0.6 + 0.35 * n + rng.random() * 0.3).unlink() for n in range(8)]
    joins = [after(0.5).join(2), after(1.2).join(2), after(1.9).join(2)]
    slow = [host(number, after=0.0).slow(8.0) for number in (1, 2)]
    slow += [host(number, after=at).slow(8.0) for number, at in ((3, 0.51), (4, 1.21), (5, 1.91))]
    schedule = Schedule((*breaks, *joins, *slow))
    return Config(model=Model(lanes=9, slices=4, steps=14), workers=1, hosts=(1, 1), awaited=3, schedule=schedule)


HOST_MUTANTS: dict[str, tuple[Callable[[Config], Config], str]] = {
    "applies before all sums are here": (lambda c: replace(c, decide=applies_early), "before all sums are here"),
    "applies without all facts": (lambda c: replace(c, decide=applies_without_facts), "without the facts of lanes"),
    "sums before all have arrived": (lambda c: replace(c, decide=sums_early), "comes to a host that is at step"),
    "has no fence": (lambda c: replace(c, session=Unfenced), "comes in generation"),
    "keeps sums": (lambda c: replace(c, arena=KeepsSums), "no end after"),
    "keeps what was merged": (lambda c: replace(c, arena=KeepsMerged), "is sent with a sum of"),
    "fetches from a lower level": (with_machine(FetchesTheOldest), "fetches the state at step"),
    "misses broken links": (with_machine(MissesBrokenLinks), "no end after"),
    "waits for a lost host for ever": (with_machine(WaitsForTheLost), "no end after"),
    "turns too early": (with_machine(TurnsTooEarly), "which has begun"),
    "names many homes": (with_machine(NamesManyHomes), "are all to hold the state"),
    "trusts mirrors": (with_machine(TrustsMirrors), "begins with a mirror of the state"),
}


DONOR_MUTANTS: dict[str, tuple[Callable[[Config], Config], str]] = {
    "serves a state that changes": (lambda c: replace(c, session=ServesEarly), "changed while host"),
    "takes followers by storm": (with_machine(TakesFollowersByStorm), "has begun while worker"),
}


@pytest.mark.parametrize("name", HOST_MUTANTS)
def test_mutant_is_caught_on_several_hosts(name: str) -> None:
    mutate, expected = HOST_MUTANTS[name]
    caught(outcome, SEEDS, draw_hosts, mutate, expected)


@pytest.mark.parametrize("name", DONOR_MUTANTS)
def test_mutant_is_caught_when_somebody_follows(name: str) -> None:
    mutate, expected = DONOR_MUTANTS[name]
    caught(outcome, SEEDS, draw_followers, mutate, expected)
