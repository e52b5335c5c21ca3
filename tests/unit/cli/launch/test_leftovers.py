"""Random kills of anybody, the launcher included: no process, socket or file is left. `make chaos` runs it."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.unit.cli.launched import Launched, children, gone, holdfast

pytestmark = [pytest.mark.process, pytest.mark.chaos]


@pytest.mark.parametrize("seed", range(50))
def test_nothing_is_left(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    seen: set[int] = set()
    with Launched(tmp_path, "--workers", str(chance.randint(1, 4)), script="steps=300 pace=0.01") as run:
        while not (run.dir / "control.sock").exists():
            time.sleep(0.01)
        time.sleep(chance.random() * 0.8)
        for _ in range(chance.randint(1, 3)):
            if run.process.poll() is not None:
                break
            tree = [run.process.pid, *children(run.process.pid)]  # launcher, forkserver, workers
            seen |= set(tree[1:])
            at = chance.choice([0, 1, 2, 2, 2])
            if at < len(tree):
                pid = tree[at] if at < 2 else chance.choice(tree[2:])
                number = chance.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP]) if at == 2 else signal.SIGKILL
                os.kill(pid, number)
            time.sleep(chance.random() * 0.3)
        run.end(60)
    assert all(gone(pid) for pid in seen)
    holdfast("status", run.dir)
    assert {path.name for path in run.dir.iterdir()} <= {"logs", "run.json", "story.jsonl", "summary.json"}
