"""Launches runs of fake workers in a process of their own, as `holdfast run` would be, for the tests here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.observe.directory import recover

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
_LAUNCH = """
import sys
from holdfast.cli import main
from holdfast.cli.launch import launcher
keep = launcher.launch
launcher.launch = lambda resolved: keep(resolved, entry="tests.contract.fake_worker:main")
sys.exit(main.main(["run", *sys.argv[1:]]))
"""


def holdfast(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run another command."""
    command = [sys.executable, "-m", "holdfast.cli.main", *map(str, words)]
    return subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, check=False, cwd=cwd, timeout=60
    )


class Launched:
    """A going `holdfast run`."""

    def __init__(self, tmp_path: Path, *options: str, script: str = "", cwd: Path | None = None) -> None:
        path = tmp_path / "train.py"
        path.write_text("")
        self._at, self.dir = tmp_path, tmp_path / "run"
        where = [] if "--dir" in options or cwd else ["--dir", str(self.dir)]
        command = [sys.executable, "-c", _LAUNCH, *where, *options, str(path), *script.split()]
        self.process = subprocess.Popen(
            command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd
        )

    def __enter__(self) -> Launched:
        return self

    def __exit__(self, *_: object) -> None:
        going = self.process.poll() is None
        self.process.kill()
        self.process.communicate()
        if going:  # what it leaves then is swept up, as the next command would
            for run in self._at.rglob("run.json"):
                recover(run.parent)

    def end(self, timeout: float = 30) -> int:
        self.out, self.err = self.process.communicate(timeout=timeout)
        return self.process.returncode

    def status(self) -> dict[str, Any]:
        return json.loads(holdfast("status", self.dir, "--json").stdout or "{}")

    def wait(self, when: Callable[[dict[str, Any]], bool], timeout: float = 20) -> dict[str, Any]:
        """Wait until the status is as wanted."""
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            status = self.status()
            if status and when(status):
                return status
            time.sleep(0.05)
        raise AssertionError(f"not within {timeout} s: {self.status()}")

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.dir / "summary.json").read_text())

    @property
    def story(self) -> str:
        lines = (self.dir / "story.jsonl").read_text().splitlines()
        return "\n".join(json.loads(line)["sentence"] for line in lines)


def training(status: dict[str, Any]) -> bool:
    return bool(status["generation"]) and status["step"] > 2


def gone(pid: int, timeout: float = 5) -> bool:
    """Whether the process ends in time (a zombie nobody reaps counts as gone)."""
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def children(pid: int) -> list[int]:
    """The processes below this one."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *children(int(child))]
    return found


__all__ = ["ENVIRONMENT", "ROOT", "Launched", "children", "gone", "holdfast", "signal", "training"]
