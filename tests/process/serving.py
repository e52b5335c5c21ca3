"""A server of models as tests see it: a process that was started as users start it, and what its clients get."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["Answered", "Served"]

READY = 150.0  # seconds until a server has to be ready, also on a busy machine


class Answered:
    """An answer over HTTP."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


class Served:
    """`holdfast serve MODELS... --dir DIR OPTIONS`; ended with the block."""

    def __init__(self, *models: Path | str, directory: Path, options: tuple[str, ...] = ()) -> None:
        self.directory = directory
        command = [sys.executable, "-m", "holdfast.cli.main", "serve", *map(str, models), "--dir", str(directory)]
        self.process = subprocess.Popen(
            [*command, *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env=dict(os.environ),
        )  # fmt: skip
        self.output = ""

    def __enter__(self) -> Served:
        self.wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_ready(self) -> None:
        """Until it listens, or has ended."""
        until = time.monotonic() + READY
        while not self.addresses:
            if self.process.poll() is not None or time.monotonic() > until:
                self.process.kill()
                raise AssertionError(f"the server is not ready:\n{self.stop()}")
            time.sleep(0.02)

    @property
    def addresses(self) -> dict[str, str]:
        """Where it listens, by what."""
        try:
            found: dict[str, str] = json.loads((self.directory / "addresses.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return {}
        return found

    @property
    def port(self) -> int:
        """Of HTTP."""
        return int(self.addresses["http"].rpartition(":")[2])

    def ask(
        self, path: str, body: bytes | None = None, headers: dict[str, str] | None = None, method: str = ""
    ) -> Answered:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method or ("GET" if body is None else "POST"), path, body, headers or {})
            response = connection.getresponse()
            return Answered(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def replicas(self) -> list[int]:
        """The pids of processes that hold a model."""
        found = []
        for pid in _below(self.process.pid):
            try:
                title = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if b"holdfast serve: replica" in title:
                found.append(pid)
        return found

    def stop(self, number: int = signal.SIGTERM) -> str:
        """End it; all that it has printed."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            printed, _ = self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            printed, _ = self.process.communicate()
        self.output += printed or ""
        return self.output


def _below(pid: int) -> list[int]:
    """The pids of a process's children, and of theirs."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue
        for child in children:
            found += [int(child), *_below(int(child))]
    return found
