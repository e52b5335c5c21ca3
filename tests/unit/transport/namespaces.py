"""Two hosts that are real to everything but the electrician: network namespaces joined by veth pairs of given rates.

A namespace here has no name. It is held by a process that ends when its input does, so it is gone when the test process
is, however that ended, and so are its links. What is started inside dies with the test, too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.unit.cli.launched import ENVIRONMENT

_TOOLS = ("ip", "tc", "unshare", "nsenter", "setpriv")


def missing() -> str:
    """Why there can be no namespaces here; "" if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if absent := [tool for tool in _TOOLS if not shutil.which(tool)]:
        return f"network namespaces need {', '.join(absent)} (Debian: iproute2, util-linux)"
    done = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, text=True, check=False)
    return f"no network namespace can be made: {done.stderr.strip()}" if done.returncode else ""


class Namespace:
    """A host."""

    def __init__(self) -> None:
        hold = "mount -t sysfs sysfs /sys && echo here && exec cat"  # /sys shows the interfaces of whoever mounts it
        command = ["unshare", "--net", "--mount", "sh", "-c", hold]
        self._holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "here\n"
        self.run("ip", "link", "set", "lo", "up")

    @property
    def pid(self) -> int:
        return self._holder.pid

    def inside(self, *words: object) -> list[str]:
        """The command line that runs these words inside."""
        enter = ["nsenter", f"--net=/proc/{self.pid}/ns/net", f"--mount=/proc/{self.pid}/ns/mnt"]
        return [*enter, f"--wd={os.getcwd()}", "setpriv", "--pdeathsig", "KILL", *map(str, words)]

    def run(self, *words: object) -> str:
        """Run to the end; what it wrote."""
        done = subprocess.run(self.inside(*words), capture_output=True, text=True, check=False, env=ENVIRONMENT)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def python(self, *words: object) -> subprocess.Popen[str]:
        """Start a Python inside."""
        command = self.inside(sys.executable, *words)
        return subprocess.Popen(
            command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def close(self) -> None:
        self._holder.communicate()


class TwoHosts:
    """Two namespaces, and between them one veth pair for each rate (Mbit/s). Its ends are net0, net1 ... in both.

    Host a is 10.77.N.1 on netN and host b is 10.77.N.2; if they are not `numbered`, they are fe80::N:1 and fe80::N:2.
    """

    def __init__(self, rates: Sequence[int], directory: Path, *, numbered: bool = True) -> None:
        self.a, self.b = Namespace(), Namespace()
        self.directory = directory
        self.listeners: list[subprocess.Popen[str]] = []
        for number, rate in enumerate(rates):
            name = f"net{number}"
            self.a.run("ip", "link", "add", name, "type", "veth", "peer", "name", name, "netns", self.b.pid)
            for host, last in ((self.a, 1), (self.b, 2)):
                address = f"10.77.{number}.{last}/24" if numbered else f"fe80::{number}:{last}/64"
                host.run("ip", "link", "set", name, "addrgenmode", "none")  # the kernel's own would come a second later
                host.run("ip", "address", "add", address, "dev", name, *([] if numbered else ["nodad"]))
                host.run("ip", "link", "set", name, "up")
                burst = max(16, rate // 2)  # kilobytes: what passes between two ticks of the kernel
                shaped = ["rate", f"{rate}mbit", "burst", f"{burst}kb", "latency", "20ms"]
                host.run("tc", "qdisc", "add", "dev", name, "root", "tbf", *shaped)

    def __enter__(self) -> TwoHosts:
        return self

    def __exit__(self, *_: object) -> None:
        for listener in self.listeners:
            listener.kill()
            listener.communicate()
        self.a.close()
        self.b.close()

    def listen(self, host: Namespace, where: str = "0.0.0.0") -> int:
        """Start `holdfast doctor --listen` there; its port."""
        token = self.directory / "token"
        listener = host.python("-m", "holdfast.cli.main", "doctor", "--listen", where, "--token-file", token)
        self.listeners.append(listener)
        assert listener.stdout is not None
        for line in listener.stdout:
            if line.startswith("listening on "):
                return int(line.split()[2].rpartition(":")[2])
        raise AssertionError(listener.communicate())
