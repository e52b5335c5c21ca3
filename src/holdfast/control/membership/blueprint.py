"""The blueprint: what a worker has built, part by part, so that two who differ can be told in what. Pure.

A part is a pair: what it is ("parameter fc1.weight", "optimizer") and how it is ("[128, 784] float32"). A worker sends
its parts along when it is ready, deflated and cut to size: names and shapes of a model repeat themselves, so thousands
of parameters fit. Whether two workers fit together follows from a hash of all parts (`Ready.model`);
the blueprint only says why not.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence

import msgspec

__all__ = ["MOST_BYTES", "Part", "compared", "fingerprint", "pack", "unpack"]

Part = tuple[str, str]

#: Of a packed blueprint: half of what a message may have.
MOST_BYTES = 32 * 1024
#: Of an unpacked one, whoever packed it.
_MOST_TEXT = 4 * 1024 * 1024
#: Of one name or value.
_LONGEST = 160
#: Differences that are told one by one.
_TOLD = 4


def fingerprint(parts: Sequence[Part]) -> str:
    """What two workers must agree on before they may share a crew."""
    return hashlib.sha256(msgspec.msgpack.encode(parts)).hexdigest()[:16]


def pack(parts: Sequence[Part]) -> bytes:
    """The parts as a message carries them: all, or as many of the first as fit.

    >>> unpack(pack([("optimizer", "SGD")]))
    [('optimizer', 'SGD')]
    """
    some = [(_short(what), _short(how)) for what, how in parts]
    while True:
        text = msgspec.msgpack.encode(some)
        data = zlib.compress(text)
        over = max(len(data) / MOST_BYTES, len(text) / _MOST_TEXT)
        if over <= 1:
            return data
        some = some[: int(len(some) / over * 0.9)]


def unpack(data: bytes) -> list[Part]:
    """What `pack` packed; nothing if it was somebody else."""
    opened = zlib.decompressobj()
    try:
        text = opened.decompress(data, _MOST_TEXT)
        return msgspec.msgpack.decode(text, type=list[Part])
    except (zlib.error, msgspec.DecodeError):
        return []


def compared(first: Sequence[Part], other: Sequence[Part], titles: tuple[str, str], *, cut: bool = False) -> str:
    """In what two blueprints differ, with the values of both; empty if nothing is found.

    With `cut`, there are more parts than these, so one that is missing may be among the rest. What begins with the
    name of a part that differs ("optimizer", "optimizer options") follows from it, and is not told.

    >>> mine, theirs = [("parameter w", "[2] float32")], [("parameter w", "[3] float32")]
    >>> compared(mine, theirs, ("worker 0", "worker 1"))
    'parameter w (worker 0: [2] float32; worker 1: [3] float32)'
    """
    one, two = dict(first), dict(other)
    differing = [what for what in {**one, **two} if one.get(what) != two.get(what)]
    if cut:
        differing = [what for what in differing if what in one and what in two]
    causes = tuple(f"{what} " for what in differing if " " not in what)
    differing = [what for what in differing if not what.startswith(causes)]
    found = [_told(what, titles, (one.get(what), two.get(what))) for what in differing[:_TOLD]]
    if len(differing) > _TOLD:
        found.append(f"and {len(differing) - _TOLD} more")
    moved = ((x[0], y[0]) for x, y in zip(first, other, strict=False) if x[0] != y[0])
    if not differing and (place := next(moved, None)):
        found = [_told("the order, which first differs at", titles, place)]
    return ", ".join(found)


def _told(what: str, titles: tuple[str, str], values: tuple[str | None, str | None]) -> str:
    return f"{what} ({titles[0]}: {values[0] or 'none'}; {titles[1]}: {values[1] or 'none'})"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
