"""Several machines on one: network namespaces joined by veth pairs to a bridge.

    with Lab(3, rate=1000) as lab:
        process = lab.run(1, [sys.executable, "script.py"])
        lab.cut(1)          # its link goes silent: no reset, no carrier lost, packets are simply gone
        lab.heal(1)
        lab.kill_all(2)     # SIGKILL to all that runs on host 2

Every host has a namespace of its own (loopback, `eth0` with an IPv4 and an IPv6 address, a host name that all hosts
resolve); the bridge has one, too, so nothing of this machine's own network is touched or seen. A rate is a `tc tbf` in
both directions: on the host's `eth0` (what it sends) and on the bridge's port (what it gets, when several send to it
at once).

Nothing outlives a lab: `close` ends what it started and removes what it made, also after a failure. A lab that was
itself killed leaves namespaces that carry its pid; the next lab finds that nobody has that pid, and removes them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

__all__ = ["Host", "Lab", "NoLab", "payload", "remains", "why_not"]

#: Every process of a lab has this in its environment, with the lab's name.
MARK = "HOLDFAST_LAB"
_NAMES = Path("/run/netns")
_NAME = re.compile(r"hflab-(\d+)-(\d+)-[0-9a-f]+-(?:switch|\d+)")
#: What a process on a host runs through: its host name, and its own /etc/hosts. (`ip netns exec` gave it mounts apart.)
_ARRIVE = 'echo "$0" > /proc/sys/kernel/hostname && mount --bind "$1" /etc/hosts && shift && exec "$@"'
#: Bytes of a full frame that are a program's own; the rest are Ethernet's, IP's and TCP's headers.
_SHARE = 1448 / 1514
#: A bucket that no packet fits into: all are dropped.
_WALL = "tbf rate 8bit burst 10 limit 1"


class NoLab(RuntimeError):
    """A lab cannot be made, or a command for it failed. Says which, and what it said."""


class Host(NamedTuple):
    """One of the lab's machines."""

    number: int
    namespace: str
    name: str  #: what `hostname` says there
    address: str  #: IPv4
    address6: str


def payload(mbit: float) -> float:
    """Bytes per second of a program's own that a link of this rate can carry over TCP, by arithmetic."""
    return mbit * 1e6 / 8 * _SHARE


@functools.cache
def why_not() -> str:
    """Why there can be no lab on this machine; empty when there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc", "sysctl", "unshare"):
        if shutil.which(tool) is None:
            return f"there is no `{tool}` on this machine (Debian: apt install iproute2 procps util-linux)"
    try:
        Lab(1, rate=100).close()
    except NoLab as error:
        return f"this machine lets nobody make network namespaces with a bridge and a rate: {error}"
    return ""


class Lab:
    """`hosts` machines. Resources: `close`, or leaving the `with` block, ends and removes everything."""

    def __init__(self, hosts: int, *, rate: float | None = None) -> None:
        """`rate` is in Mbit/s, for every host; None: as fast as the kernel copies."""
        _sweep()
        self.name = f"hflab-{os.getpid()}-{_born(os.getpid())}-{secrets.token_hex(3)}"
        self.hosts = [_host(self.name, number) for number in range(hosts)]
        self.directory = Path(tempfile.gettempdir()) / self.name
        self._switch = f"{self.name}-switch"
        self._rates: dict[int, float | None] = dict.fromkeys(range(hosts), rate)
        self._started: dict[int, list[subprocess.Popen[Any]]] = {number: [] for number in range(hosts)}
        try:
            self.directory.mkdir()
            names = [f"{address} {host.name}\n" for host in self.hosts for address in (host.address, host.address6)]
            (self.directory / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n" + "".join(names))
            _ip(f"netns add {self._switch}")
            # The bridge is a switch and nothing else: it takes no part in what it passes on.
            _inside(self._switch, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1")
            _batch(self._switch, ["link add bridge type bridge forward_delay 0", "link set bridge up"])
            for host in self.hosts:
                self._plug(host)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _plug(self, host: Host) -> None:
        """One more machine, with a cable to the switch."""
        _ip(f"netns add {host.namespace}")
        _batch(host.namespace, [
            "link set lo up",
            f"link add eth0 type veth peer name port{host.number} netns {self._switch}",
            f"address add {host.address}/24 dev eth0",
            f"address add {host.address6}/64 dev eth0 nodad",
            "link set eth0 up",
        ])  # fmt: skip
        _batch(self._switch, [f"link set port{host.number} master bridge", f"link set port{host.number} up"])
        self.rate(host.number, self._rates[host.number])

    # ------------------------------------------------------------ processes

    def run(self, host: int, argv: Sequence[object], **options: Any) -> subprocess.Popen[Any]:
        """Start a process on this host. `options` are those of Popen."""
        at = self.hosts[host]
        env: Mapping[str, str] = options.pop("env", None) or os.environ
        arriving = ["unshare", "--uts", "sh", "-c", _ARRIVE, at.name, self.directory / "hosts"]
        command = ["ip", "netns", "exec", at.namespace, *map(str, [*arriving, *argv])]
        options.setdefault("stdin", subprocess.DEVNULL)
        process: subprocess.Popen[Any] = subprocess.Popen(command, env={**env, MARK: self.name}, **options)
        self._started[host].append(process)
        return process

    def pids(self, host: int) -> list[int]:
        """The processes on this host that come from this lab, oldest first."""
        there = subprocess.run(
            ["ip", "netns", "pids", self.hosts[host].namespace], capture_output=True, text=True, check=False
        )
        descended = {pid for process in self._started[host] for pid in _family(process.pid)}
        mine = [pid for pid in map(int, there.stdout.split()) if pid in descended or _marked(pid, self.name)]
        return sorted(mine, key=_born)

    def kill_all(self, host: int) -> int:
        """SIGKILL to all that runs on this host, the oldest (parents) first; how many there were."""
        killed = 0
        deadline = time.monotonic() + 10.0
        while pids := self.pids(host):  # one that was being forked is found on the next look
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
            for process in self._started[host]:
                process.poll()
            if time.monotonic() > deadline:
                raise NoLab(f"processes {pids} on {self.hosts[host].name} do not die of SIGKILL")
        return killed

    # ------------------------------------------------------------ cables

    def cut(self, host: int, way: str = "both") -> None:
        """From now on nothing of this host arrives anywhere (`way` "out"), nothing arrives at it ("in"), or both.

        Nobody is told: both ends keep their carrier and their addresses, and no connection is reset.
        """
        if way not in ("both", "in", "out"):
            raise ValueError(f'way is "both", "in" or "out", not {way!r}')
        if way == "both":
            _batch(self._switch, [f"link set port{host} nomaster"])
        if way == "out":
            _inside(self.hosts[host].namespace, *f"tc qdisc replace dev eth0 root {_WALL}".split())
        if way == "in":
            _inside(self._switch, *f"tc qdisc replace dev port{host} root {_WALL}".split())

    def heal(self, host: int) -> None:
        """Its link works again, at its rate."""
        _batch(self._switch, [f"link set port{host} master bridge"])
        self.rate(host, self._rates[host])

    def rate(self, host: int, mbit: float | None) -> None:
        """From now on this host's link has this rate (Mbit/s) in each direction; None: no limit."""
        self._rates[host] = mbit
        for namespace, device in ((self.hosts[host].namespace, "eth0"), (self._switch, f"port{host}")):
            if mbit is None:  # there may be none to remove
                command = ["ip", "netns", "exec", namespace, "tc", "qdisc", "del", "dev", device, "root"]
                subprocess.run(command, capture_output=True, check=False)
            else:
                # 2 ms in the bucket: enough for a late timer. The queue holds 10 ms, as a card's or a switch's does;
                # at low rates what one program sends in one go.
                burst, queue = max(1 << 15, int(mbit * 250)), max(1 << 17, int(mbit * 1250))
                shaped = f"tbf rate {int(mbit * 1e6)}bit burst {burst} limit {queue + burst}"
                _inside(namespace, *f"tc qdisc replace dev {device} root {shaped}".split())

    def shut(self, host: int, port: int) -> None:
        """From now on whoever calls this port of the host hears nothing, as if a firewall dropped what comes in.

        What the host itself calls is not touched. (Its replies go nowhere: that needs no packet filter.)
        """
        _batch(self.hosts[host].namespace, [f"rule add ipproto tcp sport {port} blackhole"])

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """End every process and remove every namespace of this lab."""
        for host in self.hosts:
            with contextlib.suppress(NoLab):
                self.kill_all(host.number)
            for process in self._started[host.number]:
                process.kill()
                process.wait()
        _remove(self.name)


