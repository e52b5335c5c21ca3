"""What the kernel says of processes: of ourselves, of children, and of one that is gone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from holdfast.transport import processes
from holdfast.transport.processes import ProcessStat


def test_of_ourselves() -> None:
    found = processes.stat(os.getpid())
    assert (found.parent, found.session) == (os.getppid(), os.getsid(0))
    assert found.state in ("R", "S")
    assert os.getpid() in processes.numbers()


def test_with_which_words_one_was_started() -> None:
    script = "print(flush=True); input()"
    words = [sys.executable, "-c", script, "two words"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline()  # it is that program by now
        assert processes.command_line(child.pid)[1:] == [b"-c", script.encode(), b"two words", b""]
        child.kill()


def test_of_one_that_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert processes.stat(child.pid) == ProcessStat()
    assert processes.command_line(child.pid) == []


@pytest.mark.parametrize(("how", "code"), [("os._exit(3)", 3), ("os.kill(os.getpid(), 9)", -signal.SIGKILL)])
def test_a_zombie_says_how_it_ended(how: str, code: int) -> None:
    pid = os.fork()
    if not pid:
        exec(how)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    found = processes.stat(pid)
    os.waitpid(pid, 0)
    assert (found.state, os.waitstatus_to_exitcode(found.ended)) == ("Z", code)


def test_who_is_at_the_other_end() -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        assert processes.peer(one) == (os.getpid(), os.getuid())


def test_who_has_another_parent_than_it_thinks_ends_at_once() -> None:
    code = "from holdfast.transport.processes import die_with_parent; die_with_parent(1 << 30); print('went on')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
