"""Processes on several hosts, as the benchmarks start them: in the tests' lab, one process group per host.

The hosts are network namespaces of this machine (see tests/hosts/lab.py), so they share its cores, its clock and its
files, and nothing else: what they say to each other goes through their links, at the links' rate.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Failed, Process, environment, wait_until
from holdfast.control.protocol.requests import Status
from holdfast.control.shell.control_client import NotRunning, ask
from holdfast.errors import RunError
from tests.hosts.lab import Lab, payload, why_not

__all__ = ["GIGABIT", "HostCrew", "Lab", "congestion", "floor", "joins", "lab_of", "on_hosts", "peer_environment"]

GIGABIT = 1000.0  #: Mbit/s


@contextlib.contextmanager
def lab_of(hosts: int, rate: float | None) -> Iterator[Lab]:
    """A lab, or the reason why there is none."""
    if reason := why_not():
        raise Failed(f"no hosts to measure between: {reason}")
    with Lab(hosts, rate=rate) as lab:
        yield lab


@contextlib.contextmanager
def on_hosts(
    lab: Lab, commands: Mapping[int, Sequence[object]], log: Path, env: Mapping[str, str] | None = None
) -> Iterator[list[Process]]:
    """Run one command on each of these hosts, side by side; whatever is left on them at the end is killed."""
    with open(log, "ab") as output:
        running = [
            lab.run(
                host, command, stdout=output, stderr=subprocess.STDOUT, env=dict(env or environment()),
                cwd=log.parent, start_new_session=True,
            )
            for host, command in commands.items()
        ]  # fmt: skip
    try:
        yield running
    finally:
        for host in commands:
            lab.kill_all(host)
        for process in running:
            process.wait()


def peer_environment(**extra: str) -> dict[str, str]:
    """For gloo: which interface to use, as its documentation asks; one thread, as for everybody here."""
    return environment(GLOO_SOCKET_IFNAME="eth0", TP_SOCKET_IFNAME="eth0", **extra)


def floor(size: int, hosts: int, rate: float) -> float:
    """The least seconds in which `size` bytes can be summed over hosts whose links have this rate, by arithmetic.

    Every host must send and get 2 (n - 1) / n of them. Headers are counted: of a full frame, 1448 bytes of 1514 are
    the program's own.
    """
    return 2 * (hosts - 1) / hosts * size / payload(rate)


def congestion() -> str:
    """How TCP holds back on this machine: hosts of a lab have what the machine has."""
    return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()


def joins() -> bool:
    """Can this build of Holdfast spread over hosts? Where it cannot, peers are measured alone."""
    return importlib.util.find_spec("holdfast.cli.join") is not None


class HostCrew:
    """A going `holdfast run` on host 0 of a lab, which all other hosts have been told to join.

    Resources: leaving the `with` block kills what is left of it on all hosts.
    """

    PORT = 7077  # of a namespace where nobody else is

    def __init__(self, lab: Lab, script: str, *args: str, where: Path, options: Sequence[str] = ()) -> None:
        self.lab, self.directory, self.log = lab, where / "run", where / "run.log"
        self._where = where
        self._script = [script, *args]
        self._options = ["--workers", "1", "--hosts", str(len(lab.hosts)), *options]
        self.launcher: Process
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> HostCrew:
        listen = f"{self.lab.hosts[0].address}:{self.PORT}"
        command = [
            sys.executable, "-m", "holdfast.cli.main", "run", "--dir", self.directory, "--listen", listen,
            *self._options, *self._script,
        ]  # fmt: skip
        (self.launcher,) = self._stack.enter_context(on_hosts(self.lab, {0: command}, self.log))
        token = self.directory / "token"
        wait_until(lambda: token.exists() or self.launcher.poll() is not None, f"{token}")
        for host in self.lab.hosts[1:]:
            self.join(host.number)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def join(self, host: int) -> Process:
        """What a user does on another machine."""
        listen, token = f"{self.lab.hosts[0].address}:{self.PORT}", self.directory / "token"
        command = [sys.executable, "-m", "holdfast.cli.main", "join", listen, "--token-file", token, "--workers", "1"]
        log = self._where / f"join-{host}.log"
        (process,) = self._stack.enter_context(on_hosts(self.lab, {host: command}, log))
        return process

    def going(self) -> bool:
        """Is the launcher alive?"""
        return self.launcher.poll() is None

    def status(self) -> dict[str, Any]:
        """What `holdfast status --json` prints; empty while nobody answers."""
        try:
            return ask(self.directory, Status())
        except (NotRunning, RunError, OSError):
            return {}

    def members(self) -> list[dict[str, Any]]:
        """The workers that are in the crew now; none while nobody answers."""
        return [worker for worker in self.status().get("workers", ()) if worker["state"] == "member"]

    def summary(self) -> dict[str, Any]:
        """The run's summary, once it has ended."""
        tree: dict[str, Any] = json.loads((self.directory / "summary.json").read_text())
        return tree
