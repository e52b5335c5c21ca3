"""A Ray cluster, as far as the driver needs one. All that is known of Ray's interface is known here.

Ray is imported when a cluster is made, so this module can be imported without it. Ray has no types; what comes from it
is taken apart at once.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.config.limits import CLUSTER
from holdfast.engines.agent_process import AgentProcess
from holdfast.engines.nodes import AgentPlace, ClusterNode
from holdfast.errors import Unreachable, UsageError

__all__ = ["AgentProcessLost", "AgentProcessUnreachable", "RayCluster"]

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_RAISED = re.compile(r"[A-Za-z_.]*(Error|Exception): ")


class AgentProcessLost(Exception):
    """A call will never be answered: the actor, its process or its node is gone. The text says what Ray says.

    `hopeless`: another one on that node would be lost in the same way.
    """

    def __init__(self, told: str, *, hopeless: bool = False) -> None:
        super().__init__(told)
        self.hopeless = hopeless


class AgentProcessUnreachable(Exception):
    """A call was not answered, but the next one may be."""


class RayCluster:
    """A connection to a cluster, as its driver. Raises HoldfastError where it cannot be one."""

    def __init__(self, address: str) -> None:
        try:
            self._ray: Any = importlib.import_module("ray")
            self._groups: Any = importlib.import_module("ray.util.placement_group")
            self._ways: Any = importlib.import_module("ray.util.scheduling_strategies")
            self._errors: Any = importlib.import_module("ray.exceptions")
        except ImportError as error:
            raise UsageError(
                f"--on ray needs the package ray, and {sys.executable} has none that works ({error}). Install it, here "
                "and on every node of the cluster: pip install 'holdfast[ray]'."
            ) from None
        self.address = _resolve(address or os.environ.get("RAY_ADDRESS", "") or "auto")
        try:
            self._ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")
        except Exception as error:
            raise Unreachable(
                f"Ray answers at {self.address}, but this machine cannot start anything there: {_gist(error)}. Run on "
                "a machine of the cluster (`ray start --address=...` makes this one part of it), with the versions of "
                "Python and Ray that the cluster has."
            ) from None
        self._group: Any = None

    def here(self) -> str:
        """The address of this machine, as the cluster knows it."""
        return str(importlib.import_module("ray.util").get_node_ip_address())

    def nodes(self) -> list[ClusterNode]:
        """Live nodes, with what they have and what of it is free."""
        free = _free()
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        return [
            ClusterNode(
                it["NodeID"], it["NodeManagerAddress"], it["Resources"], free.get(it["NodeID"], it["Resources"])
            )
            for it in alive
        ]

    def reserve(self, bundle: Mapping[str, float], hosts: int) -> None:
        """Ask for a placement group: this bundle on so many nodes, all of them or none."""
        self._group = self._groups.placement_group([dict(bundle)] * hosts, strategy="STRICT_SPREAD")

    def reserved(self) -> dict[int, str]:
        """Where the group's bundles are: bundle -> node. Ray moves those of a lost node when it finds another."""
        if self._group is None:
            return {}
        table = self._groups.placement_group_table(self._group)
        if table.get("state") not in ("CREATED", "RESCHEDULING"):
            return {}
        return {int(bundle): node for bundle, node in table["bundles_to_node_id"].items() if node}

    def agent_process(self, agent_place: AgentPlace, bundle: Mapping[str, float]) -> Any:
        """A post at this place, which holds these resources as long as it is there."""
        if agent_place.bundle >= 0:
            where = self._ways.PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=agent_place.bundle
            )
        else:
            where = self._ways.NodeAffinitySchedulingStrategy(agent_place.node, soft=False)
        others = {name: amount for name, amount in bundle.items() if name not in ("CPU", "GPU")}
        actor = self._ray.remote(AgentProcess).options(
            num_cpus=bundle.get("CPU", 0.0), num_gpus=bundle.get("GPU", 0.0), resources=others,
            scheduling_strategy=where, max_restarts=0, max_task_retries=0, max_concurrency=4,
        )  # fmt: skip
        return actor.remote()

    def call(self, agent_process: Any, method: str, *args: object) -> Any:
        """Call a method of a post; `answer` has what it returns. What is given here Ray does not write down."""
        return getattr(agent_process, method).remote(*args)

    def answered(self, calls: Sequence[Any], seconds: float, *, all_of_them: bool = False) -> list[Any]:
        """Those of the calls that have an answer; waits for one, or for all, but not for ever."""
        if not calls:
            return []
        done, _ = self._ray.wait(list(calls), num_returns=len(calls) if all_of_them else 1, timeout=seconds)
        return list(done)

    def answer(self, call: Any) -> Any:
        """What a call returned. Raises PostLost or PostUnreachable."""
        try:
            return self._ray.get(call)
        except self._errors.ActorUnavailableError as error:
            raise AgentProcessUnreachable(_gist(error)) from None
        except Exception as error:
            if "failed to import on the worker" in str(error):
                told = f"the Python that Ray uses there cannot import holdfast ({_gist(error)}): install it there"
                raise AgentProcessLost(told, hopeless=True) from None
            raise AgentProcessLost(f"Ray has lost it: {_gist(error)}") from None

    def dismiss(self, agent_process: Any) -> None:
        """End a post's process."""
        with contextlib.suppress(Exception):  # it is gone, or goes with this driver at the latest
            self._ray.kill(agent_process)

    def leave(self) -> None:
        """Give back what was reserved, and leave. Ray ends what this driver started."""
        if self._group is not None:
            with contextlib.suppress(Exception):  # the cluster may be gone; it gives back what a driver leaves
                self._groups.remove_placement_group(self._group)
        with contextlib.suppress(Exception):  # this process ends anyway
            self._ray.shutdown()


