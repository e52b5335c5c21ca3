"""The address of a group of servers: all that a client must be told, as one word.

    holdfast-store-4f.../2/4     two servers of this host, for four clients
    10.0.0.5:4000/2/4            the same, for clients of other hosts
    10.0.0.5:4000/2/4/crew       the same, of a run: who is in its crew meets, however many that are

No torch here.
"""

from __future__ import annotations

import msgspec

from holdfast.errors import UsageError
from holdfast.transport.endpoint import parse as parse_place

__all__ = ["GroupAddress", "parse"]


class GroupAddress(msgspec.Struct, frozen=True):
    """Where the servers are, and how many of them and of their clients there are."""

    name: str  #: of their sockets on this host, or HOST:PORT
    servers: int
    clients: int  #: that meet at barriers and broadcasts; 0: nobody has said
    crew: bool = False  #: not so many meet, but the crew of a run

    def __str__(self) -> str:
        return f"{self.name}/{self.servers}/{self.clients}{'/crew' * self.crew}"

    @property
    def place(self) -> tuple[str, int] | None:
        """Host and port; None: they are on this host."""
        return parse_place(self.name) if ":" in self.name else None


def parse(text: str) -> GroupAddress:
    """What `str` has made of an address. Raises UsageError.

    >>> parse("10.0.0.5:4000/2/4").place, parse("holdfast-store-4f/2/4").place
    (('10.0.0.5', 4000), None)
    """
    name, _, counts = text.partition("/")
    servers, _, clients = counts.removesuffix("/crew").partition("/")
    if not (name and servers.isdigit() and clients.isdigit() and int(servers)):
        raise UsageError(f"{text!r} is not the address of a store. Use the `address` of the group of servers.")
    return GroupAddress(name, int(servers), int(clients), counts.endswith("/crew"))
