"""Somebody who listens to all that goes over loopback: has a secret been said in clear?"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading

__all__ = ["Wiretap", "why_not"]

_ALL, _OUTGOING = 0x0003, 4
_FORCE_BUFFER = 33  # SO_RCVBUFFORCE
_TCP = 6


def why_not() -> str:
    """Why nobody can listen here; empty when somebody can."""
    return "" if os.geteuid() == 0 else "listening to a network needs root"


class Wiretap:
    """Listens until the block is left; `heard` has those of the words that went by in a connection over TCP."""

    def __init__(self, *words: bytes) -> None:
        self._words = words
        self.heard: set[bytes] = set()
        self._tails: dict[bytes, bytes] = {}
        self._over = threading.Event()
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL))
        self._socket.setsockopt(socket.SOL_SOCKET, _FORCE_BUFFER, 1 << 26)
        self._socket.bind(("lo", 0))
        self._socket.settimeout(0.1)
        self._thread = threading.Thread(target=self._listen, name="wiretap")

    def __enter__(self) -> Wiretap:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._socket.close()

    def _listen(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(TimeoutError):
                packet, (_, _, kind, _, _) = self._socket.recvfrom(1 << 17)
                if kind != _OUTGOING:  # on loopback each is seen twice
                    self._hear(packet[14:])

    def _hear(self, packet: bytes) -> None:
        if packet[0] >> 4 != 4 or packet[9] != _TCP:
            return
        start = (packet[0] & 15) * 4
        payload = packet[start + (packet[start + 12] >> 4) * 4 : struct.unpack_from("!H", packet, 2)[0] or None]
        connection = packet[12:20] + packet[start : start + 4]
        text = self._tails.get(connection, b"") + payload
        self.heard.update(word for word in self._words if word in text)
        self._tails[connection] = text[-256:]
