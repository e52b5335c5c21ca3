"""Stacks as text, reduced to the lines a user wrote. Pure: text in, text out.

Both kinds of stack that Python writes are read: tracebacks (innermost frame last) and the dumps of
`faulthandler` (innermost frame first).
"""

from __future__ import annotations

import os
import re
import sysconfig
from pathlib import Path
from typing import NamedTuple

__all__ = ["StackFrame", "innermost", "user_frames"]

_FRAME = re.compile(r'^\s*File "(?P<file>.*)", line (?P<line>\d+),? in (?P<function>.*)$')
_LIBRARIES = tuple(
    str(Path(place)) + os.sep for place in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")} if place
)
_INSTALLED = re.compile(r"/(?:site|dist)-packages/|/lib/python3\.\d+/")
_OURS = str(Path(__file__).resolve().parent.parent) + os.sep


class StackFrame(NamedTuple):
    """One line of a stack."""

    file: str
    line: int
    function: str
    source: str = ""

    def __str__(self) -> str:
        shown = f"{_short(self.file)}:{self.line} in {self.function}"
        return f"{shown}: {self.source}" if self.source else shown


def user_frames(text: str) -> list[StackFrame]:
    """The frames of `text` that are neither Python's, a library's nor ours, in the order they stand in."""
    frames = []
    lines = text.splitlines()
    for at, line in enumerate(lines):
        match = _FRAME.match(line)
        if match is None or not _users(match["file"]):
            continue
        following = lines[at + 1] if at + 1 < len(lines) else ""
        source = following.strip() if following.startswith("    ") and not _FRAME.match(following) else ""
        frames.append(StackFrame(match["file"], int(match["line"]), match["function"], source))
    return frames


def innermost(dump: str) -> str:
    """Where a `faulthandler` dump stands in the user's code, in the thread that is the worker's own.

    The main thread is the last one in a dump. Without a frame of the user's, its innermost frame.
    """
    main = re.split(r"^(?:Current )?[Tt]hread ", dump, flags=re.MULTILINE)[-1]
    frames = user_frames(main)
    if frames:
        return str(frames[0])
    for line in main.splitlines():
        if match := _FRAME.match(line):
            return str(StackFrame(match["file"], int(match["line"]), match["function"]))
    return "an unknown place"


def _users(file: str) -> bool:
    return not file.startswith(("<", *_LIBRARIES, _OURS)) and not _INSTALLED.search(file)


def _short(file: str) -> str:
    try:
        near = os.path.relpath(file)
    except ValueError:
        return file
    return file if near.startswith("..") else near
