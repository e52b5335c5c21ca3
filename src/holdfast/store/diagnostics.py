"""What the store's processes say on standard error, beside their answers to clients."""

from __future__ import annotations

import sys

__all__ = ["complain"]


def complain(sentence: str) -> None:
    """Say it where this process, or the one that started it, puts its output."""
    print(f"holdfast.store: {sentence}", file=sys.stderr, flush=True)
