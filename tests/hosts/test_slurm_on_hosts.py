"""`--on slurm` on a real Slurm with three nodes: the job trains, and its weights are those of one process."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.lab import Lab
from tests.hosts.slurm import Slurm, why_not
from tests.process.harness import TRAIN, golden, until

pytestmark = [pytest.mark.process, pytest.mark.chaos, pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with Lab(3) as lab, Slurm(lab) as made:
        yield made


class Job:
    """A run that was submitted."""

    def __init__(self, slurm: Slurm, tmp_path: Path, *options: object, script: object = TRAIN, args: str = "normed"):
        self.dir = tmp_path / "run"
        words = ["--on", "slurm", "--hosts", 3, "--workers", 1, "--dir", self.dir, *options, script, *args.split()]
        done = slurm.call(sys.executable, "-m", "holdfast.cli.main", "run", *words, cwd=tmp_path)
        found = re.match(r"submitted to Slurm as job (\d+); ", done.stdout)
        assert found is not None, done
        self.number = int(found[1])

    @property
    def summary(self) -> dict[str, Any]:
        return dict(json.loads((self.dir / "summary.json").read_text()))

    @property
    def story(self) -> str:
        path = self.dir / "story.jsonl"
        return path.read_text() if path.exists() else ""

    @property
    def said(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()}" for path in sorted(self.dir.glob("slurm-*")))


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_weights_are_those_of_one_process(slurm: Slurm, tmp_path: Path, tls: bool) -> None:
    job = Job(slurm, tmp_path, *(["--tls"] if tls else []))
    told = slurm.ended(job.number)
    assert (told["JobState"], told["ExitCode"]) == ("COMPLETED", "0:0"), job.said
    assert job.summary["weights_sha256"] == golden("normed", 4)
    assert told["NumNodes"] == "3" and all(f"({host.name}) joined" in job.story for host in slurm.lab.hosts[1:])
    assert not (job.dir / "token").exists() and not (job.dir / "credentials").exists()


def test_an_agent_that_is_killed_is_started_again(slurm: Slurm, tmp_path: Path) -> None:
    job = Job(slurm, tmp_path, args=f"normed --epochs 6 --linger {tmp_path}/go")
    until(lambda: job.story.count(") joined") == 2, lambda: job.said, 60.0)
    words = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in slurm.lab.pids(2)}
    agent = max(pid for pid, said in words.items() if b"holdfast.cli.main\0join\0" in said and b"bash" not in said)
    os.kill(agent, signal.SIGKILL)
    until(lambda: job.story.count(") joined") == 3, lambda: job.said, 60.0)
    (tmp_path / "go").touch()
    told = slurm.ended(job.number)
    assert told["JobState"] == "COMPLETED", job.said
    assert job.summary["weights_sha256"] == golden("normed", 4, "--epochs", "6")


def test_a_job_that_is_cancelled_ends_in_order(slurm: Slurm, tmp_path: Path) -> None:
    job = Job(slurm, tmp_path, args=f"normed --epochs 6 --linger {tmp_path}/go")
    until(lambda: job.story.count(") joined") == 2, lambda: job.said, 60.0)
    assert slurm.call("scancel", job.number).returncode == 0
    slurm.ended(job.number)
    until((job.dir / "summary.json").exists, lambda: job.said)
    assert job.summary["outcome"] == "stopped", job.said


def test_the_exit_code_of_the_run_is_that_of_the_job(slurm: Slurm, tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("raise ValueError('as it was told')\n")
    told = slurm.ended(Job(slurm, tmp_path, script=script, args="").number)
    assert (told["JobState"], told["ExitCode"]) == ("FAILED", "1:0")
