"""A `holdfast join` in a process of its own, looked at from outside. See `harness` for the run it joins."""

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

from tests.process.harness import MARK, Launch, environment, marked, until

__all__ = ["LOOPBACK", "Joined", "joining", "listening"]

#: A run that can be joined on this machine.
LOOPBACK = ("--listen", "127.0.0.1:0")


def listening(run: Launch) -> str:
    """Wait until a run can be joined; its address."""
    until(lambda: (run.dir / "address").exists() or run.process.poll() is not None, f"an address\n{run.err}")
    return (run.dir / "address").read_text().strip()


class Joined:
    """An agent that is going. Leaving the block ends it and looks for what it left."""

    def __init__(
        self, tmp_path: Path, run: Launch, *options: object, workers: int = 1, name: str = "join", **more: str
    ) -> None:  # fmt: skip
        address = listening(run)
        self.mark = uuid.uuid4().hex
        self.temp = Path(tempfile.mkdtemp(prefix="j-"))
        tls = run.dir / "credentials"
        secret = ["--credentials", tls] if tls.exists() else ["--token-file", run.dir / "token"]
        words = ["join", address, *secret, "--workers", workers, *options]
        self._file = open(tmp_path / f"err-{name}", "w")  # noqa: SIM115  # closed in __exit__
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli.main", *map(str, words)], stdin=subprocess.DEVNULL,
            stdout=self._file, stderr=self._file, cwd=tmp_path,
            env=environment(**{MARK: self.mark, "TMPDIR": str(self.temp), **more}),
        )  # fmt: skip

    def __enter__(self) -> Joined:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.process.kill()
        killed = self.process.wait() == -signal.SIGKILL
        try:
            if kind is None:
                until(lambda: not marked(self.mark), f"the end of {marked(self.mark)}", 2.0)
                assert killed or not self.left(), f"temporary files are left: {self.left()}"
        finally:
            for pid in marked(self.mark):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._file.close()
            shutil.rmtree(self.temp, ignore_errors=True)

    @property
    def err(self) -> str:
        """What it said."""
        return Path(self._file.name).read_text()

    def left(self) -> list[str]:
        """Temporary files that are there now, but for torch's own cache."""
        return [name for name in os.listdir(self.temp) if not name.startswith("torchinductor_")]

    def processes(self) -> dict[int, str]:
        """Every live process of this machine's part, and its command."""
        return marked(self.mark)

    def end(self, seconds: float = 60.0) -> int:
        """Wait for its end; the exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end within {seconds:g} s\n{self.err}") from None

    def kill_all(self) -> int:
        """What a machine that loses its power does: SIGKILL to everything at once."""
        killed = 0
        while pids := list(marked(self.mark)):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
            self.process.wait()
        return killed


def joining(tmp_path: Path, run: Launch, number: int) -> Joined:
    """A machine that is this host of the run. In relaxed modes the first one holds the state."""
    joined = Joined(tmp_path, run, name=f"host{number}")
    run.told(f"host {number} (")
    return joined
