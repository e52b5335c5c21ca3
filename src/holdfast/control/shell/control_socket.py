"""The control socket: how other commands ask a going run. One request, one answer, both JSON.

It lies in the run's directory, is readable by its owner only, and is a SOCK_SEQPACKET socket, so a
request is whole or not there. What the answers mean is `answer`'s business.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from holdfast.config.limits import CONTROL
from holdfast.control.protocol.requests import Ask, short_address

__all__ = ["ControlSocket"]

_decoder = msgspec.json.Decoder(Ask)


class ControlSocket:
    """Listens while the run goes; `close` removes the socket. Must be made inside a running loop."""

    def __init__(self, path: Path, answer: Callable[[Ask], dict[str, Any]]) -> None:
        self._path, self._answer = path, answer
        self._loop = asyncio.get_running_loop()
        self._open: set[socket.socket] = set()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            before = os.umask(0o177)
            try:
                with short_address(path) as address:
                    self._socket.bind(address)
            finally:
                os.umask(before)
            self._socket.listen(16)
        except OSError:
            self._socket.close()
            raise
        self._listen()

    def _listen(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Stop listening. May be called twice."""
        if self._socket.fileno() < 0:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for connection in list(self._open):
            self._hang_up(connection)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                # It stays in the kernel's queue: looking again at once would be vain, and keep the loop from its work.
                self._loop.remove_reader(self._socket.fileno())
                self._loop.call_later(CONTROL.accept_pause, self._listen)
            return  # else it hung up before we came
        connection.setblocking(False)
        self._open.add(connection)
        self._loop.add_reader(connection.fileno(), self._hear, connection)

    def _hear(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(CONTROL.request_bytes)
            if data:
                connection.send(self._reply(data))
        except OSError:
            pass  # whoever asked is gone
        self._hang_up(connection)

    def _reply(self, data: bytes) -> bytes:
        try:
            answer = self._answer(_decoder.decode(data))
        except msgspec.MsgspecError as error:
            answer = {"error": f"This run does not understand the request: {error}. Is it of another version?"}
        return msgspec.json.encode(answer)

    def _hang_up(self, connection: socket.socket) -> None:
        self._open.discard(connection)
        self._loop.remove_reader(connection.fileno())
        connection.close()
