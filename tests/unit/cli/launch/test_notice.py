"""A notice: what tells that a machine is about to go, and that it is heard once."""

from __future__ import annotations

import http.server
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.launch.notice import Notice, parse
from holdfast.errors import ConfigError


@pytest.fixture
def cloud() -> Iterator[tuple[str, list[int]]]:
    """A URL, and with what it answers: 404 until it is told otherwise."""
    answers = [404]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answers[0])
            self.end_headers()
            self.wfile.write(b"terminate")

        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/spot", answers
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_file(tmp_path: Path) -> None:
    given = parse(str(tmp_path / "gone"))
    assert not given()
    (tmp_path / "gone").touch()
    assert given()


def test_a_url_that_answers(cloud: tuple[str, list[int]]) -> None:
    url, answers = cloud
    given = parse(url)
    assert not given()
    answers[0] = 200
    assert given()
    assert not parse("http://127.0.0.1:9/nobody")(), "nobody answers there"


def test_a_command(tmp_path: Path) -> None:
    given = parse(f"command:test -e '{tmp_path}/a b'")
    assert not given()
    (tmp_path / "a b").touch()
    assert given() and not parse("command:there-is-no-such-command")()


@pytest.mark.parametrize("source", ["", "command:", "command:   "])
def test_what_is_none(source: str) -> None:
    with pytest.raises(ConfigError, match=r"notice = .*must be a file, a URL, or command:WORDS"):
        parse(source)


def test_it_is_given_once_and_does_what_sigterm_does(tmp_path: Path) -> None:
    heard, said = threading.Event(), list[str]()
    before = signal.signal(signal.SIGTERM, lambda *_: heard.set())
    try:
        (tmp_path / "gone").touch()
        notice = Notice(str(tmp_path / "gone"), said.append)
        assert heard.wait(10.0)
        notice.close()
        notice.close()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert said == [f"notice given by {tmp_path / 'gone'}: this machine is about to go"]
