"""The screen of a run: one rewritten line on a terminal, a plain line every few seconds elsewhere.

Progress and the story go to one stream, the lead worker's own output to another, so that
`holdfast run train.py > out.txt` keeps only what the script printed. A stream that is closed or
broken (a pipe whose reader left) is not written to again: a run does not end because nobody looks.
"""

from __future__ import annotations

import os
from typing import TextIO

from holdfast.config.limits import SCREEN

__all__ = ["Screen", "Tail"]

_CLEAR = "\r\x1b[K"


class Screen:
    """Writes lines and, below them, the progress line."""

    def __init__(self, news: TextIO, output: TextIO) -> None:
        self._news, self._output = news, output
        self._live = news.isatty()
        self._shown = ""
        self._plain_due = SCREEN.plain / 2  # what comes at once is told by the story
        self._broken: set[TextIO] = set()

    @property
    def width(self) -> int:
        """How long the progress line may be; 0 when that does not matter."""
        return _width(self._news) - 1 if self._live else 0

    def say(self, text: str) -> None:
        """One line of the story."""
        self._above(self._news, text)

    def echo(self, text: str) -> None:
        """One line of the script."""
        self._above(self._output, text)

    def progress(self, text: str, now: float) -> None:
        """The progress line as it is now; on a plain stream it is written only now and then."""
        if self._live:
            self._shown = text[: self.width]
            self._write(self._news, _CLEAR + self._shown)
        elif now >= self._plain_due and text != self._shown:
            self._plain_due, self._shown = now + SCREEN.plain, text
            self._write(self._news, text + "\n")

    def end(self) -> None:
        """Leave the cursor on a line of its own."""
        if self._live and self._shown:
            self._write(self._news, "\n")
            self._shown = ""

    def _above(self, stream: TextIO, text: str) -> None:
        if self._live and self._shown:
            self._write(self._news, _CLEAR)
        self._write(stream, text + "\n")
        if self._live and self._shown:
            self._write(self._news, self._shown)

    def _write(self, stream: TextIO, text: str) -> None:
        if stream in self._broken:
            return
        try:
            stream.write(text)
            stream.flush()
        except (OSError, ValueError):
            self._broken.add(stream)


class Tail:
    """New whole lines of a file that grows. Starts at its beginning, or at its present end."""

    def __init__(self, path: str | os.PathLike[str], *, from_end: bool = False) -> None:
        self._path = path
        self._at = 0
        self._rest = b""
        if from_end:
            self._at = os.stat(path).st_size if os.path.exists(path) else 0

    def lines(self, *, last: bool = False) -> list[str]:
        """The lines that were finished since the last call; with `last`, also one without an end."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._at)
                data = file.read()
        except OSError:
            return []
        self._at += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        if last and self._rest:
            whole.append(self._rest)
            self._rest = b""
        return [line.decode(errors="replace").rstrip("\r") for line in whole]


def _width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
