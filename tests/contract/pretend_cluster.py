"""A Ray cluster without Ray: nodes are words in a file, posts live in the driver's own process.

It is what `ray_cluster.RayCluster` is to the driver, so that everything above it runs where Ray is not installed. The
file named by HOLDFAST_PRETEND_CLUSTER has one node per line, `name CPUs`; who takes a line away kills that node.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.engines.agent_process import AgentProcess
from holdfast.engines.nodes import AgentPlace, ClusterNode
from holdfast.engines.ray_cluster import AgentProcessLost
from holdfast.errors import Unreachable

FILE = "HOLDFAST_PRETEND_CLUSTER"


@dataclass(eq=False)
class Placed:
    node: str
    cpus: float
    bundle: int
    agent_process: AgentProcess = field(default_factory=AgentProcess)


class PretendCluster:
    def __init__(self, address: str) -> None:
        self.address = address or "pretended:6379"
        if address == "nowhere:1":
            raise Unreachable("There is no cluster at nowhere:1.")
        self.pool = ThreadPoolExecutor(32)
        self.agent_processes: list[Placed] = []
        self.group: tuple[float, int] | None = None
        self.bundles: dict[int, str] = {}
        self.calls: dict[Future[Any], Placed] = {}

    def here(self) -> str:
        return "127.0.0.1"

    def nodes(self) -> list[ClusterNode]:
        totals = {}
        for line in Path(os.environ[FILE]).read_text().splitlines():
            name, cpus = line.split()
            totals[name] = float(cpus)
        for placed in [placed for placed in self.agent_processes if placed.node not in totals]:
            self.agent_processes.remove(placed)
            placed.agent_process.end()
        self.bundles = {bundle: node for bundle, node in self.bundles.items() if node in totals}
        self.place(totals)
        return [
            ClusterNode(name, f"10.0.0.{1 + at}", {"CPU": total}, {"CPU": total - self.used(name)})
            for at, (name, total) in enumerate(totals.items())
        ]

    def used(self, node: str) -> float:
        reserved = self.group[0] * list(self.bundles.values()).count(node) if self.group else 0.0
        return reserved + sum(
            placed.cpus for placed in self.agent_processes if placed.node == node and placed.bundle < 0
        )

    def place(self, totals: Mapping[str, float]) -> None:
        """STRICT_SPREAD: every bundle on a node of its own; at first all or none."""
        if self.group is None:
            return
        cpus, hosts = self.group
        others = [node for node in totals if node not in self.bundles.values()]
        free = [node for node in others if totals[node] - self.used(node) >= cpus]
        wanted = [bundle for bundle in range(hosts) if bundle not in self.bundles]
        if self.agent_processes or len(free) >= len(wanted):
            self.bundles |= dict(zip(wanted, free, strict=False))

    def reserve(self, bundle: Mapping[str, float], hosts: int) -> None:
        self.group = bundle["CPU"], hosts
        self.nodes()

    def reserved(self) -> dict[int, str]:
        return dict(self.bundles)

    def agent_process(self, agent_place: AgentPlace, bundle: Mapping[str, float]) -> Placed:
        self.agent_processes.append(Placed(agent_place.node, bundle["CPU"], agent_place.bundle))
        return self.agent_processes[-1]

    def call(self, agent_process: Placed, method: str, *args: Any) -> Future[Any]:
        future = self.pool.submit(getattr(agent_process.agent_process, method), *args)
        self.calls[future] = agent_process
        return future

    def answered(self, calls: Sequence[Future[Any]], seconds: float, *, all_of_them: bool = False) -> list[Future[Any]]:
        return list(wait(calls, seconds, "ALL_COMPLETED" if all_of_them else FIRST_COMPLETED).done) if calls else []

    def answer(self, call: Future[Any]) -> Any:
        if self.calls.pop(call) not in self.agent_processes:
            raise AgentProcessLost("the node has died")
        return call.result()

    def dismiss(self, agent_process: Placed) -> None:
        agent_process.agent_process.end()
        if agent_process in self.agent_processes:
            self.agent_processes.remove(agent_process)

    def leave(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)
