"""Places as people write them, and names that lead nowhere."""

from __future__ import annotations

import socket

import pytest

from holdfast.core.routes import Address
from holdfast.errors import UsageError
from holdfast.transport.endpoint import listening_on, parse

HERE = [Address("127.0.0.1", "lo", "loopback"), Address("10.0.0.2", "eth0"), Address("fd00::2", "eth0")]
FORM = "Write HOST:PORT, or [HOST]:PORT for IPv6, such as 10.0.0.5:4000."


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("10.0.0.5:4000", ("10.0.0.5", 4000)),
        (" gpu7:0 ", ("gpu7", 0)),
        ("[fd00::5]:65535", ("fd00::5", 65535)),
        ("[fe80::5%eth0]:1", ("fe80::5%eth0", 1)),
        ("fd00::5", ("fd00::5", 7)),
        ("[fd00::5]", ("fd00::5", 7)),
        ("::", ("::", 7)),
        ("0.0.0.0", ("0.0.0.0", 7)),
    ],
)
def test_places(text: str, place: tuple[str, int]) -> None:
    assert parse(text, port=7) == place


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", f"'' is not an address. {FORM}"),
        (":4000", f"':4000' is not an address. {FORM}"),
        ("[::1:4000", f"'[::1:4000' is not an address. {FORM}"),
        ("http://gpu7:80", f"'http://gpu7:80' is not an address. {FORM}"),
        ("gpu7", f"'gpu7' names no port. {FORM}"),
        ("fd00::5", f"'fd00::5' names no port. {FORM}"),
        ("gpu7:", f"'gpu7:' names no port. {FORM}"),
        ("gpu7:x", f"'gpu7:x': the port is not a number from 0 to 65535. {FORM}"),
        ("gpu7:65536", f"'gpu7:65536': the port is not a number from 0 to 65535. {FORM}"),
        ("gpu7:" + "9" * 5000, f"'gpu7:{'9' * 75}': the port is not a number from 0 to 65535. {FORM}"),
    ],
)
def test_wrong_places(text: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert str(caught.value) == told


def resolved(monkeypatch: pytest.MonkeyPatch, *numbers: str) -> None:
    listed = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (number, 0)) for number in numbers]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: listed)


def test_a_name_that_stands_for_loopback_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved(monkeypatch, "127.0.1.1", "::1")
    with pytest.raises(UsageError) as caught:
        listening_on("gpu7", HERE)
    assert str(caught.value) == (
        "The host name gpu7 stands for 127.0.1.1 and ::1 on this machine (see /etc/hosts), where no other machine can "
        "reach it. Use an address of this machine instead: 10.0.0.2 (eth0) or fd00::2 (eth0)."
    )
    assert listening_on("localhost", HERE) == "127.0.1.1"


def test_a_name_that_stands_for_more_gives_what_others_can_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved(monkeypatch, "127.0.1.1", "10.0.0.2")
    assert listening_on("gpu7", HERE) == "10.0.0.2"


def test_a_name_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(UsageError) as caught:
        listening_on("gpu77", HERE)
    assert str(caught.value) == (
        "The host name gpu77 cannot be resolved: Name or service not known. Use an address of this machine instead: "
        "10.0.0.2 (eth0) or fd00::2 (eth0)."
    )


@pytest.mark.parametrize("number", ["0.0.0.0", "::", "127.0.0.1", "10.0.0.2", "fe80::1%eth0"])
def test_numbers_are_taken_as_they_are(number: str) -> None:
    assert listening_on(number, HERE) == number
