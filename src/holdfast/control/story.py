"""The story of a run: every decision with its reason, in one sentence.

Pure. The machine writes it, the shell appends it to `story.jsonl`, `holdfast explain` reads it back.
An entry equal to the one before it says nothing new and is not kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

__all__ = ["Sentence", "Story"]


class Sentence(msgspec.Struct, frozen=True):
    """One sentence of the story. `kind` is the name of the event that led to it."""

    now: float
    kind: str
    sentence: str


class Story:
    """A list of entries that only grows.

    >>> story = Story()
    >>> story.append(1.5, "WorkerLost", "worker 2 lost (signal 9): worker 4 starts in its place")
    True
    >>> story.append(1.6, "WorkerLost", "worker 2 lost (signal 9): worker 4 starts in its place")
    False
    >>> print(story.tail())
       1.500 s  worker 2 lost (signal 9): worker 4 starts in its place
    """

    def __init__(self, entries: Iterable[Sentence] = ()) -> None:
        self._entries = list(entries)

    def append(self, now: float, kind: str, sentence: str) -> bool:
        """Add a sentence; say whether it was news."""
        if self._entries and self._entries[-1].kind == kind and self._entries[-1].sentence == sentence:
            return False
        self._entries.append(Sentence(now, kind, sentence))
        return True

    def since(self, index: int) -> list[Sentence]:
        """The entries from `index` on: what a writer that has written `index` of them still has to write."""
        return self._entries[index:]

    def tail(self, count: int = 12) -> str:
        """The last entries as lines of text."""
        return "\n".join(f"{entry.now:8.3f} s  {entry.sentence}" for entry in self._entries[-count:])

    def encode(self) -> bytes:
        """The whole story as JSON lines."""
        return b"".join(_encoder.encode(entry) + b"\n" for entry in self._entries)

    @staticmethod
    def decode(data: bytes) -> Story:
        """Read JSON lines. A last line without its end was cut off by a crash and is left out."""
        whole = data[: data.rfind(b"\n") + 1]
        return Story(_decoder.decode(line) for line in whole.splitlines() if line)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Sentence]:
        return iter(self._entries)


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Sentence] = msgspec.json.Decoder(Sentence)
