"""Servers and machines that compute for them, for tests: `holdfast serve --listen`, `holdfast replica`."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from tests.process.harness import environment, until
from tests.process.serving import Served, _below

__all__ = ["Cable", "Machine", "end_servers", "gateway_of", "serve"]

_STARTED: list[Served] = []


def serve(library: Path, directory: Path, *options: str, listen: str = "127.0.0.1", **more: str) -> Served:
    """A server that lets machines in; it may not answer yet, but they can dial."""
    before = dict(os.environ)
    os.environ.update(more)
    try:
        served = Served(library, directory=directory, options=(*(("--listen", listen) if listen else ()), *options))
    finally:
        os.environ.clear()
        os.environ.update(before)
    _STARTED.append(served)
    until(lambda: (directory / "address").exists() or served.process.poll() is not None, "it listens", 60)
    assert (directory / "address").exists(), served.stop()
    return served


def end_servers() -> None:
    """End those that `serve` has started, also after a test that failed in their middle."""
    while _STARTED:
        _STARTED.pop().stop()


def gateway_of(served: Served) -> int:
    """The pid of its gateway; 0: there is none at the moment."""
    for pid in _below(served.process.pid):
        with contextlib.suppress(OSError):
            if b"gateway" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    return 0


class Machine:
    """`holdfast replica`, as on another machine; ended with the block."""

    def __init__(self, served: Served, temp: Path, *options: str, address: str = "", **more: str) -> None:
        self.temp = temp
        temp.mkdir(exist_ok=True)
        directory = served.directory
        place = address or (directory / "address").read_text().strip()
        secret = ["--credentials", directory / "credentials"]
        if not (directory / "credentials").exists():
            secret = ["--token-file", directory / "token"]
        self.log = temp / "output"
        with open(self.log, "ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.cli.main", "replica", place, *map(str, secret), *options],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment(TMPDIR=str(temp), **more),
            )  # fmt: skip

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    @property
    def pid(self) -> int:
        """Of the replica host."""
        return self.process.pid

    @property
    def pids(self) -> list[int]:
        """Of all its processes."""
        return [self.pid, *_below(self.pid)] if self.process.poll() is None else []

    @property
    def replicas(self) -> list[int]:
        """The pids of its replicas that hold a model."""
        found = []
        for pid in self.pids:
            with contextlib.suppress(OSError):
                if b"holdfast serve: replica" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    @property
    def output(self) -> str:
        """What it has said."""
        return self.log.read_text()

    def end(self, number: signal.Signals = signal.SIGTERM, seconds: float = 40.0) -> int:
        """End it; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(seconds)


class Cable:
    """Carries bytes to a server, until it is cut: the connections end then. It can be laid again."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._there = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._ends: list[socket.socket] = []
        self.laid = True
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Cable:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """End every connection; new ones are, too."""
        self.laid = False
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._ends.clear()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if not self.laid:
                    near.close()
                    continue
                far = socket.create_connection(self._there)
                self._ends += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
