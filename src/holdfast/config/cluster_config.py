"""What a run is told about the cluster it is submitted to: `slurm.*` and `kubernetes.*`, and their rules.

Rules of this file are those of `run_config`: values and sentences only. What is asked for is per worker, so that the
same numbers do on any cluster; a machine is asked for what all its workers need together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import msgspec

from holdfast.config.limits import Seconds
from holdfast.errors import ConfigError, UsageError
from holdfast.quantities import Size

__all__ = ["ClusterConfig", "KubernetesConfig", "SlurmConfig", "check"]

#: What cannot end a word, or a line, of a batch script's options early.
_WORD = re.compile(r"[^\s\"'\\#]*")
#: What Kubernetes lets an object be called (RFC 1123).
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._/:@]*")


class ClusterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every cluster is asked for. Times are seconds (`--set slurm.time=2h` works too)."""

    #: CPUs of a worker; 0 means: as many as --threads says, or 1.
    cpus: int = 0
    #: GPUs of a worker.
    gpus: int = 0
    #: Memory of a worker, such as 4GiB; empty means: what the cluster gives when nobody asks.
    memory: str = ""
    #: Longest time the job may take; 0 means: the cluster's own limit.
    time: Seconds = 0.0
    #: How long before the job is killed the run is told to end (SIGTERM).
    notice: Seconds = 60.0
    #: How often a host that failed is started again.
    retries: int = 6


class SlurmConfig(ClusterConfig, frozen=True, forbid_unknown_fields=True):
    """A job of Slurm."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    #: After the loss of its first node, or when it was preempted, the job starts again.
    requeue: bool = True
    #: Shell text that the job runs first, such as: module load python; source ~/venv/bin/activate. Its first node does,
    #: and all nodes have the environment that it leaves.
    setup: str = ""
    #: Further options of sbatch, as they are typed: --exclusive --nodelist=a,b
    options: str = ""


class KubernetesConfig(ClusterConfig, frozen=True, forbid_unknown_fields=True):
    """A job of Kubernetes."""

    #: An image with Holdfast and all that the script imports.
    image: str = ""
    #: Empty means: that of kubectl's context.
    namespace: str = ""
    #: A PersistentVolumeClaim (ReadWriteMany) for the run's directory; without one it is gone with the pod.
    claim: str = ""
    #: The script and the *.py beside it travel in a ConfigMap; false: the image has the script, at the path given.
    bring: bool = True
    #: With --dry-run: a real token instead of words in its place, so that the output can be applied.
    show_token: bool = False


def check(section: str, config: ClusterConfig, sources: Mapping[str, str]) -> None:
    """Raise the first ConfigError that the settings of `section` deserve; `resolve` says who set each value."""

    def wrong(field: str, problem: str, fix: str = "") -> ConfigError:
        name = f"{section}.{field}"
        return ConfigError(name, getattr(config, field), problem, source=sources.get(name, "default"), fix=fix)

    for field in ("cpus", "gpus", "time", "notice", "retries"):
        if getattr(config, field) < 0:
            raise wrong(field, "must be 0 or more")
    if config.notice > 65535:
        raise wrong("notice", "must be 65535 s or less", f"Use --set {section}.notice=5m.")
    if 0 < config.time <= config.notice:
        raise wrong(
            "time", f"must be more than {section}.notice = {config.notice:g} s, or the run is told to end as it begins",
            f"Use --set {section}.time=1h, or a shorter notice: --set {section}.notice=5s.",
        )
    if config.memory:
        try:
            size = Size(config.memory)
        except UsageError:
            raise wrong("memory", "must be a size such as 4GiB") from None
        if size < Size("1MiB"):
            raise wrong("memory", "must be 1MiB or more")
    if isinstance(config, SlurmConfig):
        for field in ("partition", "account", "qos", "constraint"):
            if not _WORD.fullmatch(getattr(config, field)):
                raise wrong(field, "must be one word, without quotes")
        if "\n" in config.options or "\r" in config.options:
            raise wrong("options", "must be one line")
    if isinstance(config, KubernetesConfig):
        _check_kubernetes(config, wrong)


def _check_kubernetes(config: KubernetesConfig, wrong: Callable[..., ConfigError]) -> None:
    if not _IMAGE.fullmatch(config.image):
        raise wrong(
            "image", "must be the name of an image" if config.image else "there is no image that suits everybody",
            "Name one that has holdfast and what your script imports: --set kubernetes.image=NAME.",
        )
    for field in ("namespace", "claim"):
        if (text := getattr(config, field)) and not _LABEL.fullmatch(text):
            raise wrong(field, "must be a name of at most 63 small letters, digits and dashes")
