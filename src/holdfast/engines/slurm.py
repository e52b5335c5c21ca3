"""Slurm: a run as one batch script (`holdfast run --on slurm`).

The script starts on the job's first node. It sends one agent to every other node with srun and becomes the coordinator
(exec), so that Slurm's notice before the time limit, a preemption or scancel reaches the run as one SIGTERM: it ends at
its next step and writes its summary. Nodes share the file system, so the run's directory is where they meet: the
coordinator writes `token` (0600; with TLS `credentials`) and `address` there, and agents wait for them. The port is the
system's choice; the host is the one that srun itself is reached at.

A node that fails takes its own agent with it and nothing else (`--no-kill`), unless it is the first; then Slurm puts
the job back into its queue (`--requeue`), and it starts again.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from holdfast.config.cluster_config import SlurmConfig
from holdfast.engines.batch import ATTEMPTS, BatchJob, Shell, call, share, words
from holdfast.errors import DirectoryBusy, HoldfastError, NetworkError, ResourceError, UsageError

__all__ = ["render", "submit"]

_MISSING = "Submit from a login node of the cluster, or use --dry-run, which prints the script."

_AGENTS = """\
# One agent on every other node. It is started again when it was killed or lost the run; all end with the job.
agent='
    for try in $(seq {tries}); do
        until [ -s "$1/address" ]; do sleep 0.5; done
        read -r address <"$1/address"
        host=$SLURM_LAUNCH_NODE_IPADDR
        case $host in *:*) host="[$host]" ;; esac
        {join}
        code=$?
        [ "$code" -eq {network} ] || [ "$code" -gt 128 ] || exit "$code"
        sleep "$try"
    done
    exit "$code"
'
( {srun} bash -c "$agent" agent "$dir" & )

"""


def render(job: BatchJob, config: SlurmConfig, *, cwd: str) -> str:
    """The batch script, whole. `cwd` is where it was submitted, and where it runs."""
    secret = [*(["--tls"] if job.tls else []), *(["--token-file", job.token_file] if job.token_file else [])]
    return "".join([
        "#!/bin/bash\n",
        "# Made by `holdfast run --on slurm`: the first node coordinates, every other node joins it.\n",
        *(f"#SBATCH {line}\n" for line in _directives(job, config, cwd)),
        f"\n{config.setup}\n" if config.setup else "",
        f"\ndir={shlex.quote(job.dir)}\n\n",
        "# A directory holds one run: what an earlier attempt of this job left there is moved aside.\n",
        ATTEMPTS,
        "\n",
        _agents(job, config) if job.hosts > 1 else "",
        "# The coordinator, with this node's workers. It writes its address and its token into $dir.\n",
        f"exec {words(job.run('--listen', job.listen, *secret, '--dir', Shell('$dir')))}\n",
    ])


def submit(text: str, directory: Path) -> str:
    """Write the script into the run's directory and hand it to Slurm; a sentence that says what to do next."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise DirectoryBusy(f"{directory} is not empty, and a run's directory holds one run. Use another --dir.")
        (directory / "job.sh").write_text(text, encoding="utf-8")
    except OSError as error:
        raise ResourceError(f"{directory} cannot be used as a run's directory: {error.strerror}.") from None
    try:
        answer = call("sbatch", ["--parsable", str(directory / "job.sh")], "", missing=_MISSING)
    except HoldfastError:
        (directory / "job.sh").unlink()
        directory.rmdir()
        raise
    number = answer.partition(";")[0]
    return (
        f"submitted to Slurm as job {number}; its output goes to {directory / f'slurm-{number}.out'}. "
        f"`squeue -j {number}` shows it, `scancel {number}` ends it."
    )


def _directives(job: BatchJob, config: SlurmConfig, cwd: str) -> list[str]:
    each = share(job, config)
    asked = [
        ("job-name", job.name), ("chdir", _quoted(cwd)), ("nodes", job.hosts), ("ntasks-per-node", 1),
        ("cpus-per-task", each.cpus), ("gpus-per-node", each.gpus or ""),
        ("mem", f"{-(-each.memory // 2**20)}M" if each.memory else ""),
        ("time", _time(config.time) if config.time else ""),
        ("partition", config.partition), ("account", config.account), ("qos", config.qos),
        ("constraint", _quoted(config.constraint) if config.constraint else ""),
        ("signal", f"B:TERM@{round(config.notice)}" if config.notice else ""),
        ("output", _quoted(f"{_pattern(job.dir)}/slurm-%j.out")), ("open-mode", "append"),
    ]
    lines = [f"--{name}={value}" for name, value in asked if value != ""]
    lines += ["--no-kill", "--requeue" if config.requeue else "--no-requeue"]
    return [*lines, *([config.options] if config.options else [])]


def _agents(job: BatchJob, config: SlurmConfig) -> str:
    others, each = job.hosts - 1, share(job, config)
    srun = [
        "srun", f"--nodes={others}", f"--ntasks={others}", "--ntasks-per-node=1", "--relative=1",
        # Since 22.05 srun does not take it over from sbatch.
        f"--cpus-per-task={each.cpus}",
        "--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--input=none", "--open-mode=append",
        f"--output={_pattern(job.dir)}/slurm-%j-%N.out",
    ]
    secret = ["--token-file", job.token_file or Shell("$1/token")]
    if job.tls:
        secret = ["--credentials", Shell("$1/credentials")]
    join = words(job.join(Shell("$host:${address##*:}"), *secret))
    return _AGENTS.format(
        tries=config.retries + 1, join=join.replace("'", "'\\''"), network=NetworkError.exit_code, srun=words(srun)
    )


def _time(seconds: float) -> str:
    """As Slurm writes it: days-hours:minutes:seconds."""
    minutes, second = divmod(max(60, round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    day, hour = divmod(hours, 24)
    return f"{day}-{hour:02d}:{minute:02d}:{second:02d}"


def _pattern(path: str) -> str:
    """A path as Slurm takes it where % begins a pattern."""
    return path.replace("%", "%%")


def _quoted(text: str) -> str:
    """A word of an #SBATCH line. sbatch reads it, not a shell: it knows quotes, and no way to write one inside them."""
    if any(letter in text for letter in '"\\\n'):
        raise UsageError(f"{text!r} cannot stand in a batch script of Slurm. Use one without quotes and backslashes.")
    return f'"{text}"'
