"""What the system says about processes: /proc, and nothing kept."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["alive", "of_run", "state"]

_FORKSERVER = b"holdfast.hosts.forkserver"


def state(pid: int) -> str:
    """The process's state letter (R, S, D, T, t, Z), or "" when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return ""
    # The name before the state is in brackets and may hold anything, brackets included.
    return text[text.rfind(b")") + 2 : text.rfind(b")") + 3].decode()


def alive(pid: int) -> bool:
    """Whether there is a process of this number that is not a zombie."""
    return state(pid) not in ("", "Z", "X")


def of_run(directory: Path) -> Iterator[int]:
    """Processes that were started for the run in `directory`: nurseries and the workers they forked."""
    wanted = os.fsencode(directory.resolve())
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if _FORKSERVER in words and b"--run" in words and words[words.index(b"--run") + 1] == wanted:
                yield int(entry.name)
