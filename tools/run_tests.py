"""Run all tests: first those that can share the machine, three at a time, then those with real processes.

    python tools/run_tests.py [PYTEST_OPTION...]

Tests with real processes measure and kill; next to others on a small machine they would measure the others. Those that
measure nothing and mostly wait for a process to start are marked `sharing`, and run with the first. Since they wait,
two at a time leave half of a machine with two cores idle.
Both passes always run, and the last line adds them up in the words of pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

NO_TESTS = 5  # pytest's exit status when nothing was selected
SHARED = "(not process or sharing) and not chaos"
PASSES = (
    ("tests that share the machine", ["-n", "3", "--dist", "worksteal", "-m", SHARED]),
    ("tests with the machine to themselves", ["-m", "process and not sharing and not chaos"]),
)


def main(options: list[str]) -> int:
    started, statuses, total = time.monotonic(), [], Counter[str]()
    with tempfile.TemporaryDirectory() as directory:
        golden = Path(directory) / "golden"  # what plain runs end with: see tests/process/harness.py
        golden.mkdir()
        environment = {**os.environ, "HOLDFAST_TEST_GOLDEN": str(golden)}
        # The tests start Python a thousand times: compiling Holdfast anew takes longer than loading it.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for title, selection in PASSES:
            print(f"-- {title}", flush=True)
            report = Path(directory) / "report.xml"
            report.unlink(missing_ok=True)
            pytest = [sys.executable, "-m", "pytest", "-q", "--no-header", f"--junitxml={report}"]
            statuses.append(subprocess.run([*pytest, *selection, *options], check=False, env=environment).returncode)
            if report.exists():
                total += counted(report)
    failed = [status for status in statuses if status not in (0, NO_TESTS)]
    said = [f"{total[word]} {word}" for word in ("failed", "error", "passed", "skipped") if total[word]]
    print(f"==== {', '.join(said) or 'no tests ran'} in {time.monotonic() - started:.1f}s ====", flush=True)
    return failed[0] if failed else 0 if total["passed"] else NO_TESTS


def counted(report: Path) -> Counter[str]:
    """How many tests of one pass ended in which way."""
    ends = Counter[str]()
    for case in ET.parse(report).iter("testcase"):
        end = {"failure": "failed", "error": "error", "skipped": "skipped"}
        ends[next((end[child.tag] for child in case if child.tag in end), "passed")] += 1
    return ends


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
