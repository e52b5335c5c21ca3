"""One connection, over a transport of paper: bytes in, and every whole request is answered once, in its order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.serve.endpoints.http_connection import HttpConnection, HttpConnections, HttpLimits, HttpRequest

LIMITS = HttpLimits(body=1000, bodies=3000, url=200, headers=10, head=2000, connections=2, ahead=4, chunks=5)


class Paper:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written, self.closed, self.aborted, self.paused, self.half = b"", False, False, False, False

    def write(self, data: bytes) -> None:
        assert not self.closed and not self.half, "written after the end"
        self.written += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def write_eof(self) -> None:
        self.half = True

    def can_write_eof(self) -> bool:
        return True

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False

    def get_extra_info(self, name: str) -> None:
        return None


class Asked:
    """An app that answers at once what begins with /now, and the rest when the test says so."""

    def __init__(self) -> None:
        self.held: list[HttpRequest] = []
        self.bodies: dict[str, bytes] = {}
        self.statuses: list[int] = []

    def look(self, request: HttpRequest) -> None:
        request.id = request.headers.get(b"x-request-id", b"").decode()
        if request.path == b"/refused":
            request.refusal = 401, b"no", ()
        if request.path == b"/broken":
            raise RuntimeError("ours")

    def handle(self, request: HttpRequest) -> None:
        self.bodies[request.id] = request.body
        if request.path.startswith(b"/now"):
            request.respond(200, [request.body])
        else:
            self.held.append(request)

    def answered(self, request: HttpRequest, status: int) -> None:
        self.statuses.append(status)


class Answers:
    """What a client reads: every answer by its status, id and body. Bytes that are no answers raise."""

    def __init__(self, data: bytes) -> None:
        self.found: list[tuple[int, str, bytes]] = []
        self.last: dict[bytes, bytes] = {}
        while data:
            head, _, rest = data.partition(b"\r\n\r\n")
            first, *lines = head.split(b"\r\n")
            assert first.startswith(b"HTTP/1.1 "), data
            status = int(first.split(b" ")[1])
            self.last = dict(line.split(b": ", 1) for line in lines)
            length = int(self.last.get(b"content-length", b"0"))
            body, data = rest[:length], rest[length:]
            assert len(body) == length
            if status != 100:
                self.found.append((status, self.last.get(b"x-request-id", b"").decode(), body))

    @property
    def statuses(self) -> list[int]:
        return [status for status, _, _ in self.found]


class Talk:
    """A connection with all around it, in an event loop of its own."""

    def __init__(self, limits: HttpLimits = LIMITS, connections: HttpConnections | None = None) -> None:
        self.loop = asyncio.new_event_loop()
        self.troubles: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.troubles.append(context))
        self.app, self.paper = Asked(), Paper()
        self.connections = HttpConnections() if connections is None else connections
        self.it = self.do(lambda: HttpConnection(self.app, limits, self.connections))
        self.do(lambda: self.it.connection_made(self.paper))  # type: ignore[arg-type]

    def do(self, what: Callable[[], Any]) -> Any:
        """Call something inside of the loop, and let all follow that follows from it."""

        async def call() -> Any:
            given = what()
            for _ in range(20):
                await asyncio.sleep(0)
            return given

        return self.loop.run_until_complete(call())

    def say(self, data: bytes) -> Answers:
        self.do(lambda: self.it.data_received(data))
        return self.answers

    @property
    def answers(self) -> Answers:
        return Answers(self.paper.written)

    def later(self, seconds: float) -> None:
        self.do(lambda: self.it.check(self.loop.time() + seconds))

    def answer(self) -> None:
        request = self.app.held.pop(0)
        self.do(lambda: request.respond(200, [request.body]))

    def lose(self) -> None:
        self.do(lambda: self.it.connection_lost(None))


@pytest.fixture
def talk() -> Iterator[Talk]:
    made = Talk()
    yield made
    made.lose()
    assert made.connections.bytes == 0 and not made.connections.open
    made.loop.close()


GET = b"GET /now HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /now HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"


def test_a_request_is_answered_and_the_connection_kept(talk: Talk) -> None:
    assert talk.say(POST).found == [(200, "", b"abc")]
    assert talk.say(GET).statuses == [200, 200] and not talk.paper.closed


CUT = (
    b"POST /now HTTP/1.1\r\nHost: a\r\nX-Request-Id: 1\r\nContent-Length: 5\r\n\r\nhello"
    b"POST /now HTTP/1.1\r\nx-request-id: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"2\r\nab\r\n1;e=f\r\nc\r\n0\r\nT: u\r\n\r\n"
    b"HEAD /now HTTP/1.1\r\nx-request-id: 3\r\n\r\n"
    b"GET /now HTTP/1.1\r\nx-request-id: 4\r\nConnection: close\r\n\r\n"
)


@pytest.mark.parametrize("at", range(1, len(CUT)))
def test_requests_cut_at_any_byte(at: int) -> None:
    talk = Talk()
    talk.say(CUT[:at])
    found = talk.say(CUT[at:]).found
    assert found == [(200, "1", b"hello"), (200, "2", b"abc"), (200, "3", b""), (200, "4", b"")]
    assert talk.paper.closed
    talk.lose()
    talk.loop.close()


def test_byte_by_byte(talk: Talk) -> None:
    for at in range(len(CUT)):
        talk.say(CUT[at : at + 1])
    assert [id for _, id, _ in talk.answers.found] == ["1", "2", "3", "4"]


REFUSED = {
    "no request at all": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello TLS\r\n\r\n", 400),
    "two lengths": (b"POST /now HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400),
    "two ends of the body": (
        b"POST /now HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400,
    ),
    "an encoding before HTTP/1.1": (b"POST /now HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "an unknown encoding": (b"POST /now HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\nabc", 400),
    "an obscured encoding": (b"POST /now HTTP/1.1\r\nTransfer-Encoding: chunked, identity\r\n\r\nabc", 400),
    "a length with a sign": (b"POST /now HTTP/1.1\r\nContent-Length: +3\r\n\r\nabc", 400),
    "a blank before the colon": (b"GET /now HTTP/1.1\r\nHost : a\r\n\r\n", 400),
    "a folded header": (b"GET /now HTTP/1.1\r\nA: b\r\n c\r\n\r\n", 400),
    "lines without a carriage return": (b"GET /now HTTP/1.1\nHost: a\n\n", 400),
    "a zero in a header": (b"GET /now HTTP/1.1\r\nA: b\0c\r\n\r\n", 400),
    "two authorizations": (b"GET /now HTTP/1.1\r\nAuthorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n", 400),
    "two lengths of the JSON": (
        b"GET /now HTTP/1.1\r\nInference-Header-Content-Length: 1\r\ninference-header-content-length: 2\r\n\r\n", 400,
    ),
    "another protocol": (b"GET /now HTTP/2.0\r\n\r\n", 505),
    "a long URL": (b"GET /" + b"a" * 201 + b" HTTP/1.1\r\n\r\n", 414),
    "many headers": (b"GET /now HTTP/1.1\r\n" + b"a: b\r\n" * 11 + b"\r\n", 431),
    "long headers": (b"GET /now HTTP/1.1\r\na: " + b"b" * 2000 + b"\r\n\r\n", 431),
    "a long header that does not end": (b"GET /now HTTP/1.1\r\na: " + b"b" * 100_000, None),
    "a length beyond all": (b"POST /now HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\nabc", 413),
    "a length beyond numbers": (b"POST /now HTTP/1.1\r\nContent-Length: " + b"9" * 400 + b"\r\n\r\nabc", 400),
    "chunks beyond all": (
        b"POST /now HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 6, 413,
    ),
    "a body beyond all in chunks": (
        b"POST /now HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"ff\r\n" + b"a" * 255 + b"\r\n"
        + (b"ff\r\n" + b"a" * 255 + b"\r\n") * 3, 413,
    ),
    "many trailers": (
        b"POST /now HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 11 + b"\r\n", 431,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_read(what: str) -> None:
    """It has one answer, with an error; the client may read that, and then the connection ends. Also byte by byte."""
    data, status = REFUSED[what]
    for step in (len(data), 1) if len(data) < 3000 else (len(data), 1000):
        talk = Talk()
        for at in range(0, len(data), step):
            talk.say(data[at : at + step])
        if status is None and step == len(data):  # one piece of bytes is not counted before it is read
            talk.say(b"b" * 3000)
        assert talk.answers.statuses == [status or 431], (what, step)
        assert b'"error"' in talk.paper.written and talk.answers.last[b"connection"] == b"close"
        assert talk.paper.half and not talk.paper.closed
        talk.say(b"GET /now HTTP/1.1\r\n\r\n" * 3)  # thrown away
        assert len(talk.answers.found) == 1 and not talk.app.bodies
        talk.later(LIMITS.linger_seconds + 0.1)
        assert talk.paper.aborted
        talk.lose()
        assert talk.connections.bytes == 0
        talk.loop.close()


def test_what_was_asked_before_is_answered_before_an_error(talk: Talk) -> None:
    talk.say(
        b"GET /later HTTP/1.1\r\nx-request-id: 1\r\n\r\n"
        + b"GET /now HTTP/1.1\r\nx-request-id: 2\r\n\r\nrubbish!\r\n\r\n"
    )
    assert not talk.answers.found
    talk.answer()
    assert [(status, id) for status, id, _ in talk.answers.found] == [(200, "1"), (200, "2"), (400, "")]
    assert talk.paper.half


def test_trailers_are_no_headers(talk: Talk) -> None:
    talk.say(b"POST /later HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nContent-Encoding: gzip\r\n\r\n")
    assert b"content-encoding" not in talk.app.held[0].headers


def test_an_error_of_ours_is_said_in_the_log_and_not_to_the_client(talk: Talk) -> None:
    assert talk.say(b"GET /broken HTTP/1.1\r\n\r\n").statuses == [500]
    assert b"ours" not in talk.paper.written and isinstance(talk.troubles[0]["exception"], RuntimeError)


def test_leave_to_send(talk: Talk) -> None:
    head = b"POST /now HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
    talk.say(head)
    assert talk.paper.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert talk.say(b"abc").found == [(200, "", b"abc")]


def test_leave_to_send_comes_after_answers_of_earlier_requests(talk: Talk) -> None:
    talk.say(
        b"GET /later HTTP/1.1\r\n\r\n" + b"POST /now HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
    )
    assert not talk.paper.written
    talk.answer()
    assert talk.paper.written.endswith(b"HTTP/1.1 100 Continue\r\n\r\n") and talk.answers.statuses == [200]
    assert talk.say(b"abc").statuses == [200, 200]


def test_who_is_turned_away_is_not_asked_for_a_body(talk: Talk) -> None:
    talk.say(b"POST /refused HTTP/1.1\r\nContent-Length: 900\r\nExpect: 100-continue\r\n\r\n")
    assert talk.answers.statuses == [401] and b"100 Continue" not in talk.paper.written and talk.paper.half


def test_the_body_of_a_refused_request_is_not_kept(talk: Talk) -> None:
    talk.say(b"POST /refused HTTP/1.1\r\nContent-Length: 900\r\n\r\n" + b"a" * 800)
    assert talk.connections.bytes == 0
    assert talk.say(b"a" * 100 + GET).statuses == [401, 200]


def test_nothing_else_is_spoken(talk: Talk) -> None:
    talk.say(b"GET /now HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
    assert talk.answers.statuses == [200] and talk.answers.last[b"connection"] == b"close" and talk.paper.closed


def test_http_1_0(talk: Talk) -> None:
    talk.say(b"GET /now HTTP/1.0\r\nConnection: keep-alive\r\nExpect: 100-continue\r\n\r\n")
    assert talk.answers.last[b"connection"] == b"keep-alive" and b"100 Continue" not in talk.paper.written
    assert talk.say(b"GET /now HTTP/1.0\r\n\r\n").statuses == [200, 200]
    assert talk.paper.closed


def test_head_has_the_length_and_no_body(talk: Talk) -> None:
    talk.do(lambda: talk.it.data_received(b"HEAD /now HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"))
    assert b"content-length: 3" in talk.paper.written and talk.paper.written.endswith(b"\r\n\r\n")
    talk.paper.written = b""
    assert talk.say(GET).statuses == [200]


def test_a_client_that_sends_ahead_without_end(talk: Talk) -> None:
    talk.say(b"GET /later HTTP/1.1\r\n\r\n" * 50)
    for _ in range(1 + LIMITS.ahead):
        talk.answer()
    assert talk.answers.statuses == [200] * (1 + LIMITS.ahead) + [429] and not talk.app.held


def test_a_client_that_sends_ahead_is_not_read_until_it_is_answered(talk: Talk) -> None:
    talk.say(b"GET /later HTTP/1.1\r\n\r\n" * 2)
    assert talk.paper.paused
    talk.later(1e6)  # whom we do not read is not late
    talk.answer()
    talk.answer()
    assert talk.answers.statuses == [200, 200] and not talk.paper.paused


def test_a_client_that_reads_nothing(talk: Talk) -> None:
    talk.say(GET)
    talk.do(talk.it.pause_writing)
    assert talk.paper.paused
    talk.later(LIMITS.send_seconds - 1.0)
    assert not talk.paper.closed
    talk.later(LIMITS.send_seconds + 1.0)
    assert talk.paper.aborted


def test_no_answer_is_made_for_a_client_that_reads_nothing(talk: Talk) -> None:
    talk.do(talk.it.pause_writing)
    talk.say(GET + GET)
    assert not talk.paper.written
    talk.do(talk.it.resume_writing)
    assert talk.answers.statuses == [200, 200] and not talk.paper.paused


@pytest.mark.parametrize(
    ("data", "seconds", "status"),
    [
        (b"", LIMITS.head_seconds, None),
        (b"GET /now HT", LIMITS.head_seconds, 408),
        (b"POST /now HTTP/1.1\r\nContent-Length: 3\r\n\r\nab", LIMITS.body_seconds, 408),
        (GET, LIMITS.idle_seconds, None),
    ],
)
def test_slow_clients(talk: Talk, data: bytes, seconds: float, status: int | None) -> None:
    before = len(talk.say(data).found)
    talk.later(seconds - 1.0)
    assert not talk.paper.closed and not talk.paper.half
    talk.later(seconds + 1.0)
    assert talk.answers.statuses[before:] == ([] if status is None else [status])
    talk.later(1000.0)
    assert talk.paper.closed


def test_an_answer_may_take_as_long_as_it_takes(talk: Talk) -> None:
    talk.say(b"GET /later HTTP/1.1\r\n\r\n")
    talk.later(1e6)
    talk.answer()
    assert talk.answers.statuses == [200]


def test_a_client_that_sends_nothing_more_has_its_answers(talk: Talk) -> None:
    talk.say(b"GET /later HTTP/1.1\r\n\r\n" * 2 + b"GET /la")
    assert talk.do(talk.it.eof_received) is True
    talk.answer()
    assert not talk.paper.closed
    talk.answer()
    assert talk.answers.statuses == [200, 200] and talk.answers.last[b"connection"] == b"close" and talk.paper.closed


def test_a_client_that_is_gone_is_told_to_whoever_computes(talk: Talk) -> None:
    gone: list[int] = []
    talk.say(b"POST /later HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc")
    request = talk.app.held[0]
    request.gone = lambda: gone.append(1)
    talk.lose()
    assert gone == [1]
    request.respond(200, [b"too late"])
    assert not talk.paper.written


def test_too_many_connections() -> None:
    connections = HttpConnections()
    talks = [Talk(connections=connections) for _ in range(3)]
    assert [talk.answers.statuses for talk in talks] == [[], [], [503]] and talks[2].paper.closed
    assert len(connections) == 2
    talks[0].lose()
    assert not Talk(connections=connections).paper.closed


def test_bodies_of_all_connections_have_one_room() -> None:
    connections = HttpConnections()
    limits = LIMITS._replace(bodies=1500, connections=9)
    first, second, third = (Talk(limits, connections) for _ in range(3))
    head = b"POST /later HTTP/1.1\r\nContent-Length: 900\r\n\r\n"
    first.say(head + b"a" * 900)
    assert second.say(head + b"a" * 900).statuses == [503]
    first.answer()
    assert connections.bytes == 0
    third.say(head + b"a" * 900)
    third.answer()
    assert third.answers.statuses == [200]


def test_draining_answers_all_that_was_asked(talk: Talk) -> None:
    talk.say(b"GET /later HTTP/1.1\r\n\r\n" * 3)
    talk.do(talk.it.drain)
    for _ in range(3):
        assert not talk.paper.closed
        talk.answer()
    assert talk.answers.statuses == [200] * 3 and talk.answers.last[b"connection"] == b"close" and talk.paper.closed


RUBBISH = [b"\0", b"GET\r\n", b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"GET / HTTP/7.7\r\n\r\n"]


class Conversation(RuleBasedStateMachine):
    """Requests of all kinds, cut anywhere, answered whenever, over a client that stops reading now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.talk = Talk(LIMITS._replace(ahead=1000, bodies=1 << 30))
        self.due: list[tuple[int, str]] = []  # of what was sent whole
        self.unsent = b""
        self.ids = 0
        self.spoiled = self.blocked = self.over = False

    @precondition(lambda self: not self.spoiled)
    @rule(
        path=st.sampled_from([b"/now", b"/later", b"/refused"]), body=st.binary(max_size=50),
        form=st.sampled_from(["none", "length", "chunked", "expect"]),
    )  # fmt: skip
    def ask(self, path: bytes, body: bytes, form: str) -> None:
        self.ids += 1
        head = b"POST %s HTTP/1.1\r\nX-Request-Id: %d\r\n" % (path, self.ids)
        if form == "none":
            self.unsent += head + b"\r\n"
        elif form == "chunked":
            chunk = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
            self.unsent += head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk + b"0\r\n\r\n"
        else:
            expect = b"Expect: 100-continue\r\n" if form == "expect" and path != b"/refused" else b""
            self.unsent += head + b"%sContent-Length: %d\r\n\r\n%s" % (expect, len(body), body)
        self.due.append((401 if path == b"/refused" else 200, str(self.ids)))

    @precondition(lambda self: not self.spoiled)
    @rule(rubbish=st.sampled_from(RUBBISH))
    def spoil(self, rubbish: bytes) -> None:
        self.unsent += rubbish
        self.spoiled = True

    @rule(share=st.floats(0.0, 1.0))
    def send(self, share: float) -> None:
        if self.talk.paper.paused:
            return
        at = round(share * len(self.unsent))
        data, self.unsent = self.unsent[:at], self.unsent[at:]
        if data and not self.talk.paper.closed:
            self.talk.say(data)

    @precondition(lambda self: self.talk.app.held)
    @rule()
    def answer(self) -> None:
        self.talk.answer()

    @rule()
    def stop_or_go_on_reading(self) -> None:
        if self.talk.paper.closed or self.talk.paper.half:
            return
        self.blocked = not self.blocked
        self.talk.do(self.talk.it.pause_writing if self.blocked else self.talk.it.resume_writing)

    @invariant()
    def answers_are_in_order_and_no_more_than_due(self) -> None:
        found = [(status, id) for status, id, _ in self.talk.answers.found]
        wanted = [*self.due, *[(status, id) for status, id in found[len(self.due) :] if self.spoiled and not id][:1]]
        assert found == wanted[: len(found)]
        assert not self.talk.troubles

    def teardown(self) -> None:
        talk = self.talk
        for _ in range(10_000):
            if self.blocked:
                self.stop_or_go_on_reading()
                self.blocked = False
            if talk.app.held:
                talk.answer()
            elif self.unsent and not talk.paper.paused and not talk.paper.closed:
                self.send(1.0)
            else:
                break
        found = talk.answers.found
        assert [(status, id) for status, id, _ in found[: len(self.due)]] == self.due
        assert len(found) == len(self.due) + self.spoiled
        talk.lose()
        assert talk.connections.bytes == 0
        talk.loop.close()


TestConversation = Conversation.TestCase
