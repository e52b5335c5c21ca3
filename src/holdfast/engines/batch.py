"""A batch job: a run that is handed to a cluster, which starts it when there is room.

Whatever the cluster is called, the job has one shape. Its first machine runs the coordinator, and workers of its own;
every other machine joins it:

    first    holdfast run --on local --listen ... --hosts N --workers K ... SCRIPT
    others   holdfast join ADDRESS --token-file FILE --workers K

`slurm` and `kubernetes` say how a machine is asked for, how it learns which of the two it is, and how it comes by
ADDRESS and FILE. All of it is decided here and there, from frozen values, as text; only their `submit` acts.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from holdfast.config.cluster_config import ClusterConfig
from holdfast.config.run_config import DEFAULTS_OF_JOIN, RunConfig
from holdfast.errors import ConfigError, ResourceError, UsageError
from holdfast.quantities import Size

__all__ = ["ATTEMPTS", "BatchJob", "NodeShare", "Shell", "call", "job_name", "plan", "share", "words"]

#: Settings that have a flag of their own, which reads better than --set.
_FLAGS = ("lanes", "seed", "threads", "sync", "servers", "replicas")
#: Settings about where the run goes: here they have done their work.
_OURS = frozenset({"script", "args", "workers", "dir", "on", "hosts", "listen", "tls", "token_file"})
_OUR_SECTIONS = ("slurm.", "kubernetes.", "ray.")

#: Shell text. A directory holds one run, so what an earlier attempt of the job left there is moved aside.
ATTEMPTS = """\
if [ -e "$dir/run.json" ]; then
    n=0
    while [ -e "$dir/attempt-$n" ]; do n=$((n + 1)); done
    mkdir "$dir/attempt-$n"
    for it in "$dir"/*; do
        case "${it##*/}" in job.sh | slurm-* | attempt-*) ;; *) mv -- "$it" "$dir/attempt-$n/" ;; esac
    done
fi
"""


@dataclass(frozen=True)
class BatchJob:
    """What is run, wherever it is submitted. `dir` is the run's directory as the job's machines see it."""

    name: str
    dir: str
    script: str
    args: tuple[str, ...] = ()
    #: Further options of `holdfast run`.
    options: tuple[str, ...] = ()
    hosts: int = 1
    #: On each host.
    workers: int = 1
    #: On one of them.
    servers: int = 0
    threads: int = 1
    #: Where the first machine listens for the others: an address of its own, any of them by default.
    listen: str = "0.0.0.0"
    tls: bool = False
    #: A file with the token, where the run is not to make one.
    token_file: str = ""
    #: How the command is called on the job's machines.
    holdfast: tuple[str, ...] = ("holdfast",)

    def run(self, *options: str) -> list[str]:
        """What the first machine runs."""
        crew = ["--hosts", str(self.hosts), "--workers", str(self.workers)]
        return [*self.holdfast, "run", "--on", "local", *options, *crew, *self.options, self.script, *self.args]

    def join(self, address: str, *options: str) -> list[str]:
        """What every other machine runs."""
        return [*self.holdfast, "join", address, *options, "--workers", str(self.workers)]


class NodeShare(msgspec.Struct, frozen=True):
    """What one machine is asked for: that of all its processes. `memory` is bytes; 0 means that nobody asks."""

    cpus: int
    gpus: int
    memory: int


def plan(
    config: RunConfig, sources: Mapping[str, str], *, name: str, dir: str, hosts: int, holdfast: Sequence[str]
) -> BatchJob:
    """The job that runs `config` on `hosts` machines; what was set is passed on, defaults are left to the job."""
    workers = 1 if config.workers is None else config.workers
    if workers < 1:
        problem = "the first machine of a job has workers like all others"
        raise ConfigError("workers", workers, problem, source=sources.get("workers", "default"), fix="Use --workers 1.")
    return BatchJob(
        name=name, dir=dir, script=config.script, args=config.args, options=tuple(_options(config, sources)),
        hosts=hosts, workers=workers, servers=config.servers, threads=config.threads or DEFAULTS_OF_JOIN["threads"],
        listen=config.listen or BatchJob.listen, tls=config.tls, token_file=config.token_file,
        holdfast=tuple(holdfast),
    )


def share(job: BatchJob, config: ClusterConfig) -> NodeShare:
    """What each machine of the job needs. They are alike, so there is room for the servers on all of them.

    A server is as large as a worker, but needs no GPU.
    """
    memory, processes = Size(config.memory).bytes if config.memory else 0, job.workers + job.servers
    return NodeShare(processes * (config.cpus or job.threads), job.workers * config.gpus, processes * memory)


def job_name(directory: str) -> str:
    """What a job is called whose run's directory is this: a name that every cluster takes.

    >>> job_name("runs/My_Model-20260131-100000")
    'holdfast-my-model-20260131-100000'
    """
    stem = re.sub(r"[^a-z0-9]+", "-", directory.rstrip("/").rpartition("/")[2].lower()).strip("-")
    # 63 letters are all there is for a host's name, and the pods of a job add their number.
    return f"holdfast-{stem}"[:56].rstrip("-")


class Shell(str):
    """A word of ours that the shell is to expand. What a user gave is never one."""


def words(command: Sequence[str]) -> str:
    """A command as a shell reads it.

    >>> words(["cp", "a $b", Shell("$dir/c")])
    'cp \\'a $b\\' "$dir/c"'
    """
    return " ".join(f'"{word}"' if isinstance(word, Shell) else shlex.quote(word) for word in command)


def call(tool: str, command: Sequence[str], text: str, *, missing: str) -> str:
    """Give `text` to a tool of the cluster; what it answered. `missing` says what to do where there is none."""
    try:
        done = subprocess.run([tool, *command], input=text, text=True, capture_output=True, check=False)
    except FileNotFoundError:
        raise UsageError(f"{tool} was not found on this machine. {missing}") from None
    except OSError as error:
        raise ResourceError(f"{tool} could not be started: {error.strerror}.") from None
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip() or f"it ended with {done.returncode} and said nothing"
        raise UsageError(f"{tool} did not take the job: {said}")
    return done.stdout.strip()


def _options(config: RunConfig, sources: Mapping[str, str]) -> list[str]:
    """What was set, as options of `holdfast run` again."""
    options = []
    for name in sources:
        if name in _OURS or name.startswith(_OUR_SECTIONS):
            continue
        section, _, field = name.rpartition(".")
        value = getattr(getattr(config, section) if section else config, field)
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        options += [f"--{name}", text] if name in _FLAGS else ["--set", f"{name}={text}"]
    return options
