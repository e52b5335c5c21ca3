"""Ranks that other launchers start: torchrun, or a few lines that set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    with Ranks(tmp_path, "normed") as ranks:
        ranks.plain(3)
        ranks.at_step(20)
        ranks.kill(0)
        assert ranks.ends() == [-9, 0, 0]
    assert ranks.sha256 == golden(...)

As with `harness.Launch`, every wait is for a condition, and when the block is left nothing may be there any more.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.process.harness import TRAIN, Trace, environment, marked, until

__all__ = ["Ranks", "free_port"]

_MARK = "HOLDFAST_TEST_LAUNCH"
_KEPT = re.compile(r"checkpoints|model\.safetensors|run\.json|story\.jsonl|summary\.json|failure\.txt|logs")


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


class Ranks:
    """Processes of one run, and what they leave."""

    def __init__(self, tmp_path: Path, script: str | Path, *args: object) -> None:
        """`script` is a model of `train.py` (then its units are traced), or a script's path."""
        self._path = tmp_path
        self.dir = tmp_path / "run"
        self.trace = Trace(tmp_path / "trace")
        self.temp = Path(tempfile.mkdtemp(prefix="t-"))
        self.mark = uuid.uuid4().hex
        self.processes: list[subprocess.Popen[bytes]] = []
        self._script = [str(script), *map(str, args)]
        if not isinstance(script, Path):
            self._script = [str(TRAIN), script, "--trace", str(self.trace.path), *map(str, args)]

    def plain(self, size: int, **more: str) -> None:
        """As a shell script would: environment variables, and nothing else."""
        port = str(free_port())
        for rank in range(size):
            named = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            self.start(self.script(), **named, **{k: v.format(rank=rank) for k, v in more.items()})

    def script(self) -> list[str]:
        """The command of one rank."""
        return [sys.executable, *self._script]

    def torchrun(self, *options: object, run: Callable[..., Any] = subprocess.Popen, **more: str) -> None:
        """One torchrun process."""
        words = [sys.executable, "-m", "torch.distributed.run", *map(str, options)]
        self.start([*words, *self._script], run, OMP_NUM_THREADS="1", **more)

    def start(self, command: list[str], run: Callable[..., Any] = subprocess.Popen, **more: str) -> None:
        """Start one process of the launcher. `run` takes what Popen does."""
        own = {_MARK: self.mark, "TMPDIR": str(self.temp), "HOLDFAST_DIR": str(self.dir)}
        with open(self._path / f"said-{len(self.processes)}", "wb") as out:
            self.processes.append(
                run(command, cwd=self._path, env=environment(**own, **more), stdout=out, stderr=out)
            )

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.ends()
                # A helper ends when the last rank of its node has.
                until(lambda: not marked(self.mark), lambda: f"the end of {marked(self.mark)}", 2.0)
                odd = [path.name for path in self.dir.iterdir() if not _KEPT.fullmatch(path.name)]
                assert not odd, f"{self.dir} holds {odd}"
                torchs = ("torchinductor_", "torchelastic")
                files = [name for name in os.listdir(self.temp) if not name.startswith(torchs)]
                assert not files, f"temporary files are left: {files}"
        finally:
            for pid in marked(self.mark):
                os.kill(pid, signal.SIGKILL)
            for process in self.processes:
                process.wait()
            shutil.rmtree(self.temp, ignore_errors=True)

    # ------------------------------------------------------------ looking

    def said(self, number: int = 0) -> str:
        """What one of the processes, and all that it started, wrote."""
        return (self._path / f"said-{number}").read_text(errors="replace")

    @property
    def all_said(self) -> str:
        """What everybody wrote."""
        return "\n".join(f"--- {number}\n{self.said(number)}" for number in range(len(self.processes)))

    @property
    def story(self) -> list[str]:
        """The run's decisions, one sentence each."""
        return [json.loads(line)["sentence"] for line in (self.dir / "story.jsonl").read_text().splitlines()]

    @property
    def summary(self) -> dict[str, Any]:
        """What the run says at its end."""
        summary: dict[str, Any] = json.loads((self.dir / "summary.json").read_text())
        return summary

    @property
    def sha256(self) -> str:
        """The weights the run ended with."""
        return str(self.summary["weights_sha256"])

    def helpers(self) -> list[int]:
        """The processes that speak for a node."""
        return [
            pid for pid, words in marked(self.mark).items() if "holdfast.cli.launch.torchrun_helper" in words
        ]

    # ------------------------------------------------------------ waiting, meddling

    def at_step(self, step: int, seconds: float = 60.0) -> None:
        """Wait until a unit of this step was begun."""

        def reached() -> bool:
            assert any(process.poll() is None for process in self.processes), f"all have ended\n{self.all_said}"
            return self.trace.read().step >= step

        until(reached, f"step {step}", seconds)

    def ends(self, seconds: float = 90.0) -> list[int]:
        """Wait for the end of every process; their exit statuses."""
        try:
            return [process.wait(seconds) for process in self.processes]
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end within {seconds:g} s\n{self.all_said}") from None

    def kill(self, number: int, what: int = signal.SIGKILL) -> None:
        """Send a signal to one of the processes."""
        self.processes[number].send_signal(what)
