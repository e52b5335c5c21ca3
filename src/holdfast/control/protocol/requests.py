"""What may be asked of a going run, and where: the vocabulary of its control socket.

The socket lies in the run's directory. `control_client` asks, `control_socket` answers; both speak JSON.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

__all__ = ["Ask", "Scale", "Set", "Status", "short_address"]


class Status(msgspec.Struct, frozen=True, tag=True):
    """Who is in the crew, and how far are they?"""


class Scale(msgspec.Struct, frozen=True, tag=True):
    """Have this many workers, or servers. None: leave them as they are."""

    workers: int | None = None
    servers: int | None = None


class Set(msgspec.Struct, frozen=True, tag=True):
    """Have another value of what can be set while a run is going."""

    sync: str


Ask = Status | Scale | Set


@contextlib.contextmanager
def short_address(path: Path) -> Iterator[str]:
    """An address for the socket at `path`, however long that is (the system's limit is 107 bytes)."""
    if len(os.fsencode(path)) <= 107:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
