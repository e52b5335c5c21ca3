"""Machines that Ray starts for a server (`holdfast serve --on ray`): a replica host on each of some nodes.

Ray finds room, reserves it, and starts `holdfast replica` there; from then on such a machine is like any other that has
joined, and Ray is not in the way of a request. A node that is lost is replaced when Ray has another one. As for a run,
one process speaks with Ray (`engines.ray`); this one only hears what it tells.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.engines.fleet import AgentLost, AgentSaid, AgentUp, FleetEvent, FleetLost, FleetWaits, MachineOffer
from holdfast.engines.nodes import Needs
from holdfast.engines.ray import RayFleet
from holdfast.errors import RunError, by_name
from holdfast.serve.options import ServeOptions
from holdfast.transport.auth.credentials import Credentials

__all__ = ["RayMachines"]


class RayMachines:
    """The nodes of a Ray cluster that compute for a server. Resources: `close` ends what was started there."""

    def __init__(self, options: ServeOptions, logs: Path, say: Callable[[str], None]) -> None:
        self._options, self._logs, self._say = options, logs, say
        most = max(options.replicas, options.most_replicas)
        self._each = math.ceil(most / options.hosts)  # replicas of a node
        needs = Needs(workers=self._each, cpus=float(options.threads))
        self._fleet = RayFleet("", needs, wait=0.0, logs=logs)
        self._opened = False
        #: Done when Ray starts nothing any more; why.
        self.lost: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def connect(self) -> str:
        """Reach the cluster; the address of this machine, as its nodes know it. Raises HoldfastError."""
        site = await asyncio.to_thread(self._fleet.connect)
        self._say(site.told)
        return site.address

    def open(self, place: str, credentials: Credentials) -> None:
        """Have machines started that dial there."""
        words = ("-m", "holdfast.cli.main", "replica", place, "--replicas", str(self._each),
                 "--threads", str(self._options.threads), "--patience", "60s")  # fmt: skip
        secret, hosts = credentials.text.encode(), self._options.hosts
        self._fleet.open(MachineOffer(words, secret, folder=os.getcwd(), hosts=hosts, most=hosts))
        self._opened = True
        asyncio.get_running_loop().add_reader(self._fleet.fileno(), self._hear)

    async def close(self) -> None:
        """End what is left there."""
        self._stop_hearing()
        await asyncio.to_thread(self._fleet.close)

    def _stop_hearing(self) -> None:
        if self._opened:
            self._opened = False
            asyncio.get_running_loop().remove_reader(self._fleet.fileno())

    def _hear(self) -> None:
        for event in self._fleet.events():
            self._take(event)

    def _take(self, event: FleetEvent) -> None:
        match event:
            case AgentUp(agent, node, pid):
                self._say(f"Ray has started machine {agent} on {node}, as process {pid}")
            case AgentSaid(agent, lines):
                with open(self._logs / f"machine-{agent}.log", "a", encoding="utf-8") as file:
                    file.writelines(f"{line}\n" for line in lines)
            case AgentLost():
                said = f"; its last words: {event.last[-1]}" if event.last and event.code != 0 else ""
                after = "no other is started there" if event.final else "another one is started when there is room"
                self._say(f"machine {event.agent} on {event.node} is gone: {event.reason}{said} ({after})")
            case FleetWaits(sentence):
                self._say(sentence)
            case FleetLost(error, reason):
                self._stop_hearing()
                self._say(reason)
                if not self.lost.done():
                    self.lost.set_result((by_name(error) or RunError)(reason))
