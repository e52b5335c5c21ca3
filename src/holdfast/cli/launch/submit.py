"""`holdfast run --on slurm` and `--on kubernetes`: what is handed to the cluster, and handing it over."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec

from holdfast.config import cluster_config
from holdfast.config.cluster_config import ClusterConfig
from holdfast.config.resolve import Resolved
from holdfast.config.run_config import RunConfig
from holdfast.engines import batch, kubernetes, slurm
from holdfast.errors import ConfigError, UsageError
from holdfast.observe.directory import default_path
from holdfast.transport.auth.credentials import secrets_for
from holdfast.transport.endpoint import parse

__all__ = ["OnKubernetes", "OnSlurm"]


class OnSlurm:
    """`--on slurm`: see `engines.engine`."""

    def rehearse(self, resolved: Resolved) -> str:
        """The batch script."""
        return self._script(resolved, _directory(resolved).absolute())

    def run(self, resolved: Resolved) -> int:
        """Hand it to sbatch."""
        directory = _directory(resolved).absolute()
        print(slurm.submit(self._script(resolved, directory), directory))
        return 0

    def _script(self, resolved: Resolved, directory: Path) -> str:
        config = resolved.config
        _check(resolved, config.slurm, brought=True)
        if config.token_file:  # as every node sees it
            config = msgspec.structs.replace(config, token_file=str(Path(config.token_file).absolute()))
        job = batch.plan(
            config, resolved.sources, name=batch.job_name(str(directory)), dir=str(directory), hosts=config.hosts,
            holdfast=(sys.executable, "-m", "holdfast.cli.main"),
        )
        return slurm.render(job, config.slurm, cwd=os.getcwd())


class OnKubernetes:
    """`--on kubernetes`: see `engines.engine`."""

    def rehearse(self, resolved: Resolved) -> str:
        """The manifests, with the secret only where it was asked for."""
        job, files = self._job(resolved)
        asked = resolved.config.kubernetes
        if asked.show_token:
            return kubernetes.render(job, asked, files, _secret(resolved.config, job.name))
        return kubernetes.render(job, asked, files)

    def run(self, resolved: Resolved) -> int:
        """Hand them to kubectl."""
        job, files = self._job(resolved)
        asked = resolved.config.kubernetes
        if asked.show_token:
            problem = "it is for --dry-run; what is applied has a token of its own in any case"
            raise _wrong(resolved, "kubernetes.show_token", True, problem, "Add --dry-run, or leave it out.")
        text = kubernetes.render(job, asked, files, _secret(resolved.config, job.name))
        print(kubernetes.submit(text, job, asked))
        return 0

    def _job(self, resolved: Resolved) -> tuple[batch.BatchJob, dict[str, str]]:
        """What is run, and the files that travel."""
        config, asked = resolved.config, resolved.config.kubernetes
        _check(resolved, asked, brought=asked.bring)
        path = _directory(resolved)
        if config.dir and path.parent not in (Path(), Path("runs")):
            problem = f"a job's directory is {kubernetes.DATA}/runs/NAME, in its volume"
            raise _wrong(resolved, "dir", config.dir, problem, f"Use --dir {path.name}, and kubernetes.claim.")
        files = kubernetes.files_of(config.script) if asked.bring else {}
        if asked.bring:
            config = msgspec.structs.replace(config, script=f"{kubernetes.BROUGHT}/{Path(config.script).name}")
        job = batch.plan(
            config, resolved.sources, name=batch.job_name(str(path)), dir=f"{kubernetes.DATA}/runs/{path.name}",
            hosts=config.hosts, holdfast=("holdfast",),
        )
        return job, files


def _check(resolved: Resolved, asked: ClusterConfig, *, brought: bool) -> None:
    """Raise what would otherwise be found out when the job has waited for its turn."""
    config = resolved.config
    cluster_config.check(config.on, asked, resolved.sources)
    if config.listen:
        parse(config.listen, port=0)
    if brought and not Path(config.script).is_file():
        raise UsageError(f"{config.script}: there is no such script. Give the path of a Python file.")
    if config.lanes is not None and (workers := config.hosts * (config.workers or 1)) > config.lanes:
        print(
            f"note: {config.hosts} hosts make {workers} workers, and a step has {config.lanes} lanes: the rest wait as "
            "spares", file=sys.stderr,
        )  # fmt: skip


def _directory(resolved: Resolved) -> Path:
    config = resolved.config
    return Path(config.dir) if config.dir else default_path(config.script, time.time())


def _secret(config: RunConfig, name: str) -> str:
    """What pods need to be let in. No pod could hand certificates to the others, so they are made here."""
    found = secrets_for(name, config.token_file, config.tls).theirs
    return found.text if found.tls else found.token


def _wrong(resolved: Resolved, field: str, value: object, problem: str, fix: str) -> ConfigError:
    return ConfigError(field, value, problem, source=resolved.sources.get(field, "default"), fix=fix)
