"""The agent's directory: its own, for as long as it has a part in a run elsewhere.

    TEMP/holdfast-N/    lock, logs/, script/ (if it was sent along), tmp/, hang-N.txt, audit/

What is worth keeping is brought to the run's own directory as it is written; the rest goes when the agent ends. An
agent that was killed leaves its agent directory; the lock, which nobody holds any more, says so, and the next command
on the machine that starts something sweeps them up.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from holdfast.errors import ResourceError
from holdfast.observe import scratch

__all__ = ["AgentDirectory", "sweep"]


class AgentDirectory:
    """Makes the directory. Resources: `close` removes it with all that is in it."""

    def __init__(self) -> None:
        self.path = Path(scratch.choose())
        self._lock = -1
        try:
            os.mkdir(self.path, 0o700)
            # Made under another name and locked before anybody can find it, so that no sweep takes it for left behind.
            self._lock = os.open(self.path / "lock.new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(self.path / "lock.new", self.path / "lock")
            self.logs.mkdir()
        except OSError as error:
            self.close()
            raise ResourceError(
                f"{self.path} cannot be made: {error.strerror}. Make room there, or set TMPDIR to another place."
            ) from None

    @property
    def logs(self) -> Path:
        """Where output of the workers goes."""
        return self.path / "logs"

    def write(self, name: str, text: str) -> bool:
        """Write a file whole; False when the disk does not take it."""
        try:
            (self.path / f".{name}.new").write_text(text)
            os.rename(self.path / f".{name}.new", self.path / name)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Remove it. May be called twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> AgentDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def sweep() -> list[str]:
    """Remove what killed agents of this user left; their paths."""
    removed = []
    for lock in Path(tempfile.gettempdir()).glob("holdfast-*/lock"):
        with contextlib.suppress(OSError):
            fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if scratch.remove(str(lock.parent)):
                    removed.append(str(lock.parent))
            finally:
                os.close(fd)
    return removed
