"""A run's scratch directory: short-lived files of its processes, all in one place that can be swept.

The processes that fetch data pass tensors on through sockets, which `multiprocessing` puts into a temporary
directory of its own; a process that is killed leaves that behind. So a run has one such directory, named in
its run.json, and whoever closes the run removes it. It is not in the run's directory, because the address of
a socket may be no longer than 107 bytes.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import tempfile

__all__ = ["choose", "make", "remove"]

_PREFIX = "holdfast-"


def choose() -> str:
    """A name for a new directory. It is written down before it is made, so that no kill can hide it."""
    return os.path.join(tempfile.gettempdir(), _PREFIX + secrets.token_hex(8))


def make(path: str) -> str:
    """Make it, for us only. Empty where that cannot be, and then every process sees to itself."""
    try:
        os.mkdir(path, 0o700)
    except OSError:
        return ""
    return path


def remove(path: object) -> bool:
    """Remove it with all that is in it; whether it was there. What is not one of ours is left alone."""
    if not isinstance(path, str) or not os.path.basename(path).startswith(_PREFIX):
        return False
    try:
        found = os.lstat(path)
    except OSError:
        return False
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return False
    shutil.rmtree(path, ignore_errors=True)
    return True
