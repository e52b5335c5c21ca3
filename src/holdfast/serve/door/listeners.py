"""Where a server listens: ports that are bound before anything else is done, TLS, and what ends with a listener."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import resource
import socket
import ssl
from functools import partial
from pathlib import Path

from holdfast.config.limits import SERVING
from holdfast.errors import UsageError
from holdfast.serve.endpoints.http_connection import HttpApp, HttpConnection, HttpConnections, HttpLimits, sweep

__all__ = ["HttpListeners", "bound", "is_loopback", "shown", "tls_context"]



class HttpListeners:
    """Those for HTTP of a server, by what they are for. `close` gives up what was bound."""

    def __init__(self, host: str, tls: ssl.SSLContext | None) -> None:
        self._host, self._tls = host, tls
        self._sockets: dict[str, socket.socket] = {}
        self._servers: list[asyncio.Server] = []
        self._connections: dict[str, HttpConnections] = {}

    def bind(self, what: str, port: int, option: str) -> None:
        """Take a port. Raises UsageError, which names the option that has asked for it."""
        self._sockets[what] = bound(self._host, port, option)

    def has(self, what: str) -> bool:
        """Was a port taken for it?"""
        return what in self._sockets

    def count(self, what: str) -> int:
        """How many connections there are."""
        return len(self._connections.get(what, ()))

    async def open(self, what: str, app: HttpApp, limits: HttpLimits) -> str:
        """Listen; the address."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)  # half of them are for clients
        limits = limits._replace(connections=min(limits.connections, files // 2))
        connections = self._connections[what] = HttpConnections()
        server = await asyncio.get_running_loop().create_server(
            partial(HttpConnection, app, limits, connections), sock=self._sockets[what], backlog=1024, ssl=self._tls,
            ssl_handshake_timeout=SERVING.handshake if self._tls else None,
        )  # fmt: skip
        self._servers.append(server)
        scheme = "https" if self._tls else "http"
        return f"{scheme}://{shown(self._host)}:{self._sockets[what].getsockname()[1]}"

    async def sweep(self) -> None:
        """End the connections of clients that take too long; for ever."""
        await asyncio.gather(*map(sweep, self._connections.values()))

    async def drain(self) -> None:
        """Let nobody in any more, and wait until those who are in have their answers, but not for ever."""
        for server in self._servers:
            server.close()
        loop = asyncio.get_running_loop()
        until = loop.time() + SERVING.parting
        while (open_ := [one for some in self._connections.values() for one in some.open]) and loop.time() < until:
            for connection in open_:
                connection.drain()
            await asyncio.sleep(SERVING.parting_look)  # an answer is with its client when its connection has ended

    def close(self) -> None:
        """Give up the ports."""
        for one in self._sockets.values():
            one.close()


def is_loopback(host: str) -> bool:
    """Is it an address that only this machine reaches?

    >>> is_loopback("127.0.0.1"), is_loopback("127.evil.com"), is_loopback("0.0.0.0")
    (True, False, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which may mean any address
        return False


def bound(host: str, port: int, option: str) -> socket.socket:
    """A socket at an address. Raises UsageError."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OverflowError:
        made.close()
        raise UsageError(f"{option} {port}: a port is between 0 and 65535.") from None
    except OSError as error:
        made.close()
        why = "somebody listens there already" if error.errno == errno.EADDRINUSE else error.strerror
        raise UsageError(
            f"Port {port} of {host} cannot be used: {why}. Choose another one with {option}, or leave that out: the "
            "system chooses one then."
        ) from None
    return made


def shown(host: str) -> str:
    """A host as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


def tls_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """What TLS needs; None without a certificate. Raises UsageError where it cannot be used."""
    if certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # A key that asks for a password would be asked for at the terminal, and waited for.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"--certificate {certificate}: it cannot be used with --key {key} ({error}). Give a certificate and its "
            "private key without a password, both as PEM."
        ) from None
    return context
