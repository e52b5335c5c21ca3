"""A real Slurm on the hosts of a lab: one controller, and a slurmd on each of them. Debian: slurmctld, slurmd, munge.

    with Lab(3) as lab, Slurm(lab) as slurm:
        slurm.call("sbatch", ...)

Everything that it writes is in a directory of its own; nothing of the system's own Slurm, should there be one, is used.
"""

from __future__ import annotations

import functools
import secrets
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.hosts.lab import Lab
from tests.hosts.lab import why_not as no_lab
from tests.process.harness import environment, until

__all__ = ["Slurm", "why_not"]

_TOOLS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "scontrol")
#: A host of a lab has a /sys of its own, without control groups; slurmd wants some to be there.
_SLURMD = """
    mount -t tmpfs none /sys/fs/cgroup
    for kind in freezer cpuset memory devices cpuacct; do
        mkdir /sys/fs/cgroup/$kind && mount -t cgroup -o $kind none /sys/fs/cgroup/$kind || exit 1
    done
    exec slurmd -D -N "$0"
"""
_CONFIG = """
ClusterName=lab
SlurmctldHost={first.name}({first.address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={at}/munge.sock
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MpiDefault=none
KillWait=20
MinJobAge=300
SlurmdSpoolDir={at}/spool-%n
StateSaveLocation={at}/state
SlurmctldPidFile={at}/slurmctld.pid
SlurmdPidFile={at}/%n.pid
SlurmctldLogFile={at}/slurmctld.log
SlurmdLogFile={at}/%n.log
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@functools.cache
def why_not() -> str:
    """Why there can be no Slurm here; empty when there can."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"there is no {missing[0]} on this machine (Debian: apt install slurmctld slurmd slurm-client munge)"
    return no_lab()


class Slurm:
    """A cluster with all hosts of the lab. Resources: leaving the `with` block ends it, with all of its jobs."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.at = Path(tempfile.mkdtemp(prefix="s-"))  # short: a socket lies there
        self.env = environment(SLURM_CONF=str(self.at / "slurm.conf"))
        (self.at / "state").mkdir()
        (self.at / "key").write_bytes(secrets.token_bytes(128))
        (self.at / "key").chmod(0o400)
        nodes = [f"NodeName={host.name} NodeAddr={host.address} CPUs=2 RealMemory=1000" for host in lab.hosts]
        config = _CONFIG.format(first=lab.hosts[0], at=self.at, nodes="\n".join(nodes))
        (self.at / "slurm.conf").write_text(config)
        (self.at / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        self._log = open(self.at / "log", "w")  # noqa: SIM115  # closed in __exit__

    def __enter__(self) -> Slurm:
        try:
            names = {"key": "key-file", "munge.sock": "socket", "munge.pid": "pid-file", "munge.log": "log-file"}
            files = [word for name, option in names.items() for word in (f"--{option}", self.at / name)]
            self._start(0, "munged", "--foreground", "--force", *files, "--seed-file", self.at / "seed")
            until((self.at / "munge.sock").exists, self.said)
            self._start(0, "slurmctld", "-D")
            for host in self.lab.hosts:
                self._start(host.number, "sh", "-c", _SLURMD, host.name)
            until(self._idle, self.said, 60.0)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.lab.hosts:
            self.lab.kill_all(host.number)
        self._log.close()
        shutil.rmtree(self.at, ignore_errors=True)

    def call(self, *words: object, **options: Any) -> subprocess.CompletedProcess[str]:
        """A command on the first host."""
        with self.lab.run(
            0, words, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
        ) as process:
            out, err = process.communicate()
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def job(self, number: int) -> dict[str, str]:
        """What Slurm knows of a job."""
        told = self.call("scontrol", "show", "job", number).stdout
        return dict(word.split("=", 1) for word in told.split() if "=" in word)

    def ended(self, number: int, seconds: float = 120.0) -> dict[str, str]:
        """Wait until a job has ended; what Slurm knows of it."""
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        until(lambda: self.job(number).get("JobState") in over, lambda: f"the end of {self.job(number)}", seconds)
        return self.job(number)

    def said(self) -> str:
        """What all of them said: for messages."""
        logs = [path for path in sorted(self.at.iterdir()) if path.suffix == ".log" or path.name == "log"]
        return "\n".join(f"== {path.name}\n{path.read_text()[-2000:]}" for path in logs)

    def _start(self, host: int, *words: object) -> None:
        self.lab.run(host, words, env=self.env, stdout=self._log, stderr=self._log)

    def _idle(self) -> bool:
        told = self.call("sinfo", "--noheader", "--format=%D %t").stdout
        return told.split() == [str(len(self.lab.hosts)), "idle"]
