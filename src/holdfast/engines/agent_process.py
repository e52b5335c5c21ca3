"""An agent process: one agent on one machine, as a plain object.

It knows nothing of Ray: a cluster's software holds it on the machine and passes calls on (a Ray actor is this class and
nothing else), tests hold it directly. Calls may come from several threads at once; `news` and `end` wait.
"""

from __future__ import annotations

import os
import platform
import select
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import IO

from holdfast.config.limits import CLUSTER
from holdfast.engines.guarded_command import TERMINATE, preface

__all__ = ["AgentProcess", "environment"]

#: Set by Ray for its own worker process, and wrong or confusing for ours. The number of threads is the run's to say.
_RAYS_OWN = frozenset(
    {"OMP_NUM_THREADS", "PYTHONBREAKPOINT", "RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_LD_PRELOAD_ON_WORKERS", "SPT_NOENV"}
)


class AgentProcess:
    """Runs one agent and hears it out.

    Resources: `end` kills the agent and all it started, and returns when they are gone; so does the death of the
    process that holds the post.
    """

    def __init__(self) -> None:
        self._pipe: IO[bytes] | None = None  #: to the guard; its end of file ends everything
        self._lines: deque[str] = deque()
        self._left_out = 0
        self._code: int | None = None
        self._changed = threading.Condition()

    def begin(self, words: Sequence[str], secret: bytes, folder: str = "") -> tuple[int, str]:
        """Start the agent with this machine's Python; its pid (0 if there is none) and the name of the machine.

        It runs in `folder`, where the machine has that.
        """
        if self._pipe is not None:
            raise RuntimeError("this post has its agent")
        hear, tell = os.pipe()
        status = os.fdopen(hear, "rb", buffering=0)
        guard = [sys.executable, "-P", "-m", "holdfast.engines.guarded_command", "--status", str(tell)]
        try:
            process = subprocess.Popen(
                [*guard, sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, bufsize=0, pass_fds=[tell], start_new_session=True,
                env=environment(os.environ), cwd=folder if os.path.isdir(folder) else None,
            )  # fmt: skip
        finally:
            os.close(tell)
        assert process.stdin is not None
        assert process.stdout is not None
        self._pipe = process.stdin
        self._write(preface(secret))
        failed = process.wait()  # not the guard, which is nobody's child, but what it came from
        pid = _word(status, 0)
        heard = (process.stdout, status, failed or -signal.SIGKILL)
        threading.Thread(target=self._listen, args=heard, name="agent's output", daemon=True).start()
        return pid, platform.node()

    def news(self, patience: float) -> tuple[list[str], int | None]:
        """Lines that nobody has had yet, and the exit code once all of them were given; waits when there are none."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._code is not None, patience)
            lines, size = [], 0
            if self._left_out:
                lines.append(f"({self._left_out} lines are left out here: they came faster than they could be carried)")
                self._left_out = 0
            while self._lines and size < CLUSTER.answer_bytes:
                lines.append(self._lines.popleft())
                size += len(lines[-1]) * 4
            return lines, None if self._lines else self._code

    def leave(self) -> None:
        """Ask the agent to leave the run (SIGTERM)."""
        self._write(TERMINATE)

    def end(self) -> None:
        """Kill the agent and whatever it started."""
        if self._pipe is not None:
            self._pipe.close()
            with self._changed:
                self._changed.wait_for(lambda: self._code is not None)

    def _write(self, data: bytes) -> None:
        try:
            if self._pipe is not None and not self._pipe.closed:
                self._pipe.write(data)
        except BrokenPipeError:
            pass  # it has ended already; its output says why

    def _listen(self, output: IO[bytes], status: IO[bytes], otherwise: int) -> None:
        """Read until the guard says how it ended; what was written before that is there to be read.

        A guard that ended without a word was killed itself, or never began: then `otherwise` is the code.
        """
        poll, rest = select.poll(), b""
        for stream in (output, status):
            poll.register(stream, select.POLLIN)
        os.set_blocking(output.fileno(), False)
        ended = quiet = False
        while not ended:
            ended = any(fd == status.fileno() for fd, _ in poll.poll())
            while data := output.read(1 << 16):
                *whole, rest = (rest + data).split(b"\n")
                rest = rest[:CLUSTER.line_text]
                self._take(whole)
            if data == b"" and not quiet:  # whoever could write is gone
                poll.unregister(output)
                quiet = True
        if rest:
            self._take([rest])
        code = _word(status, otherwise)
        output.close()
        status.close()
        with self._changed:
            self._code = code
            self._changed.notify_all()

    def _take(self, lines: Sequence[bytes]) -> None:
        with self._changed:
            self._lines.extend(line[:CLUSTER.line_text].decode(errors="replace").rstrip("\r") for line in lines)
            while len(self._lines) > CLUSTER.lines:
                self._lines.popleft()
                self._left_out += 1
            self._changed.notify_all()


def _word(status: IO[bytes], otherwise: int) -> int:
    data = status.read(4)
    return int.from_bytes(data, "little", signed=True) if data else otherwise


def environment(ours: Mapping[str, str]) -> dict[str, str]:
    """The agent's environment: that of the process which holds the post, without what is only about that process."""
    return {name: value for name, value in ours.items() if name not in _RAYS_OWN} | {"PYTHONUNBUFFERED": "1"}
