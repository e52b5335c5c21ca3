"""Who holds what: a key by its name, or the rows of a spread key by their numbers. Pure, so all sides agree unasked.

>>> owner("user", 2), parts(5, 2)
(1, [(0, 2), (2, 5)])
"""

from __future__ import annotations

import hashlib
from itertools import pairwise

from holdfast.config.limits import STORE
from holdfast.errors import UsageError

__all__ = ["checked_name", "owner", "parts"]


def checked_name(name: object, what: str) -> str:
    """The name, if it can be one. Raises UsageError."""
    if not isinstance(name, str):
        raise UsageError(
            f"{name!r} cannot be the name of a {what}: it is of type {type(name).__name__}. Use text, such as "
            f"{str(name)[:60]!r}."
        )
    size = len(name.encode(errors="replace"))
    if not 0 < size <= STORE.name_bytes or not name.isprintable():
        raise UsageError(
            f"{name[:60]!r} cannot be the name of a {what}: use 1 to {STORE.name_bytes} bytes of printable text, "
            f"not {size}."
        )
    return name


def owner(name: str, num_servers: int) -> int:
    """The server that holds a key, or where a meeting takes place. Not Python's `hash`: that differs by process."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % num_servers


def parts(num_rows: int, num_servers: int) -> list[tuple[int, int]]:
    """First and last-but-one row of every server's share of a spread key; shares differ by one row at most."""
    cuts = [num_rows * server // num_servers for server in range(num_servers + 1)]
    return list(pairwise(cuts))
