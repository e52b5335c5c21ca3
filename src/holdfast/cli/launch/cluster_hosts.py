"""Hosts that a cluster starts for a run (`--on ray`): from where the run listens to the last agent's exit code.

The launcher only coordinates then: whatever computes is on the cluster's machines, and counted there. An agent that has
joined is a host like any other; what is done here is to tell the run's story what the fleet tells, to keep what agents
say (DIR/logs/agent-N.log), and to end a run that can never begin.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.config import ray_config
from holdfast.config.limits import CLUSTER
from holdfast.config.run_config import DEFAULTS_OF_JOIN, RunConfig
from holdfast.engines.fleet import (
    AgentLost,
    AgentSaid,
    AgentUp,
    Fleet,
    FleetEvent,
    FleetLost,
    FleetWaits,
    MachineOffer,
    NodeGone,
)
from holdfast.engines.nodes import Needs
from holdfast.engines.ray import RayFleet
from holdfast.errors import HoldfastError, RunError, by_name
from holdfast.transport.endpoint import parse
from holdfast.transport.stream import name_of

__all__ = ["ClusterHosts", "HostRegistrar", "needs"]


class HostRegistrar(Protocol):
    """The launcher, as `ClusterHosts` needs it. All of it is called in the loop's thread."""

    def note(self, sentence: str, *, aloud: bool) -> None:
        """A sentence for the story."""

    def keep(self, name: str, data: bytes) -> None:
        """Add to a file in the run's directory."""

    def unattended(self, error: HoldfastError) -> None:
        """No hosts come any more. A run that cannot do without them ends with this error."""


class ClusterHosts:
    """The hosts of one run on one cluster.

    Resources: `close` ends every agent.
    """

    def __init__(self, config: RunConfig, logs: Path, fleet: Fleet | None = None) -> None:
        self._config = config
        self._fleet = fleet or RayFleet(config.ray.address, needs(config), wait=config.ray.wait, logs=logs)
        self._registrar: HostRegistrar | None = None
        self._agents: set[int] = set()  #: that run
        self._address = ""  #: of this machine, where the cluster's machines reach it
        self._alone = asyncio.Event()
        self._alone.set()

    def connect(self, say: Callable[[str], None]) -> RunConfig:
        """Reach the cluster, and wait for it; how the launcher itself is to run there. Raises HoldfastError."""
        site = self._fleet.connect()
        self._address = site.address
        say(site.told)
        return msgspec.structs.replace(self._config, workers=0, listen=self._config.listen or site.address)

    def open(self, address: str, port: int, secret: str, registrar: HostRegistrar) -> None:
        """Have agents started that join the run. Must be called inside a running loop.

        `address` is where the launcher listens, where it was told so, and else the best that it knows.
        """
        self._registrar = registrar
        listen = self._config.listen
        told = listen and parse(listen, port=0)[0] not in ("0.0.0.0", "::")
        place = name_of((address if told else self._address, port))
        words = ("-m", "holdfast.cli.main", "join", place, "--workers", str(self._config.workers or 1))
        lanes, hosts = self._config.lanes or DEFAULTS_OF_JOIN["lanes"], self._config.hosts
        most = self._config.ray.most or math.ceil(lanes / (self._config.workers or 1))
        self._fleet.open(MachineOffer(words, secret.encode(), folder=os.getcwd(), hosts=hosts, most=max(hosts, most)))
        asyncio.get_running_loop().add_reader(self._fleet.fileno(), self._hear)

    def rest(self) -> None:
        """The run is ending: who leaves now is not replaced."""
        if self._registrar is not None:
            self._fleet.rest()

    async def agent_end(self) -> None:
        """The run has ended: wait a moment for agents to leave by themselves."""
        if self._registrar is None:
            return
        self._fleet.rest()
        try:
            await asyncio.wait_for(self._alone.wait(), CLUSTER.leave)
        except TimeoutError:
            left = ", ".join(str(agent) for agent in sorted(self._agents))
            self._registrar.note(f"agents {left} have not left by themselves, and are killed", aloud=True)

    def close(self) -> None:
        """End every agent that is left. May be called twice."""
        self._stop_listening()
        self._fleet.close()

    def _stop_listening(self) -> None:
        if self._registrar is not None:
            asyncio.get_running_loop().remove_reader(self._fleet.fileno())
            self._registrar = None

    def _hear(self) -> None:
        for event in self._fleet.events():
            if self._registrar is not None:
                self._take(event, self._registrar)

    def _take(self, event: FleetEvent, registrar: HostRegistrar) -> None:
        match event:
            case AgentUp(agent, node, pid):
                self._agents.add(agent)
                self._alone.clear()
                registrar.note(f"agent {agent} runs on {node}, as process {pid}", aloud=False)
            case AgentSaid(agent, lines):
                registrar.keep(f"logs/agent-{agent}.log", "".join(f"{line}\n" for line in lines).encode())
            case AgentLost(agent):
                self._agents.discard(agent)
                registrar.note(_lost(event), aloud=event.code != 0)
                if not self._agents:
                    self._alone.set()
            case NodeGone(node, reason):
                registrar.note(f"{node} has left the cluster ({reason})", aloud=False)
            case FleetWaits(sentence):
                registrar.note(sentence, aloud=True)
            case FleetLost(error, reason):
                self._alone.set()
                self._stop_listening()
                registrar.unattended((by_name(error) or RunError)(reason))


def needs(config: RunConfig) -> Needs:
    """What each host of the run takes from its machine."""
    threads = config.threads or DEFAULTS_OF_JOIN["threads"]
    others = ray_config.resources(config.ray, {})
    return Needs(config.workers or 1, float(config.ray.cpus or threads), float(config.ray.gpus), others, config.servers)


def _lost(event: AgentLost) -> str:
    said = f"; its last words: {event.last[-1]}" if event.last and event.code != 0 else ""
    after = "no other is started there" if event.final else "another one is started when there is room"
    return f"agent {event.agent} on {event.node} is gone: {event.reason}{said} ({after})"
