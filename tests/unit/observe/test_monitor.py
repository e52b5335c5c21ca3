"""What the monitor write down of somebody who hangs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.config.limits import CrewConfig
from holdfast.dataplane.memory.board_snapshot import BoardPlan
from holdfast.observe.monitor import BoardMonitor
from holdfast.transport.processes import ProcessStat
from tests.unit.observe.rows import row


class Values:
    """Keeps reports."""

    def __init__(self, logs: Path) -> None:
        self.logs, self.written = logs, dict[str, str]()

    def write(self, name: str, text: str) -> bool:
        self.written[name] = text
        return True


def test_a_report_calls_a_server_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = Values(tmp_path)

    def stacks(worker: int, _: int) -> None:
        (tmp_path / f"worker-{worker}.stack").write_text('  File "train.py", line 5 in main\n')

    monitor: Any = BoardMonitor(
        CrewConfig(frozen_limit=1.0, hang_limit=3.0, hang_factor=2.0, idle_limit=9.0), values, stacks, lambda *_: None
    )
    rows = [row(0, waiting_for=2, step=7), row(2, unit_lane=0, unit_step=7, step=7)]
    monkeypatch.setattr(monitor, "_read", lambda: (rows, BoardPlan(0, 0, 0)))
    monkeypatch.setattr("holdfast.transport.processes.stat", lambda pid: ProcessStat("S"))

    async def look() -> None:
        for now in range(12):
            await monitor.look({0: 100, 2: 102}, {0}, float(now), {2})

    asyncio.run(look())
    lines = values.written["hang-2.txt"].splitlines()
    assert lines[0].startswith("Server 2 made no progress for ")
    assert "Worker 0 is at step 7 and waits for server 2." in lines
