"""Requests as lines of JSON in the server's directory, with the id that the client was told: what went wrong, and how.

    {"time": 1763586700.1, "id": "b5c1-2f", "model": "lenet", "version": 3, "status": 500, "items": 1, "queue_ms": 0.2,
     "compute_ms": 4.1, "total_ms": 4.5, "reason": "The model raised ValueError for this request."}

Failures, refusals and slow answers always; everything with `--log-requests`. Refusals come in floods, so only some of
each second are written, and the next line says how many were left out (`left_out`). What a client has sent, a token or
a tensor, is never in here. Two files of a bounded size are kept, so the log cannot fill a disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

__all__ = ["NAME", "LoggedRequest", "RequestLog", "Selection"]

NAME = "requests.jsonl"
_SIZE = 32 << 20  # bytes of each of the two files
_PENDING = 1 << 20  # bytes that wait to be written


class LoggedRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line."""

    time: float
    id: str
    model: str = ""
    version: int = 0
    status: int
    items: int = 0
    queue_ms: float = 0.0
    compute_ms: float = 0.0
    total_ms: float
    reason: str = ""
    left_out: int = 0  #: refusals before this line that have none


class Selection:
    """Which requests are written. Pure.

    >>> selection = Selection(objective=0.05, everything=False, refusals=1)
    >>> selection.left_out(200, 0.01, now=0.0) is None, selection.left_out(200, 0.1, now=0.0)
    (True, 0)
    >>> [selection.left_out(503, 0.0, now=now) for now in (1.0, 1.1, 1.2, 2.1)]
    [0, None, None, 2]
    """

    def __init__(self, objective: float, everything: bool, refusals: int = 20) -> None:
        """`refusals` of every second are written."""
        self._objective, self._everything, self._refusals = objective, everything, refusals
        self._second, self._written, self._left_out = -1, 0, 0

    def left_out(self, status: int, seconds: float, now: float) -> int | None:
        """How many refusals before this request have no line; None: this one has none either."""
        if not self._everything:
            if status < 400 and seconds <= self._objective:
                return None
            if 400 <= status < 500 or status == 503:
                if int(now) != self._second:
                    self._second, self._written = int(now), 0
                if self._written >= self._refusals:
                    self._left_out += 1
                    return None
                self._written += 1
        before, self._left_out = self._left_out, 0
        return before


class RequestLog:
    """The files. `add` keeps a line until the next `flush`; a disk that takes nothing is said once, and costs lines."""

    def __init__(self, directory: Path, selection: Selection, complain: Callable[[str], None]) -> None:
        self._path, self._selection, self._complain = directory / NAME, selection, complain
        self._lines: list[bytes] = []
        self._bytes = self._lost = 0
        self._size = self._path.stat().st_size if self._path.exists() else 0
        self._encode = msgspec.json.Encoder().encode

    def wants(self, status: int, seconds: float, now: float) -> int | None:
        """See `Selection.left_out`; ask before a line is made."""
        return self._selection.left_out(status, seconds, now)

    def add(self, request: LoggedRequest) -> None:
        """Keep a line."""
        if self._bytes > _PENDING:
            self._lost += 1
            return
        for number in ("queue_ms", "compute_ms", "total_ms"):
            if value := getattr(request, number):
                setattr(request, number, round(value, 3))
        self._lines.append(self._encode(request) + b"\n")
        self._bytes += len(self._lines[-1])

    def flush(self) -> None:
        """Write what was kept."""
        if not self._lines:
            return
        data = b"".join(self._lines)
        count = len(self._lines)
        self._lines, self._bytes = [], 0
        try:
            if self._size + len(data) > _SIZE:
                os.replace(self._path, self._path.with_suffix(".1.jsonl"))
                self._size = 0
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self._size += os.write(descriptor, data)
            finally:
                os.close(descriptor)
        except OSError as error:
            if not self._lost:
                self._complain(f"{self._path} cannot be written ({error.strerror}): requests are not logged")
            self._lost += count
            return
        if self._lost:
            self._complain(f"{self._path}: {self._lost} requests are missing in it")
            self._lost = 0
