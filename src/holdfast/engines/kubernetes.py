"""Kubernetes: a run as an Indexed Job with a headless Service, a Secret and a ConfigMap (`--on kubernetes`).

Every pod is a host. Pod 0 coordinates; the others find it by its name in the cluster's DNS, which the Service gives it,
and prove with the token in the Secret that they belong to the run; with --tls there are certificates beside it, which
whoever submits the job has made. The ConfigMap brings the script.

    a pod is evicted, or its node drained  another takes its number; it does not count as a failure
    an agent fails                         the same, at most `retries` times for each number; the run goes on meanwhile
    pod 0 is lost                          another pod 0 starts the run again
    the run fails                          its exit code says that trying again is no use: the Job has failed
    the run ends well                      the Job is complete, whatever the other pods do

This needs Kubernetes 1.31 or newer (success policy). The secret travels to kubectl by standard input.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.config.cluster_config import KubernetesConfig
from holdfast.config.limits import CLUSTER
from holdfast.engines.batch import ATTEMPTS, BatchJob, Shell, call, share, words
from holdfast.errors import (
    BadUnit,
    CheckpointError,
    CrewLost,
    DirectoryBusy,
    Hang,
    Impure,
    ModelError,
    NonFinite,
    NotKept,
    OutOfSync,
    ScriptFailed,
    StoreError,
    UsageError,
)
from holdfast.hosts.script_files import files_with
from holdfast.transport.endpoint import parse
from holdfast.transport.stream import name_of

__all__ = ["BROUGHT", "DATA", "HIDDEN", "PORT", "files_of", "manifests", "render", "submit"]

#: Where the run's directory lies in a pod: on the claim, or on the node for as long as the pod is there.
DATA = "/holdfast/data"
#: Where the script lies in a pod, when it was brought along.
BROUGHT = "/holdfast/brought"
#: Stands for the token where it is not shown. It is refused as a token: it has spaces.
HIDDEN = "(a new token is made when the job is submitted)"

#: Where pod 0 listens, unless told otherwise. A pod has an address of its own, so runs do not meet there.
PORT = 7850

_SECRET, _START = "/holdfast/secret", "holdfast-start.sh"
#: How long the other pods look for pod 0.
_PATIENCE = "10m"
_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_MISSING = "Install it, or use --dry-run, which prints what would be applied."
#: A bug of ours, and what a shell says when it cannot find or start a command.
_NO_USE = sorted({70, 126, 127, *(error.exit_code for error in (
    UsageError, ScriptFailed, BadUnit, NonFinite, Hang, CrewLost, DirectoryBusy, NotKept, Impure, OutOfSync,
    StoreError, CheckpointError, ModelError,
))})  # fmt: skip

_START_TEXT = """\
# Made by `holdfast run --on kubernetes`: pod 0 coordinates, every other pod joins it.
set -eu

# Holdfast takes a token only from a file that nobody else can read, which a mounted Secret need not be.
token=$(mktemp -p /dev/shm)
cat {secret}/token >"$token"

if [ "$JOB_COMPLETION_INDEX" != 0 ]; then
    exec {join}
fi

