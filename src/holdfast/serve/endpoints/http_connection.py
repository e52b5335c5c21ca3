"""One connection of a client that speaks HTTP/1.1: bytes in, whole requests out, answers in their order.

httptools (the parser of Node.js) reads; here is what may be read, and for how long: a client that sends too much, too
slowly or nothing at all is told so, or cut off. Requests that a client has sent ahead wait until the one before them is
answered. A request is given to its handler when its body is here, but it may be turned away by its head
(`HttpApp.look`), and then its body is not kept.

What cannot be read ends the connection, but not at once: what was asked before it is answered first, then the client is
told what was wrong, and what it is still sending is thrown away for a moment, so that it comes to read that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from http import HTTPStatus
from typing import NamedTuple, Protocol, cast

import httptools

from holdfast.config.limits import SERVING
from holdfast.serve.protocol.errors import error_body

__all__ = ["HttpApp", "HttpConnection", "HttpConnections", "HttpLimits", "HttpRequest", "sweep"]

Header = tuple[bytes, bytes]

_JSON: tuple[Header, ...] = ((b"content-type", b"application/json"),)
#: Headers of which a second one would have to be ignored, or to be believed.
_ONCE = frozenset({
    b"host", b"authorization", b"content-length", b"content-encoding", b"transfer-encoding", b"expect",
    b"inference-header-content-length", b"x-request-id",
})  # fmt: skip
_FRAMING = 16  # bytes around each chunk of a body that nobody counts


class HttpLimits(NamedTuple):
    """What a client may send, and how long it may take."""

    body: int = 64 << 20
    bodies: int = 1 << 30  #: bytes of all unanswered requests together
    url: int = 8 << 10
    headers: int = 100
    head: int = 64 << 10  #: bytes of URL and headers together
    connections: int = 2048
    ahead: int = 256  #: requests that one client may send before the first of them is answered
    head_seconds: float = 10.0  #: from the first byte of a request to the end of its headers
    body_seconds: float = 60.0  #: from there to the end of its body
    idle_seconds: float = 75.0  #: between two requests
    send_seconds: float = 60.0  #: for which a client may leave its answer unread
    linger_seconds: float = 2.0  #: for which what comes is thrown away, once it was told that it cannot be read
    chunks: int = 65_536  #: in which a body may come


class HttpRequest:
    """One request. Answer it with `respond`, once."""

    __slots__ = ("answered", "body", "came", "connection", "facts", "gone", "head_only", "headers", "id", "keep_alive",
                 "method", "path", "query", "reason", "refusal", "size")  # fmt: skip

    def __init__(self, connection: HttpConnection, method: str, target: bytes, headers: dict[bytes, bytes]) -> None:
        self.connection, self.method, self.headers = connection, method, headers
        path, _, query = target.partition(b"?")
        self.path, self.query = path, query
        self.id = ""  #: goes back to the client, where there is one
        self.came = 0.0  #: monotonic time; 0: it was not even looked at
        self.facts: object = None  #: what its handler wants to know again once it is answered
        self.reason = ""  #: why it failed, for the log
        self.body = b""
        self.size = 0  #: bytes that are kept of it
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

    def refuse(self, status: int, message: object, headers: tuple[Header, ...] = (), reason: str | None = None) -> None:
        """Answer with an error, as the protocol has it. `reason` is for the log, where the message is too much."""
        self.reason = str(message) if reason is None else reason
        self.respond(status, [error_body(message)], (*headers, *_JSON))


class HttpApp(Protocol):
    """What answers requests."""

    def look(self, request: HttpRequest) -> None:
        """The headers are here. May set `refusal`: status, body and headers of the answer."""

    def handle(self, request: HttpRequest) -> None:
        """The request is whole: answer it, now or later."""

    def answered(self, request: HttpRequest, status: int) -> None:
        """An answer with this status was sent, also to what was no request."""


class HttpConnections:
    """All connections of a listener, and what is kept of their requests."""

    def __init__(self) -> None:
        self.open: set[HttpConnection] = set()
        self.bytes = 0  #: of bodies whose requests are not answered yet

    def __len__(self) -> int:
        return len(self.open)


class _Stage(Enum):
    IDLE = 0  #: between two requests
    HEAD = 1
    BODY = 2


_STATUS = {one.value: f"HTTP/1.1 {one.value} {one.phrase}\r\n".encode() for one in HTTPStatus}


class HttpConnection(asyncio.Protocol):
    """The connection."""

    def __init__(self, app: HttpApp, limits: HttpLimits, connections: HttpConnections) -> None:
        self._app, self._limits, self._connections = app, limits, connections
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._stage = _Stage.IDLE
        self._target, self._headers = b"", dict[bytes, bytes]()
        self._fields = self._head = self._extra = self._chunks = 0
        self._body: bytes | bytearray = b""
        self._reading: HttpRequest | None = None  # its head is here, and not all of its body
        self._handled: HttpRequest | None = None
        self._waiting: deque[HttpRequest] = deque()
        self._continue = False  # the client waits for leave to send its body
        self._deaf = False  # whatever still comes is thrown away
        self._unread = False  # more may come: it is thrown away until the client has read its answer
        self._last = False  # the connection ends when what was asked is answered
        self._paused = self._blocked = self._closing = False  # we read nothing; the client reads nothing; it ends
        self.until = 0.0  #: in loop time; when this state of the connection has lasted too long
        self._late = ""  # what is said then

    # ------------------------------------------------------------ asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it
        if len(self._connections) >= self._limits.connections:
            self._fail(503, f"there are {self._limits.connections} connections already")
            self._transport.close()  # at once: a connection that is not counted may not stay
            return
        self._connections.open.add(self)
        self._expect(self._limits.head_seconds, "")

    def connection_lost(self, error: Exception | None) -> None:
        """The client is gone."""
        self._connections.open.discard(self)
        self._closing = self._deaf = True
        gone = [one for one in (self._handled, *self._waiting, self._reading) if one is not None]
        self._waiting.clear()
        self._handled = self._reading = None
        for request in gone:
            self._connections.bytes -= request.size
            if not request.answered:
                request.answered = True
                if request.gone is not None:
                    request.gone()

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        if self._deaf:
            return
        self._extra += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # The request is answered as if it had not asked, and is the last one.
            self._hear_no_more()
        except httptools.HttpParserCallbackError as error:
            if not self._deaf:  # ours
                self._loop.call_exception_handler({"message": "a request failed", "exception": error.__context__})
                self._fail(500, "The server failed on this request; its log says why.")
        except httptools.HttpParserError as error:
            self._fail(400, f"this is no HTTP request ({error})")
        if self._extra > self._limits.head and self._stage is not _Stage.IDLE:  # the parser keeps half a header
            self._fail(431, f"there are more than {self._limits.head} bytes around the body")

    def eof_received(self) -> bool:
        """The client sends nothing more; it may still read."""
        assert self._transport is not None
        if self._closing or self._transport.get_extra_info("sslcontext") is not None:  # TLS cannot be half open
            return False
        self._hear_no_more()
        return not self._closing

    def pause_writing(self) -> None:
        """The client does not read its answers: no more are made for it."""
        self._blocked = True
        self._rest()

    def resume_writing(self) -> None:
        """It has read them."""
        self._blocked = False
        if not self._closing:
            self._go_on()

    # ------------------------------------------------------------ httptools

    def on_message_begin(self) -> None:
        """A request begins."""
        if self._deaf:
            return
        self._target, self._headers, self._body = b"", {}, b""
        self._fields = self._head = self._extra = self._chunks = 0
        self._stage = _Stage.HEAD
        self._expect(self._limits.head_seconds, "the headers took too long to come")

    def on_url(self, part: bytes) -> None:
        """A part of the request's target."""
        self._target += part
        if len(self._target) > self._limits.url:
            self._fail(414, f"the URL has more than {self._limits.url} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or what stands behind a body in chunks: that is counted, and means nothing."""
        if self._deaf:
            return
        self._fields += 1
        self._head += len(name) + len(value)
        if self._fields > self._limits.headers or self._head > self._limits.head:
            self._fail(431, f"there are more than {self._limits.headers} headers, or {self._limits.head} bytes of them")
        elif self._stage is _Stage.HEAD:
            name = name.lower()
            if name in self._headers and name in _ONCE:
                self._fail(400, f"{name.decode('ascii', 'replace')}: is there twice")
            self._headers[name] = value

    def on_headers_complete(self) -> None:
        """The head of a request is whole."""
        if self._deaf:
            return
        parser, headers, limits = self._parser, self._headers, self._limits
        request = HttpRequest(self, parser.get_method().decode("ascii", "replace"), self._target, headers)
        version = parser.get_http_version()
        if version != "1.1":
            if version != "1.0":
                return self._fail(505, f"this is HTTP/{version}; 1.1 and 1.0 are spoken here")
            if b"transfer-encoding" in headers:  # whoever stands between us may see another end of it
                return self._fail(400, "Transfer-Encoding: there is none in HTTP/1.0")
        length = headers.get(b"content-length", b"0")
        if int(length) > limits.body:
            said = length.decode("ascii", "replace")
            return self._fail(413, f"body: has {said} bytes; at most {limits.body} are taken")
        # We speak nothing that a connection could be upgraded to: it ends instead.
        request.keep_alive = parser.should_keep_alive() and not parser.should_upgrade()
        self._reading, self._stage = request, _Stage.BODY
        self._expect(limits.body_seconds, "the body took too long to come")
        self._app.look(request)
        if b"expect" in headers and version == "1.1" and headers[b"expect"].lower() == b"100-continue":
            if request.refusal is not None:
                self._stop_at(request)
            elif self._handled is None and not self._waiting:
                self._leave_to_send()
            else:
                self._continue, self.until = True, 0.0
        return None

    def on_chunk_header(self) -> None:
        """A chunk of the body begins."""
        self._chunks += 1
        self._extra -= _FRAMING
        if self._chunks > self._limits.chunks:
            self._fail(413, f"body: comes in more than {self._limits.chunks} chunks")

    def on_body(self, part: bytes) -> None:
        """A part of the body."""
        request = self._reading
        self._extra -= len(part)
        if request is None or self._deaf:
            return
        if request.refusal is not None:
            return
        request.size += len(part)
        self._connections.bytes += len(part)
        if request.size > self._limits.body:
            self._fail(413, f"body: has more than {self._limits.body} bytes")
        elif self._connections.bytes > self._limits.bodies:
            self._fail(503, "There is no room for this request's body now.")
        elif not self._body:
            self._body = part
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += part

    def on_message_complete(self) -> None:
        """A request is whole."""
        request = self._reading
        if request is None or self._deaf:
            return
        request.body, self._body = bytes(self._body), b""
        if not request.keep_alive:
            self._deaf = True
        self._take(request)

    # ------------------------------------------------------------ requests in their order

    def _take(self, request: HttpRequest) -> None:
        """A request that is whole, or has its answer already."""
        self._reading, self._stage, self._continue = None, _Stage.IDLE, False
        if self._handled is None and not self._waiting and not self._blocked:
            self._handle(request)
        elif len(self._waiting) < self._limits.ahead or self._deaf:
            self._waiting.append(request)
            self._rest()
        else:
            self._connections.bytes -= request.size
            self._fail(429, f"more than {self._limits.ahead} requests were sent ahead")

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
        self._connections.bytes -= request.size
        request.size = 0
        head = [_STATUS[status]]
        told = False
        for name, value in headers:
            told = told or name == b"content-length"
            head += (name, b": ", value, b"\r\n")
        if not told:
            head.append(b"content-length: %d\r\n" % sum(map(len, body)))
        if request.id:
            head.append(b"x-request-id: %s\r\n" % request.id.encode("ascii", "replace"))
        ends = not request.keep_alive or (self._last and not self._waiting and self._stage is _Stage.IDLE)
        if ends:
            head.append(b"connection: close\r\n\r\n")
        elif request.headers.get(b"connection"):  # of HTTP/1.0 it has to be said
            head.append(b"connection: keep-alive\r\n\r\n")
        else:
            head.append(b"\r\n")
        if len(body) == 1 and not request.head_only:
            head.append(bytes(body[0]))
            self._transport.write(b"".join(head))
        else:
            self._transport.write(b"".join(head))
            for part in () if request.head_only else body:
                self._transport.write(part)
        self._handled = None
        self._app.answered(request, status)
        if ends:
            self._close()
        else:
            self._go_on()

    def _go_on(self) -> None:
        """An answer is on its way: the next request, or the next byte."""
        if self._handled is not None or self._blocked:
            return
        if self._waiting:
            self._loop.call_soon(self._next)  # not at once: a handler that answers at once would nest them
            return
        if self._last and self._stage is _Stage.IDLE:
            self._close()
            return
        if self._continue:
            self._continue = False
            self._leave_to_send()
            self._expect(self._limits.body_seconds, "the body took too long to come")
        paused, self._paused = self._paused, False
        if self._stage is _Stage.IDLE:
            self._expect(self._limits.idle_seconds, "")
        elif paused:  # it could not send meanwhile
            self._expect(self._limits.body_seconds, "the rest of a request took too long to come")
        if paused and self._transport is not None:
            self._transport.resume_reading()

    def _next(self) -> None:
        if self._handled is None and self._waiting and not self._blocked and not self._closing:
            self._handle(self._waiting.popleft())

    def _leave_to_send(self) -> None:
        assert self._transport is not None
        self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _rest(self) -> None:
        """Read nothing more until answers are read, or given."""
        if self._blocked:
            self._expect(self._limits.send_seconds, "")
        elif not self._closing:
            self.until = 0.0
        if not self._paused and not self._closing and not self._deaf and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    # ------------------------------------------------------------ the end

    def _fail(self, status: int, message: str) -> None:
        """Tell the client what was wrong with what it sent, after what it asked before, and end the connection."""
        if self._deaf or self._transport is None:
            return
        request = self._reading or HttpRequest(self, "", b"", {})
        request.refusal, request.reason = (status, error_body(message), _JSON), message
        self._stop_at(request)

    def _stop_at(self, request: HttpRequest) -> None:
        """Nothing is read after this request, which has its answer already."""
        request.keep_alive = False
        self._deaf = self._unread = True
        self._body = b""
        self._take(request)

    def _hear_no_more(self) -> None:
        """What is not whole yet will never be."""
        self._deaf = self._last = True
        if self._reading is not None:
            self._connections.bytes -= self._reading.size
        self._reading, self._stage, self._body = None, _Stage.IDLE, b""
        if self._handled is None and not self._waiting:
            self._close()

    def _close(self) -> None:
        """End it when what was written is read, and what a client is still sending was thrown away for a moment."""
        if self._closing or self._transport is None:
            return
        self._closing = self._deaf = True
        if self._unread and self in self._connections.open:
            self._expect(self._limits.linger_seconds, "")
            if self._paused:
                self._transport.resume_reading()
            if self._transport.can_write_eof():
                self._transport.write_eof()
        else:
            self._expect(self._limits.send_seconds, "")
            self._transport.close()

    # ------------------------------------------------------------ time

    def _expect(self, seconds: float, late: str) -> None:
        self.until, self._late = self._loop.time() + seconds, late

    def check(self, now: float) -> None:
        """End the connection if the client has taken too long."""
        if not self.until or now <= self.until or self._transport is None:
            return
        if self._closing or self._blocked:
            self._transport.abort()
        elif self._late:
            self._fail(408, self._late)
        else:
            self._close()

    def drain(self) -> None:
        """Answer what was asked, and end the connection then."""
        self._last = True
        if self._handled is None and not self._waiting and self._stage is _Stage.IDLE:
            self._close()


async def sweep(connections: HttpConnections) -> None:
    """End the connections of clients that take too long; for ever."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(SERVING.sweep)
        now = loop.time()
        for connection in list(connections.open):
            connection.check(now)
