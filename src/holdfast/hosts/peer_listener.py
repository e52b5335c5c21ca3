"""A peer listener: what an agent opens to the other hosts of its run: a door of its own, and the peers behind it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from ipaddress import ip_address

from holdfast.core.routes import Address, Offer
from holdfast.errors import UsageError
from holdfast.hosts import orders
from holdfast.hosts.peers import Peers
from holdfast.transport.auth.credentials import Credentials
from holdfast.transport.auth.handshake import Hello
from holdfast.transport.auth.listener import Listener
from holdfast.transport.network import candidates, identity
from holdfast.transport.stream import Stream

__all__ = ["PeerListener", "bind_addresses", "with_known_way"]


class PeerListener:
    """Listens from the beginning; must be made inside a running loop.

    Args:
        bind: where to listen; an empty host means: where the coordinator's own choice leads to.
        peer: where we have reached the coordinator.

    Resources: `close` stops listening. The peers is its host's to close, where there is one.

    Raises UsageError where nothing can be listened on.
    """

    def __init__(
        self, brief: orders.Brief, *, bind: tuple[str, int], peer: str, name: str, credentials: Credentials,
        complain: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._loop = asyncio.get_running_loop()
        self._door = self._open(bind_addresses(bind, peer, beyond=brief.beyond), credentials, brief.run, complain)
        where, port = self._door.address
        offer = Offer(identity(), f"host {brief.host} ({name})", port, tuple(candidates(where)))
        self.peers = Peers(brief.host, run=brief.run, credentials=credentials, offer=offer)
        self.peers.learn(with_known_way(brief.offers, peer))

    def close(self) -> None:
        """Let nobody in any more."""
        self._door.close()
        self.peers.close()

    def _open(
        self, wanted: list[tuple[str, int]], credentials: Credentials, run: str, complain: Callable[[str], None]
    ) -> Listener:
        *first, last = wanted
        for bind in first:
            with contextlib.suppress(UsageError):  # a machine without IPv6
                return Listener(bind, credentials, run=run, admit=self._admits, came=self._came, complain=complain)
        return Listener(last, credentials, run=run, admit=self._admits, came=self._came, complain=complain)

    def _admits(self, hello: Hello) -> str | None:
        """In the listener's thread, which may be faster than this one."""
        peers: Peers | None = getattr(self, "peers", None)
        return peers.admits(hello) if peers is not None else "this host is not ready yet"

    def _came(self, hello: Hello, stream: Stream) -> None:
        try:
            self._loop.call_soon_threadsafe(self.peers.came, hello, stream)
        except RuntimeError:  # the loop has ended
            stream.close()


def bind_addresses(bind: tuple[str, int], peer: str, *, beyond: bool) -> list[tuple[str, int]]:
    """Where to listen, the first that can be: on this machine only, where the run itself is on one machine only.

    >>> bind_addresses(("", 0), "10.0.0.5:4000", beyond=True), bind_addresses(("", 7), "[::1]:4000", beyond=False)
    ([('::', 0), ('0.0.0.0', 0)], [('::1', 7)])
    """
    host, port = bind
    if host:
        return [(host, port)]
    if beyond:
        return [("::", port), ("0.0.0.0", port)]
    return [("::1" if peer.startswith("[") else "127.0.0.1", port)]


def with_known_way(offers: Mapping[int, Offer], peer: str) -> dict[int, Offer]:
    """What hosts offer, and for the coordinator's own also where we have reached it, if that is none of its addresses.

    It may be behind something that has its address for the rest of the world.
    """
    offer = offers.get(0)
    ip, _, port = peer.rpartition(":")
    ip = ip.strip("[]")
    try:
        ip_address(ip.partition("%")[0])
    except ValueError:  # a name: its own addresses are better
        return dict(offers)
    if offer is None or port != str(offer.port) or any(address.ip == ip for address in offer.addresses):
        return dict(offers)
    return {**offers, 0: dataclasses.replace(offer, addresses=(*offer.addresses, Address(ip, "")))}
