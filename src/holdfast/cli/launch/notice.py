"""Notices: a machine is told that it is about to be taken away, as spot machines are, and ends its part in order.

A source is asked again and again: a file that appears, a URL that answers with something (clouds answer 404 until
then), or a command that succeeds. What follows is what SIGTERM does, so there is one way to end in order.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from holdfast.config.limits import NOTICE
from holdfast.errors import ConfigError

__all__ = ["Notice", "parse"]


def parse(source: str) -> Callable[[], bool]:
    """What tells whether a notice was given. Raises ConfigError.

    >>> parse("command:false")()
    False
    """
    kind, _, rest = source.partition(":")
    if kind in ("http", "https"):
        return lambda: _answers(source)
    if kind == "command":
        if words := shlex.split(rest):
            return lambda: _succeeds(words)
    elif source:
        return Path(source).exists
    raise ConfigError(
        "notice", source, "must be a file, a URL, or command:WORDS", source="--notice",
        fix="For example --notice /run/preempted, or --notice http://169.254.169.254/latest/meta-data/spot/instance-action.",
    )  # fmt: skip


class Notice:
    """Watches a source in a thread of its own. When it gives a notice, this process gets SIGTERM, once.

    Resources: `close` ends the thread.
    """

    def __init__(self, source: str, say: Callable[[str], None]) -> None:
        self._given, self._source, self._say = parse(source), source, say
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="holdfast-notice", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it. May be called twice."""
        self._closing.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._closing.is_set():
            if self._given():
                self._say(f"notice given by {self._source}: this machine is about to go")
                os.kill(os.getpid(), signal.SIGTERM)
                return
            self._closing.wait(NOTICE.poll)


def _answers(url: str) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a machine asks itself, or its host
    try:
        with direct.open(url, timeout=NOTICE.answer) as answer:
            return answer.status == 200 and bool(answer.read(1))
    except (urllib.error.URLError, OSError, ValueError):
        return False


def _succeeds(words: list[str]) -> bool:
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=NOTICE.command
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0