def _resolve(address: str) -> str:
    """Where the cluster is, as host:port, and that somebody listens there: Ray itself would try for minutes."""
    if address.startswith("ray://") or address == "local":
        raise UsageError(
            f"--on ray works on a machine that is part of a Ray cluster, and {address!r} (ray.address or RAY_ADDRESS) "
            "is not the address of one. Give host:port or auto, or use: ray job submit -- holdfast run --on ray ..."
        )
    if address == "auto":
        try:
            address = str(importlib.import_module("ray._private.services").canonicalize_bootstrap_address("auto"))
        except ConnectionError:
            raise Unreachable(
                "No Ray cluster was found: none runs on this machine, and neither ray.address nor RAY_ADDRESS names "
                "one. Start one (`ray start --head`), or say where it is: --set ray.address=HOST:PORT."
            ) from None
        except (ImportError, AttributeError):
            return "auto"  # a Ray that keeps this elsewhere: then it says itself what it does not find
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(
            f"{address!r} (ray.address or RAY_ADDRESS) is not the address of a Ray cluster. Give host:port, as "
            "`ray start --head` printed it, or auto."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CLUSTER.address).close()
    except OSError as error:
        why = "nobody answers" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise Unreachable(
            f"There is no Ray cluster at {address}: {why}. Start one there (`ray start --head`), or say where it is: "
            "--set ray.address=HOST:PORT."
        ) from None
    return address


def _free() -> dict[str, dict[str, float]]:
    """What is free on each node; empty where this version of Ray does not say."""
    try:
        state = importlib.import_module("ray._private.state")
        found: dict[str, dict[str, float]] = state.available_resources_per_node()
    except (ImportError, AttributeError):
        return {}
    return found


def _gist(error: Exception) -> str:
    """Of Ray's long errors the line that says most: the last exception of a remote trace, else the first line."""
    lines = [_COLOUR.sub("", line).strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line] or [type(error).__name__]
    raised = [line for line in lines if _RAISED.match(line)]
    return (raised[-1] if raised else lines[0])[:300].rstrip(".")
