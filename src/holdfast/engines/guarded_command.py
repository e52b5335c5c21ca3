"""A guarded command: runs on a machine for a holder elsewhere, and leaves nothing behind when the holder dies.

    whoever asked ══ pipe ══ guard ── the command ── whatever it starts

The pipe is the guard's standard input. First comes a secret, which becomes the command's own standard input; then the
pipe stays open. When it closes, however the other side ended, the guard kills the command and all that came of it:
as a subreaper it inherits every orphan, in whatever session it hides. A byte `t` on the pipe passes on a SIGTERM.
When the command ends, the rest is killed too. The descriptor named by `--status` is told the command's pid, and at
the end its exit status or minus its signal, four bytes each.

Why a process of its own, and nobody's child: PR_SET_PDEATHSIG speaks for the thread that forked, and the processes of
a cluster's own software fork from threads that come and go. And a Ray worker that ends kills its children, with a
signal that nobody can act on; a guard that died so would leave what it keeps.

Run as `python -m holdfast.engines.guarded_command --status FD COMMAND...`, by `agent_process.AgentProcess` only.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Sequence
from typing import IO

from holdfast.config.limits import PROCESS
from holdfast.transport import processes

__all__ = ["LONGEST_SECRET", "TERMINATE", "main", "preface"]

#: A pipe takes this much without anybody reading.
LONGEST_SECRET = 60_000
#: The byte that asks for a SIGTERM.
TERMINATE = b"t"

_PR_SET_CHILD_SUBREAPER = 36
_WORD = struct.Struct("<i")


def preface(secret: bytes) -> bytes:
    """What a guard must be told first."""
    if len(secret) > LONGEST_SECRET:
        raise ValueError(f"a secret of {len(secret)} bytes: at most {LONGEST_SECRET}")
    return _WORD.pack(len(secret)) + secret


def main(argv: Sequence[str] | None = None) -> int:
    """Keep the command that `argv` says, until it or the pipe ends."""
    parser = argparse.ArgumentParser(prog="holdfast.engines.guarded_command")
    parser.add_argument("--status", type=int, required=True, help="descriptor that is told the pid and the end")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    if os.fork():
        os._exit(0)  # so that the guard is nobody's child
    os.set_inheritable(options.status, False)
    with contextlib.suppress(BrokenPipeError), os.fdopen(options.status, "wb", buffering=0) as status:
        status.write(_WORD.pack(_guard(options.command, status)))
    return 0


def _guard(command: Sequence[str], status: IO[bytes]) -> int:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    size = _WORD.unpack(_read(_WORD.size))[0]
    secret = _read(size)
    me = os.getpid()
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, start_new_session=True, preexec_fn=lambda: processes.die_with_parent(me)
        )
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", file=sys.stderr)
        status.write(_WORD.pack(0))
        return os.EX_UNAVAILABLE
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda which, _: child.send_signal(which))
    status.write(_WORD.pack(child.pid))
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError), child.stdin as pipe:
        pipe.write(secret)
    _watch(child)
    _end_all(child)
    return child.wait()


def _watch(child: subprocess.Popen[bytes]) -> None:
    """Wait for the end of the command, or of whoever wants it."""
    pidfd = os.pidfd_open(child.pid)
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(pidfd, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll(1000 * PROCESS.orphans)}
        if pidfd in ready:
            return
        if 0 in ready:
            said = os.read(0, 64)
            if not said:
                return
            if TERMINATE in said:
                child.terminate()
        for orphan in _children():
            if orphan != child.pid:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(orphan, os.WNOHANG)


def _end_all(child: subprocess.Popen[bytes]) -> None:
    """Kill whatever is left, generation by generation: the children of the dead become ours."""
    while left := _children():
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # ours, and not reaped: the number is its own
        for pid in left:
            if pid == child.pid:
                child.wait()
            else:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)


def _children() -> list[int]:
    me = os.getpid()
    return [pid for pid in processes.numbers() if processes.stat(pid).parent == me]


def _read(size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (more := os.read(0, size - len(data))):
            os._exit(os.EX_NOINPUT)  # whoever wanted us is gone already
        data += more
    return data


if __name__ == "__main__":
    sys.exit(main())
