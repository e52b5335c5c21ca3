"""What a run is told about Ray: `ray.*`, and its rules.

Rules of this file are those of `run_config`: values and sentences only. What is asked for is per worker, as in
`cluster_config`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.config.limits import Seconds
from holdfast.errors import ConfigError

__all__ = ["RayConfig", "check", "resources"]

_OWN = {"CPU": "cpus", "GPU": "gpus"}


class RayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A run on a Ray cluster that is there already. Times are seconds (`--set ray.wait=10m` works too)."""

    #: The cluster, as host:port. Empty means: what RAY_ADDRESS says, or the one that this machine is part of.
    address: str = ""
    #: CPUs of a worker, as Ray counts them; 0 means: as many as it has threads.
    cpus: int | float = 0
    #: GPUs of a worker, as Ray counts them.
    gpus: int | float = 0
    #: Whatever else a worker needs, by the cluster's own names: TPU=4,spot=0.5
    resources: str = ""
    #: No more hosts than this, however many nodes the cluster gets; 0 means: as many as there are lanes for.
    most: int = 0
    #: How long to wait for a cluster that is too small to grow.
    wait: Seconds = 0.0


def check(config: RayConfig, sources: Mapping[str, str]) -> None:
    """Raise the first ConfigError that `config` deserves; `resolve` says who set each value."""
    for field in ("cpus", "gpus", "most", "wait"):
        if not 0 <= getattr(config, field) < float("inf"):
            raise _wrong(config, field, sources, "must be 0 or more")
    if config.address.startswith("ray://"):
        raise _wrong(
            config, "address", sources, "a Ray client is not part of the cluster, so the hosts cannot reach it",
            "Run on a machine of the cluster, or with: ray job submit -- holdfast run --on ray ...",
        )
    resources(config, sources)


def resources(config: RayConfig, sources: Mapping[str, str]) -> tuple[tuple[str, float], ...]:
    """What `resources` says, by name.

    >>> resources(RayConfig(resources="TPU=4, spot=0.5"), {})
    (('TPU', 4.0), ('spot', 0.5))
    """
    found = []
    for part in filter(None, (part.strip() for part in config.resources.split(","))):
        name, _, amount = (word.strip() for word in part.partition("="))
        try:
            value = float(amount)
        except ValueError:
            value = 0.0
        if name in _OWN:
            fix = f"Use --set ray.{_OWN[name]}={amount}."
            raise _wrong(config, "resources", sources, f"{name} has a setting of its own", fix)
        if not name or not 0 < value < float("inf"):
            raise _wrong(
                config, "resources", sources, f"{part!r} is not name=amount with an amount above 0",
                "For example: --set ray.resources=TPU=4,spot=0.5 (for each worker).",
            )
        found.append((name, value))
    return tuple(found)


def _wrong(config: RayConfig, field: str, sources: Mapping[str, str], problem: str, fix: str = "") -> ConfigError:
    name = f"ray.{field}"
    return ConfigError(name, getattr(config, field), problem, source=sources.get(name, "default"), fix=fix)
