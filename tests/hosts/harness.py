"""A run that is spread over the hosts of a lab: `holdfast run --listen` on host 0, `holdfast join` on the others.

    with Spread(lab, tmp_path, "normed", hosts=3) as run:
        run.at_step(20)
        run.kill(2)
        assert run.end() == 0
    assert run.sha256 == golden(...)

All that `tests.process.harness.Launch` looks at and waits for is here, too, and what it checks at the end: no process,
memory or file of the run is left on any host.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

from tests.hosts.lab import Lab
from tests.process.harness import MARK, TRAIN, Launch, Trace, environment, until

__all__ = ["Spread"]

_COMMAND = [sys.executable, "-m", "holdfast.cli.main"]


class Spread(Launch):
    """A going run. Leaving the block ends it on all hosts and looks for what it left."""

    PORT = 7077  # of a namespace where nobody else is

    def __init__(
        self, lab: Lab, tmp_path: Path, model: str, *options: object, hosts: int, workers: int = 1, args: str = "",
        joiners: tuple[str, ...] = (), ipv6: bool = False,
    ) -> None:  # fmt: skip
        """`hosts` of the lab take part from the beginning, each with `workers`; `joiners` are options of join."""
        self.lab, self.dir = lab, tmp_path / "run"
        first = lab.hosts[0]
        self._address = f"[{first.address6}]:{self.PORT}" if ipv6 else f"{first.address}:{self.PORT}"
        self.temp = Path(tempfile.mkdtemp(prefix="t-"))  # short: sockets go there
        self.mark = uuid.uuid4().hex
        self.trace = Trace(tmp_path / "trace")
        self._tmp_path, self._joiners = tmp_path, ("--workers", workers, "--patience", "10s", *joiners)
        self._shared = set(os.listdir("/dev/shm"))
        self._seen: set[int] = set()
        self._arena: tuple[int, int] | None = None
        self._files = []
        self.joined: dict[int, subprocess.Popen[bytes]] = {}  #: the newest `holdfast join` of each host
        self.shaken: set[int] = set()  #: hosts that were killed, cut off or told to leave: may miss the end of the run
        self._env = environment(**{MARK: self.mark, "TMPDIR": str(self.temp)})
        words = [TRAIN, model, "--trace", self.trace.path, *args.split()]
        listen = ["--listen", self._address, "--hosts", hosts, "--workers", workers]
        self.process = self._run(0, ["run", "--dir", self.dir, *listen, *options, *words])
        for host in range(1, hosts):
            self.join(host)

    def __exit__(self, kind: object, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        try:
            if kind is None:
                self.everybody_has_left()
                self.nothing_is_left()
        finally:
            for host in self.lab.hosts:
                self.lab.kill_all(host.number)
                self.lab.heal(host.number)
                self.lab.rate(host.number, None)
            for file in self._files:
                file.close()
            shutil.rmtree(self.temp, ignore_errors=True)

    def _run(self, host: int, words: list[object]) -> subprocess.Popen[bytes]:
        name = f"{words[0]}-{host}-{len(self._files)}"
        # Closed in __exit__: they live as long as the process that writes to them.
        files = [open(self._tmp_path / f"{stream}-{name}", "w") for stream in ("out", "err")]  # noqa: SIM115
        self._files += files
        return self.lab.run(
            host, [*_COMMAND, *words], stdout=files[0], stderr=files[1], env=self._env, cwd=self._tmp_path
        )

    # ------------------------------------------------------------ looking

    @property
    def said(self) -> str:
        """What the launcher and all joiners said: for messages."""
        logs = sorted(self._tmp_path.glob("err-*"))
        return "\n".join(f"== {log.name}\n{log.read_text()}" for log in logs)

    def on(self, host: int) -> list[int]:
        """The pids of the workers on this host that drive lanes now."""
        name = self.lab.hosts[host].name
        return [w["pid"] for w in self.status()["workers"] if w["host"] == name and w["state"] == "member"]

    def number(self, host: int) -> int:
        """The number that the run has given this machine: the newest, where it has come several times."""
        name = self.lab.hosts[host].name
        return max((there["host"] for there in self.status()["hosts"] if there["name"] == name), default=-1)

    def spread_over(self, hosts: int, seconds: float = 60.0) -> None:
        """Wait until so many hosts have a worker that drives lanes, and no change is under way."""

        def good(status: dict[str, object]) -> bool:
            workers = status["workers"]
            assert isinstance(workers, list)
            at = {worker["host_number"] for worker in workers if worker["state"] == "member"}
            return len(at) == hosts and not status["waiting_for"]

        self.wait(good, f"members on {hosts} hosts", seconds)

    # ------------------------------------------------------------ meddling

    def join(self, host: int) -> None:
        """`holdfast join` on this host."""
        token = self.dir / "token"
        until(lambda: token.exists() or self.process.poll() is not None, f"{token}\n{self.said}")
        self.shaken.discard(host)
        self.joined[host] = self._run(host, ["join", self._address, "--token-file", token, *self._joiners])

    def kill(self, host: int) -> None:
        """SIGKILL to all its processes."""
        self.shaken.add(host)
        self.lab.kill_all(host)

    def leave(self, host: int) -> None:
        """SIGTERM to its `holdfast join`: it leaves in order."""
        self.shaken.add(host)
        with contextlib.suppress(ProcessLookupError):
            self.joined[host].send_signal(signal.SIGTERM)

    def cut(self, host: int, way: str = "both") -> None:
        """Its link goes silent. A cut of host 0 is one for all."""
        self.shaken.update(self.joined if host == 0 else [host])
        self.lab.cut(host, way)

    def here(self, host: int) -> bool:
        """Is a `holdfast join` going on this host?"""
        return host in self.joined and self.joined[host].poll() is None

    # ------------------------------------------------------------ afterwards

    def everybody_has_left(self) -> None:
        """The run is over: whoever had a part in it ends by itself, and says that all is well."""
        for host, process in self.joined.items():
            code = until(lambda process=process: process.poll() is not None and (process.returncode or "0"),
                         f"join on host {host} to end\n{self.said}")
            assert code == "0" or host in self.shaken, f"join on host {host} ended with {code}\n{self.said}"
        for host in range(1, len(self.lab.hosts)):
            until(lambda host=host: not self.lab.pids(host), f"host {host} to be empty\n{self.said}")
        # What killed agents left is swept by whoever starts something next on that machine.
        sweep = "from holdfast.observe import agent_directory; agent_directory.sweep()"
        subprocess.run([sys.executable, "-c", sweep], env=self._env, check=True)
