"""The log shipper: brings what a host's processes write into the run's directory, which is on the launcher's machine.

Files that only grow (logs, stacks, audit trails) are sent piece by piece as they grow; reports as they are. Nothing is
read twice, nothing is sent while much is waiting to be sent already, and what the disk does not give is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.config.limits import AGENT

__all__ = ["LogShipper", "log_place"]

_PATTERNS = ("logs/*.log", "logs/*.stack", "hang-*.txt", "audit/worker-*.txt")
_NAMES = re.compile(
    r"(?:logs/worker-(\d+)\.(?:log|stack)|hang-(\d+)\.txt|audit/worker-(\d+)\.txt|logs/forkserver\.log)"
)


def log_place(name: str, host: int) -> tuple[str, int | None] | None:
    """Where a file of a host goes in the run's directory, and whose it is; None: nowhere. Names come from outside.

    >>> log_place("logs/worker-3.log", 1), log_place("logs/forkserver.log", 1), log_place("../x", 1)
    (('logs/worker-3.log', 3), ('logs/forkserver-1.log', None), None)
    """
    match = _NAMES.fullmatch(name)
    if match is None:
        return None
    number = next((group for group in match.groups() if group is not None), None)
    if number is None:
        return f"logs/forkserver-{host}.log", None
    return name, int(number)


class LogShipper:
    """Remembers how much of each file has been sent. `send(name, data)` says whether it was taken."""

    def __init__(self, root: Path, send: Callable[[str, bytes], bool]) -> None:
        self._root, self._send = root, send
        self._sent: dict[str, int] = {}

    def collect(self, most: int = AGENT.log_round) -> None:
        """Send what is new, up to `most` bytes."""
        for path in self._files():
            name = path.relative_to(self._root).as_posix()
            while most > 0:
                at = self._sent.get(name, 0)
                data = _read(path, at, min(AGENT.log_piece, most))
                if not data:
                    break
                if not self._send(name, data):
                    return
                self._sent[name] = at + len(data)
                most -= len(data)

    def _files(self) -> Iterator[Path]:
        for pattern in _PATTERNS:
            yield from sorted(self._root.glob(pattern))


def _read(path: Path, at: int, most: int) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(at)
            return file.read(most) or b""
    except OSError:  # it was removed meanwhile; what was sent of it stays
        return b""