def remains(name: str) -> list[str]:
    """What is left of the lab of this name: its namespaces, its directory, and processes that it started."""
    spaces = [path.name for path in _spaces() if path.name.startswith(f"{name}-")]
    spaces += [str(path) for path in Path(tempfile.gettempdir()).glob(name)]
    return spaces + [f"process {entry.name}" for entry in Path("/proc").iterdir() if _marked(entry.name, name)]


def _host(lab: str, number: int) -> Host:
    return Host(number, f"{lab}-{number}", f"host{number}", f"10.89.0.{number + 1}", f"fd89::{number + 1:x}")


def _sweep() -> None:
    """Remove what labs left whose processes were killed."""
    for path in _spaces():
        if (found := _NAME.fullmatch(path.name)) and _born(int(found[1])) != int(found[2]):
            with contextlib.suppress(NoLab):  # another lab may be at it
                _remove(path.name.rpartition("-")[0])


def _remove(lab: str) -> None:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _marked(entry.name, lab):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(entry.name), signal.SIGKILL)
    for path in _spaces():
        if path.name.startswith(f"{lab}-"):
            _ip(f"netns del {path.name}")
    shutil.rmtree(Path(tempfile.gettempdir()) / lab, ignore_errors=True)


def _spaces() -> list[Path]:
    return sorted(_NAMES.iterdir()) if _NAMES.is_dir() else []


def _marked(pid: int | str, lab: str) -> bool:
    """Was this process started by the lab of this name? (Whatever became of its parents.)"""
    try:
        return f"{MARK}={lab}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _born(pid: int) -> int:
    """When a process was started, in ticks; 0 when there is none. With the pid, nobody else's name."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0


def _family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        found = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return [pid]
    return [pid, *(other for child in found for other in _family(child))]


def _ip(words: str) -> None:
    _command(["ip", *words.split()])


def _inside(namespace: str, *words: str) -> None:
    _command(["ip", "netns", "exec", namespace, *words])


def _batch(namespace: str, lines: Sequence[str]) -> None:
    """Several `ip` commands in one namespace, by one process."""
    _command(["ip", "-n", namespace, "-batch", "-"], "\n".join(lines) + "\n")


def _command(words: Sequence[str], text: str | None = None) -> None:
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        what = " ".join(words) + (f" <<< {text!r}" if text else "")
        raise NoLab(f"`{what}` failed: {(done.stderr or done.stdout).strip()}")
