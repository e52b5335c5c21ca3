"""A run's scratch directory: short-lived files of its processes, all in one place that can be swept.

The processes that fetch data pass tensors on through sockets, which `multiprocessing` puts into a temporary
directory of its own; a process that is killed leaves that behind. So a run has one such directory, named in
its run.json, and whoever closes the run removes it. It is not in the run's directory, because the address of
a socket may be no longer than 107 bytes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile

__all__ = ["make", "remove"]

_PREFIX = "holdfast-"


def make() -> str:
    """A new directory, for us only; empty where none can be made, and then every process sees to itself."""
    with contextlib.suppress(OSError):
        return tempfile.mkdtemp(prefix=_PREFIX)
    return ""


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
