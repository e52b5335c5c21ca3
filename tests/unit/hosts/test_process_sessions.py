"""What a dead worker left in its session is ended; a stranger who got its number is not."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.hosts.process_sessions import end_sessions

pytestmark = [pytest.mark.process, pytest.mark.sharing]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_the_session_of_a_dead_leader_is_ended() -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL).pid)"
    leader = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    left = int(leader.communicate()[0])
    assert not gone(left)
    end_sessions([leader.pid])
    until = time.monotonic() + 5
    while not gone(left) and time.monotonic() < until:
        time.sleep(0.01)
    assert gone(left)


def test_a_stranger_with_the_same_number_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as stranger:
        try:
            end_sessions([stranger.pid])
            with pytest.raises(subprocess.TimeoutExpired):
                stranger.wait(0.1)
        finally:
            stranger.kill()
