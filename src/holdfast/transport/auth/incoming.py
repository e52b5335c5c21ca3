"""A visitor: one connection that has not been greeted yet, as the listener holds it. Nothing here ever waits.

A visitor can send what it likes and stop when it likes. What is read of it is bounded by what the greeting wants
next (and by OpenSSL's own bounds under it); a reply that the kernel does not take at once ends the visit.
"""

from __future__ import annotations

import socket
import ssl

from holdfast.config.limits import NETWORK
from holdfast.transport.auth.handshake import Code, Greeter, HandshakeRefusal, Hello
from holdfast.transport.auth.tls import why
from holdfast.transport.stream import PlainStream, Stream, TlsStream

__all__ = ["IncomingConnection"]

#: How an unencrypted greeting begins, and how many bytes of handshake anybody may send.
_PLAIN = b"HOLDFAST"


class IncomingConnection:
    """One connection, its greeting, and until when it may take.

    Resources: owns the socket, until `welcome` hands it on.
    """

    def __init__(
        self,
        sock: socket.socket,
        greeter: Greeter,
        context: ssl.SSLContext | None,
        *,
        peer: str,
        since: float,
        until: float,
    ) -> None:
        self.peer, self.host = peer, peer.rpartition(":")[0]
        self.since, self.until = since, until
        self.leaving = False  #: it was refused, and may read why
        self.socket = sock
        self._greeter = greeter
        self._seen = 0
        self._tls: ssl.SSLObject | None = None
        if context is not None:
            self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._shaken = context is None

    def attend(self) -> Hello | HandshakeRefusal | None:
        """Read what there is. A hello: it proved itself, answer it. A refusal: turn it away. None: more must come."""
        try:
            while self._greeter.wanted:
                data = self._read(self._greeter.wanted)
                if data is None:
                    return None
                if not data:
                    return HandshakeRefusal(Code.SILENT, "")
                self._write(self._greeter.feed(data))
        except _Unfit as error:
            return HandshakeRefusal(error.code, str(error))
        except OSError:  # reset, or it does not take what we say
            return HandshakeRefusal(Code.SILENT, "")
        return self._greeter.refusal or self._greeter.hello

    def welcome(self) -> Stream:
        """Say so, and hand on the connection. Raises OSError."""
        self._write(self._greeter.answer(None))
        if self._tls is None:
            return PlainStream(self.socket, self.peer)
        return TlsStream(self.socket, self._tls, self._incoming, self._outgoing, self.peer)

    def refuse(self, reason: str) -> None:
        """Say why not, to somebody who proved that it may know."""
        try:
            self._write(self._greeter.answer(reason))
        except OSError:
            pass  # it did not stay for the answer

    def leave(self) -> bool:
        """Let it read our last words before the end; what it still sends is thrown away. False: it is over."""
        try:
            if not self.leaving:
                self.leaving, self._seen = True, 0
                self.socket.shutdown(socket.SHUT_WR)
            while data := self.socket.recv(16 * 1024):
                self._seen += len(data)
                if self._seen > NETWORK.refused_bytes:
                    return False
        except BlockingIOError:
            return True
        except OSError:
            pass  # it is gone, which is all we waited for
        return False

    def close(self) -> None:
        """End it."""
        self.socket.close()

    # ---------------------------------------------------------------- bytes

    def _read(self, most: int) -> bytes | None:
        """At most so many bytes of the greeting; b"" at the end, None when there is nothing now."""
        if self._tls is None:
            return self._take(most)
        while True:
            try:
                if not self._shaken:
                    self._tls.do_handshake()
                    self._shaken = True
                return self._tls.read(most)
            except ssl.SSLWantReadError:
                self._send(self._outgoing.read())
                data = self._take(16 * 1024)
                if not data:
                    return data
                self._check(data)
                self._incoming.write(data)
            except ssl.SSLError as error:
                self._send(self._outgoing.read())  # the alert, which says why
                raise _Unfit(Code.TLS, f"TLS with it failed: {why(error)}") from None

    def _check(self, data: bytes) -> None:
        """Before OpenSSL sees it: is it meant for it, and is it of a sensible size?"""
        if not self._seen and data.startswith(_PLAIN):
            self._send(Greeter.turn_away(Code.TLS))
            raise _Unfit(Code.TLS, "it does not speak TLS, and this run does")
        self._seen += len(data)
        if self._seen > NETWORK.handshake_bytes:
            raise _Unfit(Code.LENGTH, f"it sent more than {NETWORK.handshake_bytes} bytes before it had said who it is")

    def _take(self, most: int) -> bytes | None:
        try:
            return self.socket.recv(most)
        except BlockingIOError:
            return None

    def _write(self, data: bytes) -> None:
        if data and self._tls is not None:
            self._tls.write(data)
            data = self._outgoing.read()
        self._send(data)

    def _send(self, data: bytes) -> None:
        if data and self.socket.send(data, socket.MSG_NOSIGNAL) < len(data):
            raise OSError("it does not read what we say")


class _Unfit(Exception):
    """This visitor cannot be greeted."""

    def __init__(self, code: Code, text: str) -> None:
        self.code = code
        super().__init__(text)
