"""Writes the story of a run: on disk as it grows, and on the screen."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.control.story import Sentence
from holdfast.observe.directory import RunDirectory
from holdfast.observe.screen import Screen

__all__ = ["RunStoryWriter"]

_encode = msgspec.json.Encoder().encode


class RunStoryWriter:
    """See `control.protocol.ports.StoryWriter`."""

    def __init__(self, directory: RunDirectory, screen: Screen) -> None:
        self._directory, self._screen = directory, screen
        self.length = 0
        self.before = 0.0  #: seconds of the run before the first of these entries

    def tell(self, entries: Sequence[Sentence], *, aloud: bool = True) -> None:
        """Write these entries down, and say them."""
        entries = [msgspec.structs.replace(entry, now=self.before + entry.now) for entry in entries]
        self._directory.append("story.jsonl", b"".join(_encode(entry) + b"\n" for entry in entries))
        self.length += len(entries)
        for entry in entries if aloud else ():
            self._screen.say(entry.sentence)

    def note(self, now: float, kind: str, sentence: str) -> None:
        """Write down a sentence of our own, without saying it."""
        self.tell([Sentence(now, kind, sentence)], aloud=False)
