"""The code blocks of a Markdown page, as the tests of the documentation run them.

A comment right before a block says what to do with it beyond its language:

    <!-- file: train.py -->      save it under this name; the page's console blocks use it
    <!-- terminal 1 -->          it goes on while the blocks after it run
    <!-- close: error -->        numbers after this word are as on the page, or nearly so
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

__all__ = ["PAGES", "ROOT", "Block", "blocks", "links"]

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_BLOCK = re.compile(
    r"(?:^<!-- (?P<note>[^>]*) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


class Block(NamedTuple):
    """One fenced block. `line` is where its text begins in the page."""

    language: str
    text: str
    note: str
    line: int

    @property
    def file(self) -> str:
        """The name it is saved under; empty if it is not."""
        return self.note.removeprefix("file: ") if self.note.startswith("file: ") else ""


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(found["language"], found["text"], found["note"] or "", text[: found.start("text")].count("\n") + 1)
        for found in _BLOCK.finditer(text)
    ]


def links(page: Path) -> list[str]:
    """Where the page's links and pictures lead, those on the network left out."""
    text = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    return [link for link in _LINK.findall(text) if "://" not in link]
