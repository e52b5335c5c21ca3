"""The table of engines: what `--on NAME` stands for. What each is made of is loaded when it is needed."""

from __future__ import annotations

from holdfast.config.resolve import Resolved
from holdfast.engines.engine import Engine
from holdfast.errors import UsageError

__all__ = ["engine"]


class _Here:
    """`local`: on this machine, and on those that join."""

    def rehearse(self, resolved: Resolved) -> str:
        raise UsageError("--dry-run prints what a cluster would be told. Say which: --on slurm or --on kubernetes.")

    def run(self, resolved: Resolved) -> int:
        from holdfast.cli.launch.launcher import launch

        return launch(resolved)


class _OnRay(_Here):
    """`ray`: coordinated here, on machines of a cluster that starts agents for it."""

    def run(self, resolved: Resolved) -> int:
        from holdfast.cli.launch.cluster_hosts import ClusterHosts
        from holdfast.cli.launch.launcher import launch

        return launch(resolved, cluster_hosts=ClusterHosts)


def _slurm() -> Engine:
    from holdfast.cli.launch.submit import OnSlurm

    return OnSlurm()


def _kubernetes() -> Engine:
    from holdfast.cli.launch.submit import OnKubernetes

    return OnKubernetes()


_ENGINES = {"local": _Here, "ray": _OnRay, "slurm": _slurm, "kubernetes": _kubernetes}


def engine(name: str) -> Engine:
    """The engine of this name; the configuration has checked that there is one."""
    return _ENGINES[name]()
