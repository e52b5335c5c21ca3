"""One connection of a client that speaks HTTP/1.1: bytes in, whole requests out, answers in their order.

httptools (the parser of Node.js) reads; here is what may be read, and for how long: a client that sends too much, too
slowly or nothing at all is told so, or cut off. Requests that a client has sent ahead wait until the one before them is
answered. A request is given to its handler when its body is here, but it may be turned away by its head
(`HttpApp.look`), and then its body is not kept.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from typing import NamedTuple, Protocol, cast

import httptools

from holdfast.serve.protocol.errors import error_body

__all__ = ["HttpApp", "HttpConnection", "HttpLimits", "HttpRequest", "sweep"]

Header = tuple[bytes, bytes]


class HttpLimits(NamedTuple):
    """What a client may send, and how long it may take."""

    body: int = 64 << 20
    url: int = 8 << 10
    headers: int = 100
    head: int = 64 << 10  #: bytes of URL and headers together
    connections: int = 2048
    head_seconds: float = 10.0  #: from the first byte of a request to the end of its headers
    body_seconds: float = 60.0  #: from there to the end of its body
    idle_seconds: float = 75.0  #: between two requests
    chunks: int = 65_536  #: in which a body may come


class HttpRequest:
    """One request. Answer it with `respond`, once."""

    __slots__ = ("answered", "body", "connection", "gone", "head_only", "headers", "keep_alive", "method", "path",
                 "query", "refusal")  # fmt: skip

    def __init__(self, connection: HttpConnection, method: str, target: bytes, headers: dict[bytes, bytes]) -> None:
        self.connection, self.method, self.headers = connection, method, headers
        path, _, query = target.partition(b"?")
        self.path, self.query = path, query
        self.body = b""
        self.keep_alive = True
        self.head_only = method == "HEAD"
        self.answered = False
        self.refusal: tuple[int, bytes, tuple[Header, ...]] | None = None
        self.gone: Callable[[], object] | None = None  #: called when the client is gone before it was answered

    def respond(self, status: int, body: Sequence[bytes | memoryview], headers: Iterable[Header] = ()) -> None:
        """Send the answer; does nothing where the client is gone."""
        if not self.answered:
            self.answered = True
            self.connection.send(self, status, body, headers)

    def refuse(self, status: int, message: object, headers: tuple[Header, ...] = ()) -> None:
        """Answer with an error, as the protocol has it."""
        body = error_body(message)
        told = (*headers, (b"content-type", b"application/json"))
        self.respond(status, [body], told)


class HttpApp(Protocol):
    """What answers requests."""

    def look(self, request: HttpRequest) -> None:
        """The headers are here. May set `refusal`: status, body and headers of the answer."""

    def handle(self, request: HttpRequest) -> None:
        """The request is whole: answer it, now or later."""


_STATUS = {one.value: f"HTTP/1.1 {one.value} {one.phrase}\r\n".encode() for one in HTTPStatus}


class HttpConnection(asyncio.Protocol):
    """The connection."""

    def __init__(self, app: HttpApp, limits: HttpLimits, connections: set[HttpConnection]) -> None:
        self._app, self._limits, self._connections = app, limits, connections
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._target, self._headers, self._head = b"", dict[bytes, bytes](), 0
        self._reading: HttpRequest | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._waiting: deque[HttpRequest] = deque()
        self._handled: HttpRequest | None = None
        self._closing = self._paused = False
        self.until = 0.0  #: in loop time; when this state of the connection has lasted too long
        self._late = ""  # what is said then

    # ------------------------------------------------------------ asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it
        self._expect(self._limits.head_seconds, "")
        if len(self._connections) >= self._limits.connections:
            self._fail(503, f"there are {self._limits.connections} connections already")
            return
        self._connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        """The client is gone."""
        self._connections.discard(self)
        self._closing = True
        for request in (self._handled, *self._waiting):
            if request is not None and not request.answered:
                request.answered = True
                if request.gone is not None:
                    request.gone()
        self._waiting.clear()
        self._handled = self._reading = None

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        if self._closing:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(400, "there is nothing here that a connection could be upgraded to")
        except httptools.HttpParserError as error:
            # What our callbacks raise is hidden in here; `_fail` has said it then.
            self._fail(400, f"this is no HTTP request ({error})")

    def eof_received(self) -> bool:
        """The client sends nothing more; it may still read."""
        return self._handled is not None

    # ------------------------------------------------------------ httptools

    def on_message_begin(self) -> None:
        """A request begins."""
        self._target, self._headers, self._head = b"", {}, 0
        self._parts, self._size = [], 0
        self._expect(self._limits.head_seconds, "the headers took too long to come")

    def on_url(self, part: bytes) -> None:
        """A part of the request's target."""
        self._target += part
        if len(self._target) > self._limits.url:
            self._fail(414, f"the URL has more than {self._limits.url} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._head += len(name) + len(value)
        if len(self._headers) >= self._limits.headers or self._head > self._limits.head:
            self._fail(431, f"there are more than {self._limits.headers} headers, or {self._limits.head} bytes of them")
            return
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """The head of a request is whole."""
        if self._closing:
            return
        method = self._parser.get_method().decode("ascii", "replace")
        request = HttpRequest(self, method, self._target, self._headers)
        request.keep_alive = self._parser.should_keep_alive()
        length = self._headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._limits.body:
            said = length.decode("ascii", "replace")
            self._fail(413, f"body: has {said} bytes; at most {self._limits.body} are taken")
            return
        self._reading = request
        self._expect(self._limits.body_seconds, "the body took too long to come")
        self._app.look(request)
        if request.refusal is None and self._headers.get(b"expect", b"").lower() == b"100-continue":
            assert self._transport is not None
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, part: bytes) -> None:
        """A part of the body."""
        request = self._reading
        if request is None or self._closing:
            return
        self._size += len(part)
        if self._size > self._limits.body or len(self._parts) >= self._limits.chunks:
            self._fail(413, f"body: has more than {self._limits.body} bytes, or {self._limits.chunks} parts")
        elif request.refusal is None:
            self._parts.append(part)

    def on_message_complete(self) -> None:
        """A request is whole."""
        request, self._reading = self._reading, None
        if request is None or self._closing:
            return
        request.body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts = []
        if self._handled is None:
            self._handle(request)
        else:
            self._waiting.append(request)
            if not self._paused and self._transport is not None:
                self._paused = True
                self._transport.pause_reading()

    # ------------------------------------------------------------ answers

    def _handle(self, request: HttpRequest) -> None:
        self._handled = request
        self.until = 0.0  # how long an answer may take is not the connection's to say
        if request.refusal is not None:
            status, body, headers = request.refusal
            request.respond(status, [body], headers)
        else:
            self._app.handle(request)

    def send(
        self, request: HttpRequest, status: int, body: Sequence[bytes | memoryview], headers: Iterable[Header]
    ) -> None:
        """Send the answer of the request at hand, and go on to the next."""
        if self._closing or self._transport is None:
            return
        head = [_STATUS[status]]
        told = False
        for name, value in headers:
            told = told or name == b"content-length"
            head += (name, b": ", value, b"\r\n")
        if not told:
            head.append(b"content-length: %d\r\n" % sum(map(len, body)))
        head.append(b"\r\n" if request.keep_alive else b"connection: close\r\n\r\n")
        if len(body) == 1 and not request.head_only:
            head.append(bytes(body[0]))
            self._transport.write(b"".join(head))
        else:
            self._transport.write(b"".join(head))
            for part in () if request.head_only else body:
                self._transport.write(part)
        self._handled = None
        if not request.keep_alive:
            self._close()
        elif self._waiting:
            self._loop.call_soon(self._next)  # not at once: a handler that answers at once would nest them
        else:
            self._expect(self._limits.idle_seconds, "")
            if self._paused:
                self._paused = False
                self._transport.resume_reading()

    def _next(self) -> None:
        if self._handled is None and self._waiting:
            self._handle(self._waiting.popleft())

    def _fail(self, status: int, message: str) -> None:
        """Tell the client what was wrong with what it sent, and end the connection."""
        if self._closing or self._transport is None:
            return
        if self._handled is None:
            body = error_body(message)
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self._transport.write(_STATUS[status] + head + body)
        self._close()

    def _close(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    # ------------------------------------------------------------ time

    def _expect(self, seconds: float, late: str) -> None:
        self.until, self._late = self._loop.time() + seconds, late

    def check(self, now: float) -> None:
        """End the connection if the client has taken too long."""
        if self.until and now > self.until:
            if self._late:
                self._fail(408, self._late)
            else:
                self._close()

    def drain(self) -> None:
        """Answer what was asked, and end the connection then."""
        for request in (self._handled, self._reading, *self._waiting):
            if request is not None:
                request.keep_alive = False
        if self._handled is None and self._reading is None:
            self._close()


async def sweep(connections: set[HttpConnection]) -> None:
    """End the connections of clients that take too long; for ever."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(1.0)
        now = loop.time()
        for connection in list(connections):
            connection.check(now)
