"""Which machines of a cluster get an agent. Pure: what a cluster says comes in, what to start comes out.

A run wants a number of hosts, each with the same *bundle* of resources, on different machines. The first ones are
reserved together, as a placement group, so that two runs never hold half of what both need, and so that a cluster that
can grow knows what is wanted. Machines that come later are taken one by one. A machine that is lost takes its agent
with it; the group moves the lost bundle by itself, and the new place is just another machine without an agent.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from holdfast.config.limits import CLUSTER

__all__ = [
    "AgentPlace",
    "ClusterNode",
    "Needs",
    "Shortage",
    "Strikes",
    "able",
    "again",
    "agent_places",
    "room",
    "shortage",
    "told",
]

#: The exit code of an agent that the run will not have: trying again does not help (`errors.Refused`).
_REFUSED = 11
_NAMES = {"CPU": ("CPU", "CPUs"), "GPU": ("GPU", "GPUs")}


class Needs(NamedTuple):
    """What one host of the run takes from its machine."""

    workers: int = 1
    cpus: float = 1.0  #: per worker
    gpus: float = 0.0  #: per worker
    others: tuple[tuple[str, float], ...] = ()  #: per worker, by the cluster's own names
    servers: int = 0  #: that may be on it; each takes the CPUs of a worker, and nothing else

    def bundle(self) -> dict[str, float]:
        """The same, for the whole host.

        >>> Needs(workers=2, cpus=1.5, gpus=1, servers=1).bundle()
        {'CPU': 4.5, 'GPU': 2}
        """
        whole = {"CPU": self.cpus * (self.workers + self.servers)}
        whole |= {name: amount * self.workers for name, amount in (("GPU", self.gpus), *self.others)}
        return {name: amount for name, amount in whole.items() if amount > 0}

    def __str__(self) -> str:
        crew = f"{self.workers} workers" if self.workers > 1 else "1 worker"
        each = _amounts(Needs(1, self.cpus, self.gpus, self.others).bundle()) + " each" * (self.workers > 1)
        room = f"{self.servers} server{'s' * (self.servers > 1)}"
        served = f" and room for {room} with {_amounts({'CPU': self.cpus})}" + " each" * (self.servers > 1)
        return f"{crew} with {each}{served if self.servers else ''}"


class ClusterNode(NamedTuple):
    """A live machine of the cluster. Several may have one address (containers, tests)."""

    id: str
    address: str
    total: Mapping[str, float]
    free: Mapping[str, float]

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.address} (node {self.id[:8]})"


class AgentPlace(NamedTuple):
    """A place for an agent: on this machine, with what this bundle of the group reserved, or with -1 what is free."""

    node: str
    bundle: int


def room(nodes: Iterable[ClusterNode], needs: Needs) -> int:
    """How many machines could take an agent now."""
    return sum(_fits(node.free, needs.bundle()) for node in nodes)


def able(node: ClusterNode, needs: Needs) -> bool:
    """Whether this machine could take an agent if nobody else used it."""
    return _fits(node.total, needs.bundle())


class Shortage(NamedTuple):
    """Why a cluster cannot take a run now: it is too small, or only busy."""

    small: bool
    sentence: str


def shortage(nodes: Sequence[ClusterNode], hosts: int, needs: Needs, cluster: str) -> Shortage | None:
    """Why the cluster cannot take so many hosts now, if it cannot: what is there, and what is missing on each node."""
    small = sum(able(node, needs) for node in nodes) < hosts
    if not small and room(nodes, needs) >= hosts:
        return None
    bundle = needs.bundle()
    held = sum(_fits(node.total if small else node.free, bundle) for node in nodes)
    wanted = f"1 node with {_amounts(bundle)} is" if hosts == 1 else f"{hosts} nodes with {_amounts(bundle)} each are"
    there = "; ".join(_lack(node, bundle, small) for node in nodes) or "no node at all"
    absent = hosts - len(nodes)
    more = "" if absent <= 0 else "; 1 node more is missing" if absent == 1 else f"; {absent} nodes more are missing"
    return Shortage(
        small,
        f"The Ray cluster at {cluster} is {'too small' if small else 'busy'}: {wanted} wanted (for {needs}), and "
        f"{held or 'none'} {'has' if held == 1 else 'have'} that{'' if small else ' free'}. There is {there}{more}.",
    )


def agent_places(
    nodes: Mapping[str, ClusterNode],
    group: Mapping[int, str],
    taken: Collection[str],
    barred: Collection[str],
    most: int,
    needs: Needs,
) -> list[AgentPlace]:
    """Where agents are to be started now.

    Args:
        group: bundle -> the machine where it is reserved.
        taken: machines with an agent. One agent is enough for a machine.
        barred: machines where no agent is to be started, now or ever.
        most: agents, those of `taken` included.
    """
    found: dict[str, AgentPlace] = {}
    for bundle, node in sorted(group.items()):
        if node in nodes and node not in taken and node not in barred:
            found.setdefault(node, AgentPlace(node, bundle))
    spoken_for = {*taken, *barred, *group.values()}
    for node in sorted(nodes.keys() - spoken_for):
        if _fits(nodes[node].free, needs.bundle()):
            found[node] = AgentPlace(node, -1)
    return list(found.values())[: max(0, most - len(set(taken)))]


class Strikes(NamedTuple):
    """What is held against a machine: agents that failed there in a row, and since when another may be tried."""

    failed: int = 0
    until: float = -math.inf


def again(before: Strikes, code: int | None, lived: float, now: float) -> Strikes:
    """What an agent's end says about its machine.

    An agent that left in peace is not replaced; one that failed is, later each time, and not for ever. `until` is
    infinite where nobody is to be started any more.
    """
    if code in (0, _REFUSED):
        return Strikes(before.failed, math.inf)
    failed = 1 if lived >= CLUSTER.healthy else before.failed + 1
    return Strikes(failed, math.inf if failed >= CLUSTER.tries else now + 2.0 ** (failed - 1))


def told(nodes: Sequence[ClusterNode], cluster: str) -> str:
    """What is there.

    >>> told([ClusterNode("1a2b3c4d5e", "10.0.0.1", {"CPU": 4.0}, {"CPU": 3.0})], "10.0.0.1:6379")
    'Ray cluster at 10.0.0.1:6379: 10.0.0.1 (node 1a2b3c4d) with 3 of 4 CPUs free'
    """
    return f"Ray cluster at {cluster}: {', '.join(_have(node) for node in nodes) or 'no nodes'}"


def _have(node: ClusterNode) -> str:
    parts = [
        f"{node.free.get(name, 0.0):g} of {_amount(name, node.total[name])} free"
        for name in _NAMES if node.total.get(name)
    ]  # fmt: skip
    return f"{node.name} with {' and '.join(parts) or 'no CPUs'}"


def _lack(node: ClusterNode, bundle: Mapping[str, float], small: bool) -> str:
    """What this machine has of what is wanted, and what is missing."""
    parts, missing = [], []
    for name, wanted in bundle.items():
        total = node.total.get(name, 0.0)
        free = total if small else min(total, node.free.get(name, 0.0))
        all_of_it = _amount(name, total)
        parts.append(all_of_it if small or free == total else f"{free:g} of {all_of_it} free")
        if free < wanted - 1e-6:
            missing.append(_amount(name, wanted - free))
    return f"{node.name} with {', '.join(parts)}" + (f": {', '.join(missing)} missing" if missing else "")


def _fits(have: Mapping[str, float], wanted: Mapping[str, float]) -> bool:
    return all(have.get(name, 0.0) >= amount - 1e-6 for name, amount in wanted.items())


def _amounts(bundle: Mapping[str, float]) -> str:
    return ", ".join(_amount(name, amount) for name, amount in bundle.items()) or "nothing reserved"


def _amount(name: str, amount: float) -> str:
    one, many = _NAMES.get(name, (name, name))
    return f"{amount:g} {one if amount == 1 else many}"
