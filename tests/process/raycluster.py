"""A real Ray cluster for tests: several nodes on this machine, each with processes of its own.

Ray's health checks are made quicker than their defaults, so that a test of a lost node does not wait for them; nothing
that is tested depends on how quick they are.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.engines.ray import DEFAULT_CLUSTER
from tests.process.harness import ROOT

__all__ = ["INSTALLED", "RAY", "RealCluster"]

INSTALLED = importlib.util.find_spec("ray") is not None
#: Ray is an optional extra, and a large one.
RAY = pytest.mark.skipif(
    not INSTALLED,
    reason="Ray is not installed: pip install 'holdfast[ray]' into the Python that runs the tests",
)


class RealCluster:
    """A head without CPUs, and nodes with CPUs. Leaving the block ends all of it."""

    cluster = DEFAULT_CLUSTER

    def __init__(self, nodes: int = 2, cpus: int = 2) -> None:
        self._wanted, self._cpus = nodes, cpus
        self._temp = tempfile.mkdtemp(prefix="r-", dir="/tmp")  # short: sockets go there
        os.mkdir(f"{self._temp}/ray")
        self._cluster: Any = None
        self._nodes: list[Any] = []

    def __enter__(self) -> RealCluster:
        from ray.cluster_utils import Cluster

        quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_failure_threshold": 3}
        with self._surroundings():
            self._cluster = Cluster(
                initialize_head=True,
                head_node_args={
                    "num_cpus": 0, "include_dashboard": False, "_system_config": quick, "object_store_memory": 10**8
                },
            )  # fmt: skip
            self.restore()
        return self

    def __exit__(self, *_: object) -> None:
        with self._surroundings():
            self._cluster.shutdown()
        shutil.rmtree(self._temp, ignore_errors=True)

    @property
    def address(self) -> str:
        """host:port."""
        return str(self._cluster.address)

    def files(self) -> Iterator[Path]:
        """All that its processes have written down."""
        return (path for path in Path(self._temp).rglob("*") if path.is_file())

    def restore(self) -> None:
        """Back to the number of nodes that was asked for."""
        while len(self._nodes) > self._wanted:
            self._cluster.remove_node(self._nodes.pop(), allow_graceful=True)
        while len(self._nodes) < self._wanted:
            self.add()
        self._cluster.wait_for_nodes()

    def add(self) -> None:
        """A node joins."""
        with self._surroundings():
            self._nodes.append(self._cluster.add_node(num_cpus=self._cpus, object_store_memory=100_000_000))

    def _surroundings(self) -> contextlib.AbstractContextManager[None]:
        """What Ray's processes start with: our package, and a folder of their own for whatever they write."""
        paths = f"{ROOT / 'src'}:{ROOT}"
        return _environment(
            PYTHONPATH=paths, RAY_TMPDIR=self._temp, RAY_worker_niceness="0", RAY_USAGE_STATS_ENABLED="0"
        )

    def kill(self) -> None:
        """The newest node is killed, and nobody is told."""
        self._cluster.remove_node(self._nodes.pop(), allow_graceful=False)


@contextlib.contextmanager
def _environment(**more: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
