"""A post and its guard: an agent's life on one machine, and that nothing is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.engines.agent_process import AgentProcess, environment
from holdfast.engines.guarded_command import LONGEST_SECRET, preface
from tests.process import harness
from tests.process.harness import ROOT, alive, until

environ = harness.environment
pytestmark = [pytest.mark.process, pytest.mark.sharing]


@pytest.fixture
def agent_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentProcess]:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    it = AgentProcess()
    yield it
    it.end()


def heard(agent_process: AgentProcess) -> tuple[list[str], int | None]:
    """Everything up to the end."""
    lines: list[str] = []
    code = None
    deadline = time.monotonic() + 20
    while code is None and time.monotonic() < deadline:
        some, code = agent_process.news(5.0)
        lines += some
    return lines, code


def line(agent_process: AgentProcess) -> str:
    lines, _ = agent_process.news(10.0)
    assert lines
    return lines[0]


@pytest.mark.parametrize("code", [0, 3])
def test_it_hears_the_agent_out(agent_process: AgentProcess, code: int) -> None:
    pid, host = agent_process.begin(["-c", f"import os; print(os.getpid()); print('caf\\xe9'); os._exit({code})"], b"")
    assert pid and host
    # Written through a buffer that nobody flushed, were it not for PYTHONUNBUFFERED.
    assert heard(agent_process) == ([str(pid), "café"], code)


def test_the_secret_comes_in_by_standard_input(agent_process: AgentProcess) -> None:
    agent_process.begin(["-c", "import sys; print(len(sys.stdin.buffer.read()))"], b"x" * LONGEST_SECRET)
    assert heard(agent_process) == ([str(LONGEST_SECRET)], 0)
    with pytest.raises(ValueError, match="a secret of 60001 bytes: at most 60000"):
        preface(b"x" * (LONGEST_SECRET + 1))


def test_it_runs_in_its_folder_where_there_is_one(agent_process: AgentProcess, tmp_path: Path) -> None:
    agent_process.begin(["-c", "import os; print(os.getcwd())"], b"", str(tmp_path))
    assert heard(agent_process) == ([str(tmp_path)], 0)
    elsewhere = AgentProcess()
    elsewhere.begin(["-c", "import os; print(os.getcwd())"], b"", "/no/such/folder")
    assert heard(elsewhere) == ([os.getcwd()], 0)


def test_a_signal_is_told_as_one(agent_process: AgentProcess) -> None:
    agent_process.begin(["-c", "import os; os.kill(os.getpid(), 11)"], b"")
    assert heard(agent_process)[1] == -signal.SIGSEGV


def test_leaving_is_asked_for_politely(agent_process: AgentProcess) -> None:
    agent_process.begin(
        ["-c", "import signal; signal.signal(15, lambda *_: (print('drained'), exit(0))); print('up'); signal.pause()"],
        b"",
    )
    assert line(agent_process) == "up"
    agent_process.leave()
    assert heard(agent_process) == (["drained"], 0)
    agent_process.leave()  # it is gone: nothing to ask


def test_what_the_agent_left_is_gone_before_its_end_is_told(agent_process: AgentProcess) -> None:
    agent_process.begin(["-c", _FAMILY + "os._exit(5)"], b"")
    lines, code = heard(agent_process)
    assert code == 5
    assert not [pid for pid in lines[0].split() if alive(int(pid))]


def test_the_end_ends_all(agent_process: AgentProcess) -> None:
    agent_process.begin(["-c", _FAMILY + "time.sleep(600)"], b"")
    pids = [int(word) for word in line(agent_process).split()]
    assert len(pids) == 3 and all(map(alive, pids))
    agent_process.end()
    assert not any(map(alive, pids))
    assert agent_process.news(0.0) == ([], -signal.SIGKILL)


def test_a_killed_holder_ends_all() -> None:
    """Also when whoever holds the post is killed together with its children, as Ray does it."""
    code = f"""
import os, time
from holdfast.engines.agent_process import AgentProcess
post = AgentProcess()
post.begin(["-c", {_FAMILY + "time.sleep(600)"!r}], b"")
print(post.news(10.0)[0][0], flush=True)
time.sleep(600)
"""
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environ())
    assert holder.stdout is not None
    pids = [int(word) for word in holder.stdout.readline().split()]
    assert len(pids) == 3
    children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
    for child in map(int, children):
        os.kill(child, signal.SIGKILL)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    until(lambda: not any(map(alive, pids)), "the agent's family ends with the holder")


def test_a_killed_guard_is_a_lost_agent(agent_process: AgentProcess) -> None:
    agent, _ = agent_process.begin(["-c", "import time; print('up'); time.sleep(600)"], b"")
    assert line(agent_process) == "up"
    guard = int(Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(guard, signal.SIGKILL)
    assert heard(agent_process) == ([], -signal.SIGKILL)
    until(lambda: not alive(agent), "the agent dies with its guard")


def test_more_lines_than_anybody_reads(agent_process: AgentProcess) -> None:
    agent_process.begin(["-c", "[print(n) for n in range(9000)]; print('x' * 5000)"], b"")
    until(lambda: agent_process._code is not None, "the agent's end")
    lines, code = heard(agent_process)
    assert code == 0
    assert lines[0] == "(7001 lines are left out here: they came faster than they could be carried)"
    assert lines[1] == "7001"
    assert lines[-1] == "x" * 2000


def test_a_command_that_does_not_exist(agent_process: AgentProcess) -> None:
    agent_process.begin(["/no/such/script.py"], b"")
    lines, code = heard(agent_process)
    assert code == 2 and "No such file" in lines[-1]
    with pytest.raises(RuntimeError, match="this post has its agent"):
        agent_process.begin(["-c", ""], b"")


def test_rays_own_variables_are_not_the_agents() -> None:
    kept = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "2", "RAY_ADDRESS": "a:1"}
    assert environment({**kept, "OMP_NUM_THREADS": "1", "RAY_JOB_ID": "1"}) == {**kept, "PYTHONUNBUFFERED": "1"}


#: Three generations, each in a session of its own, the middle one gone.
_FAMILY = """
import os, subprocess, sys, time
middle = subprocess.Popen(
    [sys.executable, "-c", "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid)"],
    stdout=subprocess.PIPE, text=True, start_new_session=True,
)
grandchild = middle.stdout.readline().strip()
middle.wait()
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(os.getpid(), child.pid, grandchild)
"""
