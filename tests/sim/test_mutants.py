"""The mutation drill: the simulation is worth something only if it catches machines that are broken.

Each mutant has one rule of the design taken out. All must be caught within a small number of seeds, on which
the machine as it is has no complaint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import pytest

from holdfast.coordinator import messages
from holdfast.coordinator.commands import Command, Send
from holdfast.coordinator.crew import Crew
from holdfast.coordinator.events import Event
from holdfast.coordinator.machine import CrewLimits, Machine
from holdfast.coordinator.roster import Stage, Worker
from holdfast.core import step as core_step
from holdfast.core.tree import Node, Plan
from holdfast.testing.arena import Violation
from holdfast.testing.cluster import Config, draw, simulate

SEEDS = range(800)


class TrustsOldQuiet(Machine):
    """Takes quiet for an old generation for quiet in this one."""

    def _paused(self, event: messages.Paused, now: float) -> None:
        change = self._run.crew.change
        if change is not None:
            event = msgspec.structs.replace(event, generation=change.generation)
        super()._paused(event, now)


class _NeverWaits(Crew):
    def waited_for(self) -> list[Worker]:
        return []


class InstallsAtOnce(Machine):
    """Installs a generation without waiting for quiet."""

    def __init__(self, limits: CrewLimits) -> None:
        super().__init__(limits)
        self._run.crew = _NeverWaits(limits)


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


class ReusesRows(Machine):
    """Gives the row of a worker away when its kill is ordered, not when it is gone."""

    def handle(self, event: Event, now: float) -> list[Command]:
        for worker in self._run.crew.workers.values():
            if worker.stage is Stage.DOOMED and worker.row < 1000:
                worker.row += 1000
        return super().handle(event, now)

    def _check_invariants(self, event: Event, before: int) -> None:
        """Its own invariants would stop it; here the simulation is to."""


def commits_early(place: core_step.Place, board: core_step.Board) -> core_step.Action:
    """Finish a step when one lane is still missing."""
    action = core_step.next_action(place, board)
    if isinstance(action, core_step.Wait) and action.why.startswith("the gradients of lanes") and board.nodes:
        return core_step.next_action(place, board._replace(nodes=[Node(0, len(place.driver))]))
    return action


def skips_arrival(place: core_step.Place, board: core_step.Board) -> core_step.Action:
    """Change parameters before everybody has arrived."""
    return core_step.next_action(place, board._replace(arrived=dict.fromkeys(place.members, place.step)))


def in_order_of_arrival(nodes: Sequence[Node], lanes: Sequence[int], num_lanes: int) -> Plan:
    """Add partial sums as they came."""
    first, *others = [node.lane for node in nodes]
    return (first, *(code for lane in others for code in (lane, -1)))


def with_machine(machine: Callable[[CrewLimits], Machine]) -> Callable[[Config], Config]:
    return lambda config: replace(config, machine=machine)


MUTANTS: dict[str, tuple[Callable[[Config], Config], str]] = {
    "trusts old quiet": (with_machine(TrustsOldQuiet), "has begun while worker"),
    "installs at once": (with_machine(InstallsAtOnce), "has begun while worker"),
    "forgets the frozen": (with_machine(ForgetsTheFrozen), "has begun while worker"),
    "assigns a lane twice": (with_machine(AssignsTwice), "both compute"),
    "reuses rows early": (with_machine(ReusesRows), "while it is in use"),
    "commits without all lanes": (lambda config: replace(config, decide=commits_early), "is finished with lanes"),
    "does not wait for arrival": (lambda config: replace(config, decide=skips_arrival), "changes parameters"),
    "sums in order of arrival": (lambda config: replace(config, plan=in_order_of_arrival), "not the golden one"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught(name: str) -> None:
    mutate, expected = MUTANTS[name]
    for seed in SEEDS:
        try:
            simulate(seed, mutate(draw(seed)))
        except Violation as violation:
            if expected in str(violation):
                break
    else:
        pytest.fail(f"the mutant that {name} came through {len(SEEDS)} seeds")
    assert simulate(seed).outcome  # and the machine as it is comes through this one