dir={dir}
# A directory holds one run: what an earlier attempt of this job left there is moved aside.
{attempts}
exec {run}
"""


def render(job: BatchJob, config: KubernetesConfig, files: Mapping[str, str], secret: str = HIDDEN) -> str:
    """All manifests as one list in JSON, which kubectl reads as it reads YAML."""
    items = manifests(job, config, files, secret)
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2) + "\n"


def manifests(job: BatchJob, config: KubernetesConfig, files: Mapping[str, str], secret: str) -> list[dict[str, Any]]:
    """Secret, ConfigMap, Service, Job: what a pod needs is there before it.

    `secret` is a token, or with TLS the text of `Credentials`.
    """

    def named(kind: str, version: str = "v1") -> dict[str, Any]:
        place = {"namespace": config.namespace} if config.namespace else {}
        metadata = {"name": job.name, **place, "labels": _labels(job)}
        return {"apiVersion": version, "kind": kind, "metadata": metadata}

    return [
        {**named("Secret"), "type": "Opaque", "stringData": {"token": secret}},
        {**named("ConfigMap"), "data": {**files, _START: _start(job)}},
        # Pods are found before they are ready: the others come while pod 0 starts.
        {**named("Service"), "spec": {
            "clusterIP": "None", "publishNotReadyAddresses": True, "selector": _labels(job),
            "ports": [{"name": "holdfast", "port": _listen(job)[1]}],
        }},
        {**named("Job", "batch/v1"), "spec": _job(job, config)},
    ]  # fmt: skip


def files_of(script: str) -> dict[str, str]:
    """The script and the Python files beside it: name -> text, at most 1 MiB together."""
    path = Path(script)
    if not _KEY.fullmatch(path.name):
        raise UsageError(f"{script} cannot travel in a ConfigMap by this name. Use letters, digits, -, _ and dots.")
    files, size = {}, 0
    for file in filter(lambda file: _KEY.fullmatch(file.name), files_with(path)):
        try:
            files[file.name] = file.read_bytes().decode()
        except UnicodeDecodeError:
            raise UsageError(f"{file} cannot travel in a ConfigMap: it is not UTF-8. Save it as UTF-8.") from None
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror}.") from None
        size += len(files[file.name].encode())
    if size > CLUSTER.config_map_bytes - 16 * 1024:
        raise UsageError(
            f"{script} and the Python files beside it have {size} bytes; a ConfigMap holds at most "
            f"{CLUSTER.config_map_bytes}. Put them "
            "into the image, give the path there, and use --set kubernetes.bring=false."
        )
    return files


def submit(text: str, job: BatchJob, config: KubernetesConfig) -> str:
    """Apply the manifests; a sentence that says what to do next."""
    # Server-side: otherwise kubectl keeps a copy of all it applies in an annotation, which has no room for a script and
    # is no place for a token.
    call("kubectl", ["apply", "--server-side", "-f", "-"], text, missing=_MISSING)
    where = f" -n {config.namespace}" if config.namespace else ""
    label = f"app.kubernetes.io/instance={job.name}"
    return (
        f"submitted to Kubernetes as job {job.name}. `kubectl logs{where} -f -l {label},"
        f"batch.kubernetes.io/job-completion-index=0` shows the run, `kubectl delete{where} "
        f"job,service,configmap,secret -l {label}` ends it and removes all of it."
    )


def _labels(job: BatchJob) -> dict[str, str]:
    return {"app.kubernetes.io/name": "holdfast", "app.kubernetes.io/instance": job.name}


def _start(job: BatchJob) -> str:
    """What every pod runs: a script of sh."""
    token, (host, port) = ("--token-file", Shell("$token")), _listen(job)
    tls = ["--tls"] if job.tls else []
    run = job.run("--listen", name_of((host, port)), *tls, *token, "--dir", Shell("$dir"))
    # Pods start in any order, and pod 0 may still wait for its image.
    join = job.join(f"{job.name}-0.{job.name}:{port}", *token, "--patience", _PATIENCE)
    return _START_TEXT.format(
        secret=_SECRET, dir=shlex.quote(job.dir), attempts=ATTEMPTS, run=words(run), join=words(join)
    )


def _listen(job: BatchJob) -> tuple[str, int]:
    host, port = parse(job.listen, port=PORT)
    return host, port or PORT


def _job(job: BatchJob, config: KubernetesConfig) -> dict[str, Any]:
    limit = {"activeDeadlineSeconds": max(1, round(config.time - config.notice))} if config.time else {}
    return {
        "completionMode": "Indexed",
        "completions": job.hosts,
        "parallelism": job.hosts,
        **limit,
        "backoffLimitPerIndex": config.retries,
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
        "podFailurePolicy": {"rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": "FailJob", "onExitCodes": {"containerName": "holdfast", "operator": "In", "values": _NO_USE}},
        ]},
        "template": {"metadata": {"labels": _labels(job)}, "spec": _pod(job, config)},
    }  # fmt: skip


def _pod(job: BatchJob, config: KubernetesConfig) -> dict[str, Any]:
    data = {"persistentVolumeClaim": {"claimName": config.claim}} if config.claim else {"emptyDir": {}}
    volumes = {
        "data": (DATA, data), "brought": (BROUGHT, {"configMap": {"name": job.name}}),
        "secret": (_SECRET, {"secret": {"secretName": job.name}}),
    }  # fmt: skip
    return {
        "restartPolicy": "Never",  # the Job makes a new pod instead, maybe on a better node
        "subdomain": job.name,
        "terminationGracePeriodSeconds": round(config.notice),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        # Workers of one machine share memory; two pods on one machine do not.
        "topologySpreadConstraints": [{
            "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": _labels(job)},
        }],
        "containers": [{
            "name": "holdfast",
            "image": config.image,
            "command": ["/bin/sh", f"{BROUGHT}/{_START}"],
            "workingDir": DATA,
            "resources": _resources(job, config),
            "securityContext": {"allowPrivilegeEscalation": False},
            "volumeMounts": [
                {"name": name, "mountPath": path, **({} if name == "data" else {"readOnly": True})}
                for name, (path, _) in volumes.items()
            ],
        }],
        "volumes": [{"name": name, **volume} for name, (_, volume) in volumes.items()],
    }  # fmt: skip


def _resources(job: BatchJob, config: KubernetesConfig) -> dict[str, Any]:
    """CPUs are asked for and not limited: a limit makes workers wait though the CPU is free."""
    each = share(job, config)
    memory = {"memory": _quantity(each.memory)} if each.memory else {}
    gpus = {"nvidia.com/gpu": str(each.gpus)} if each.gpus else {}
    limits = {"limits": {**memory, **gpus}} if memory or gpus else {}
    return {"requests": {"cpu": str(each.cpus), **memory, **gpus}, **limits}


def _quantity(size: int) -> str:
    """Bytes as Kubernetes writes them."""
    for unit, factor in (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)
