"""`holdfast run --on slurm` and `--on kubernetes`: what is handed to the cluster, and handing it over."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec

from holdfast.config import cluster
from holdfast.config.cluster import KubernetesConfig, SlurmConfig
from holdfast.config.run import RunConfig
from holdfast.config.sources import Resolved
from holdfast.engines import batch, kubernetes, slurm
from holdfast.errors import ConfigError, UsageError
from holdfast.observe.directory import default_path
from holdfast.transport.credentials import secrets_for
from holdfast.transport.place import parse

__all__ = ["submit"]


def submit(resolved: Resolved, asked: SlurmConfig | KubernetesConfig, *, hosts: int, dry_run: bool) -> int:
    """Hand the run to a cluster, or print what would be handed over; the exit code."""
    config = resolved.config
    cluster.check(config.on, asked, resolved.sources)
    if config.listen:
        parse(config.listen, port=0)  # now, and not when the job has waited for its turn
    brought = isinstance(asked, SlurmConfig) or asked.bring
    if brought and not Path(config.script).is_file():
        raise UsageError(f"{config.script}: there is no such script. Give the path of a Python file.")
    if config.lanes is not None and (workers := hosts * (config.workers or 1)) > config.lanes:
        print(
            f"note: {hosts} hosts make {workers} workers, and a step has {config.lanes} lanes: the rest wait as spares",
            file=sys.stderr,
        )
    path = Path(config.dir) if config.dir else default_path(config.script, time.time())
    if isinstance(asked, SlurmConfig):
        print(_slurm(resolved, asked, path, hosts, dry_run).rstrip("\n"))
    else:
        print(_kubernetes(resolved, asked, path, hosts, dry_run).rstrip("\n"))
    return 0


def _slurm(resolved: Resolved, asked: SlurmConfig, path: Path, hosts: int, dry_run: bool) -> str:
    directory = path.absolute()
    config = resolved.config
    if config.token_file:  # as every node sees it
        config = msgspec.structs.replace(config, token_file=str(Path(config.token_file).absolute()))
    job = batch.plan(
        config, resolved.sources, name=batch.job_name(str(path)), dir=str(directory), hosts=hosts,
        holdfast=(sys.executable, "-m", "holdfast.cli.main"),
    )
    text = slurm.render(job, asked, cwd=os.getcwd())
    return text if dry_run else slurm.submit(text, directory)


def _kubernetes(resolved: Resolved, asked: KubernetesConfig, path: Path, hosts: int, dry_run: bool) -> str:
    config = resolved.config
    if asked.show_token and not dry_run:
        raise ConfigError(
            "kubernetes.show_token", True, "it is for --dry-run; what is applied has a token of its own in any case",
            source=resolved.sources.get("kubernetes.show_token", "default"), fix="Add --dry-run, or leave it out.",
        )
    if config.dir and path.parent not in (Path(), Path("runs")):
        raise ConfigError(
            "dir", config.dir, f"a job's directory is {kubernetes.DATA}/runs/NAME, in its volume",
            source=resolved.sources.get("dir", "default"), fix=f"Use --dir {path.name}, and kubernetes.claim.",
        )
    files = kubernetes.files_of(config.script) if asked.bring else {}
    if asked.bring:
        config = msgspec.structs.replace(config, script=f"{kubernetes.BROUGHT}/{Path(config.script).name}")
    job = batch.plan(
        config, resolved.sources, name=batch.job_name(str(path)), dir=f"{kubernetes.DATA}/runs/{path.name}",
        hosts=hosts, holdfast=("holdfast",),
    )
    if dry_run and not asked.show_token:
        return kubernetes.render(job, asked, files)
    text = kubernetes.render(job, asked, files, _secret(config, job.name))
    return text if dry_run else kubernetes.submit(text, job, asked)


def _secret(config: RunConfig, name: str) -> str:
    """What pods need to be let in. No pod could hand certificates to the others, so they are made here."""
    found = secrets_for(name, Path(config.token_file) if config.token_file else None, config.tls).theirs
    return found.text if found.tls else found.token
