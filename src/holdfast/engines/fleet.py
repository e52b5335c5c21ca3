"""Fleets: what starts host agents on other machines, where a cluster has been asked to do that.

A *fleet* stands one level above an engine: an engine starts workers on its own machine, a fleet starts agents
(`holdfast join`) on machines, and each agent has an engine. An agent meets the coordinator by itself, over the
run's own connection; what goes through the fleet is only what would otherwise be typed at a terminal there: the
command, its secret, its output and its exit code. So a run does not care which fleet its hosts came from, nor whether
some came from no fleet at all.

To add one, write a class that passes `tests/contract/test_fleet_contract.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

__all__ = [
    "AgentLost",
    "AgentSaid",
    "AgentUp",
    "Fleet",
    "FleetEvent",
    "FleetLost",
    "FleetWaits",
    "MachineOffer",
    "NodeGone",
    "Site",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class MachineOffer:
    """What an agent must know to become a host of the run.

    The secret reaches the agent's standard input. It is never on a command line, in an environment, or in a log.
    """

    words: tuple[str, ...]  #: the agent's command line, after the Python that runs it
    secret: bytes = field(repr=False)
    folder: str = ""  #: where it runs, if the machine has such a folder
    hosts: int = 1  #: agents that must be there before anybody can begin
    most: int = 1  #: no more agents than this, however many machines come


class Site(msgspec.Struct, frozen=True, tag=True):
    """What a cluster looks like from here."""

    address: str  #: of this machine, where the cluster's machines reach it
    room: int  #: machines that could take an agent now
    told: str  #: what is there, for people


class AgentUp(msgspec.Struct, frozen=True, tag=True):
    """An agent runs. `agent` is never given to another one, `node` says where, for people."""

    agent: int
    node: str
    pid: int


class AgentSaid(msgspec.Struct, frozen=True, tag=True):
    """Lines of the agent's output, in order."""

    agent: int
    lines: list[str]


class AgentLost(msgspec.Struct, frozen=True, tag=True):
    """An agent is no more, and nothing it started is. `code` is its exit status or minus the signal; None: not known.

    An agent that never came up gives this alone. `final` says that no other is started in its place on that machine.
    """

    agent: int
    node: str
    code: int | None
    reason: str
    last: list[str] = []  #: its last lines
    final: bool = False


class NodeGone(msgspec.Struct, frozen=True, tag=True):
    """A machine has left the cluster, or was lost by it."""

    node: str
    reason: str


class FleetWaits(msgspec.Struct, frozen=True, tag=True):
    """Agents cannot be started yet, and why. Said again only when it has changed."""

    sentence: str


class FleetLost(msgspec.Struct, frozen=True, tag=True):
    """The fleet starts nothing any more, and this is its last word. `error` names the class in `errors` that fits."""

    error: str
    reason: str


FleetEvent = AgentUp | AgentSaid | AgentLost | NodeGone | FleetWaits | FleetLost


class Fleet(Protocol):
    """Starts agents on machines, and tells what became of them.

    Contract (`tests/contract/test_fleet_contract.py` holds every fleet to it):

    * each agent gives at most one AgentUp, then what it says, and then exactly one AgentLost, after which no process
      that it started runs any more;
    * an agent that ends is started again where it may help, later each time, and not for ever, nor after `rest`;
    * `close` returns when no agent is left on any machine that answers, and may be called twice;
    * whatever happens to the process that holds the fleet, no agent outlives it for long.
    """

    def connect(self) -> Site:
        """Reach the cluster, and wait for it. Raises HoldfastError."""

    def open(self, offer: MachineOffer) -> None:
        """Begin to start agents. What comes of it is told by `events`."""

    def rest(self) -> None:
        """Start no more agents; those that are there go on."""

    def fileno(self) -> int:
        """A descriptor that is readable when `events` has something to say."""

    def events(self) -> Sequence[FleetEvent]:
        """What happened since the last call; never waits."""

    def close(self) -> None:
        """End every agent, at once."""
