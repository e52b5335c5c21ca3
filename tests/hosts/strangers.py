"""Strangers: everybody who comes to a run's door and must not get in. Six kinds, each of them what it says.

    python -m tests.hosts.strangers ADDRESS PORT COUNT TOKEN_FILE    prints what became of them, as JSON

What they say is made by the project's own greeting, so that each kind gets as far as it can: an oversized length and a
wrong proof come after a right opening, and what is replayed was welcome when it was said first. The token is used for
that recording alone, as somebody on the wire would have it; the strangers have the recording, not the token.

A few come at a time, and those who get an answer wait for it, so the kernel's queue never fills and nobody is lost on
the way: who could not connect was not let in, and is counted as one who did not come.
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from holdfast.config.limits import NETWORK
from holdfast.transport.auth import token
from holdfast.transport.auth.credentials import Credentials
from holdfast.transport.auth.handshake import NONCE, Caller, Code, Hello

__all__ = ["KINDS", "Recording", "Strangers", "recorded"]

#: In the order in which they come, again and again.
KINDS = ("bare", "garbage", "half", "oversized", "wrong token", "replayed")
#: How many come at a time.
_AT_ONCE = 4
#: Seconds: more than the door's own deadline, so who waits this long was not turned away.
_PATIENCE = 20.0


class Recording(NamedTuple):
    """What an honest caller said, byte for byte."""

    opening: bytes
    proof: bytes


def recorded(address: tuple[str, int], credentials: Credentials) -> Recording:
    """Call as somebody who may, be let in, leave; what was said on the way."""
    caller = Caller(credentials.token, os.urandom(NONCE), Hello("probe"))
    said: list[bytes] = []

    def listened(proof: bytes) -> bytes:
        said.append(proof)
        return proof

    with socket.create_connection(address, _PATIENCE) as sock:
        _greet(sock, caller, caller.opening, listened)
    assert caller.welcome, f"the honest one was turned away: {caller.refusal}"
    return Recording(caller.opening, said[0])


class Strangers:
    """All who come to one door.

    Resources: `leave` closes the connections that are held open.
    """

    def __init__(self, address: tuple[str, int], recording: Recording, *, seed: int = 1) -> None:
        self._address, self._recording, self._seed = address, recording, seed
        self._held: deque[socket.socket] = deque()
        self._came: list[str] = []
        self._refused: list[str] = []
        self._visits: dict[str, Callable[[socket.socket, random.Random], bool]] = {
            "bare": lambda sock, chance: True,
            "garbage": self._garbage,
            "half": self._half,
            "oversized": self._oversized,
            "wrong token": self._wrong,
            "replayed": self._replayed,
        }

    def come(self, count: int) -> None:
        """So many of them, of all kinds in turn. Returns when the last one is there."""
        with ThreadPoolExecutor(_AT_ONCE) as doing:
            list(doing.map(self._visit, range(count)))

    def leave(self) -> None:
        """Wait until those who are held open were let go by the other side."""
        while self._held:
            self._let_go()

    @property
    def told(self) -> dict[str, tuple[int, int]]:
        """Kind -> how many came, and how many of those were turned away as they must be."""
        came, refused = Counter(self._came), Counter(self._refused)
        return {kind: (came[kind], refused[kind]) for kind in KINDS}

    # ------------------------------------------------------------ one of them

    def _visit(self, number: int) -> None:
        kind = KINDS[number % len(KINDS)]
        try:
            sock = socket.create_connection(self._address, _PATIENCE)
        except OSError:
            return
        self._came.append(kind)
        if self._visits[kind](sock, random.Random(f"{self._seed} {number}")):
            self._refused.append(kind)
        if kind != "half":
            sock.close()

    def _garbage(self, sock: socket.socket, chance: random.Random) -> bool:
        first = chance.choice(b"\x00\x01\x80GPS\xff")  # neither our greeting nor TLS
        return _ended(sock, bytes([first]) + chance.randbytes(chance.randrange(20, 4096))) == b""

    def _half(self, sock: socket.socket, chance: random.Random) -> bool:
        """A right beginning that never goes on. It is closed by the other side, or not at all."""
        opening = self._recording.opening
        sock.sendall(opening[: chance.randrange(1, len(opening))])
        self._held.append(sock)
        if len(self._held) > 2 * NETWORK.handshakes:  # the door holds fewer, so the oldest is out already
            self._let_go()
        return False

    def _let_go(self) -> None:
        with self._held.popleft() as sock:
            if _ended(sock) == b"":
                self._refused.append("half")

    def _oversized(self, sock: socket.socket, chance: random.Random) -> bool:
        caller = _stranger()
        closed = _greet(sock, caller, caller.opening, lambda proof: proof[:1] + b"\xff\xff" + proof[3:])
        return closed and caller.refusal is None  # without a word

    def _wrong(self, sock: socket.socket, chance: random.Random) -> bool:
        caller = _stranger()
        _greet(sock, caller, caller.opening, lambda proof: proof)
        return _not_with_that_token(caller)

    def _replayed(self, sock: socket.socket, chance: random.Random) -> bool:
        caller = _stranger()
        _greet(sock, caller, self._recording.opening, lambda _: self._recording.proof)
        return _not_with_that_token(caller)


def _stranger() -> Caller:
    """Says all the right things, but for the token."""
    return Caller(token.make(), os.urandom(NONCE), Hello("join", facts={"slots": 1}))


def _not_with_that_token(caller: Caller) -> bool:
    return caller.refusal is not None and caller.refusal.code is Code.TOKEN and not caller.impostor


def _greet(sock: socket.socket, caller: Caller, opening: bytes, proof: Callable[[bytes], bytes]) -> bool:
    """Open, answer the challenge with what `proof` makes of the caller's own, hear the answer. Did the other side close
    before there was one?
    """
    try:
        sock.sendall(opening)
        while caller.wanted:
            if not (data := sock.recv(caller.wanted)):
                return True
            if message := caller.feed(data):
                sock.sendall(proof(message))
    except TimeoutError:
        pass  # nobody turned it away
    except OSError:
        return True  # thrown out while it was still talking
    return False


def _ended(sock: socket.socket, say: bytes = b"") -> bytes | None:
    """Say this, and read until the other side closes; what it said. None: it does not close."""
    heard = b""
    try:
        sock.sendall(say)
        while data := sock.recv(4096):
            heard += data
    except TimeoutError:
        return None
    except OSError:
        pass  # the same, said in a harsher way
    return heard


def main(address: str, port: str, count: str, token_file: str) -> None:
    """Come, and print what became of all."""
    place = (address, int(port))
    strangers = Strangers(place, recorded(place, Credentials.read(Path(token_file))))
    strangers.come(int(count))
    strangers.leave()
    print(json.dumps(strangers.told))


if __name__ == "__main__":
    main(*sys.argv[1:])
