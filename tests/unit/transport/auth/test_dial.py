"""Dialling: every way it can fail ends in one sentence, in time, and with nothing left open."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from holdfast.errors import HoldfastError, NetworkError, NobodyListens, NotHoldfast, Refused, Unreachable, UsageError
from holdfast.transport.auth import token
from holdfast.transport.auth.credentials import Credentials
from holdfast.transport.auth.dial import connect
from holdfast.transport.auth.handshake import NONCE, Code, Greeter, Hello
from holdfast.transport.auth.tls import Authority, Material, server_context
from tests.unit.transport.lines import SOON, closed_by_the_other_side, door, nothing_left

TOKEN = token.make()
AUTHORITY = Authority("run")
MATERIAL = AUTHORITY.issue("host")


@contextlib.contextmanager
def impostor(behave: Callable[[socket.socket], object]) -> Iterator[tuple[str, int]]:
    """Something that listens, takes one connection, and does as it likes with it."""

    def serve() -> None:
        sock, _ = listener.accept()
        with sock, contextlib.suppress(OSError):
            sock.settimeout(SOON)
            behave(sock)

    with nothing_left():
        listener = socket.create_server(("127.0.0.1", 0))
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()
        thread.join(SOON)
        assert not thread.is_alive()
        listener.close()


def call(address: tuple[str, int], timeout: float = SOON, material: Material | None = None) -> HoldfastError:
    with pytest.raises(HoldfastError) as raised:
        connect(address, Hello("join", "0.1"), Credentials(TOKEN, material), timeout)
    assert TOKEN not in str(raised.value)
    return raised.value


def said(error: HoldfastError, address: tuple[str, int]) -> tuple[type[HoldfastError], str]:
    return type(error), str(error).replace(f"{address[0]}:{address[1]}", "HOST:PORT")


def test_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    assert said(call(address), address) == (
        NobodyListens,
        "Nothing listens at HOST:PORT. Check that the run is still going, and that this is the address it printed.",
    )


def test_a_name_that_nobody_knows() -> None:
    error = call(("no-such-host.invalid", 4000))
    assert isinstance(error, Unreachable)
    assert str(error).startswith("The host name of no-such-host.invalid:4000 cannot be resolved: ")
    assert str(error).endswith(" Check the spelling, or use the number of the address.")
    assert isinstance(call(("a" * 300, 4000)), Unreachable)


def test_a_name_that_stands_for_this_machine_though_another_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many systems write their own name into /etc/hosts, and as a copied file says of another machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ("127.0.1.1", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert said(call(("gpu7", port)), ("gpu7", port)) == (
        NobodyListens,
        "Nothing listens at HOST:PORT: on this machine the name gpu7 stands for 127.0.1.1 and 127.0.0.1 (see "
        "/etc/hosts), which is this machine itself. If the run is on another one, use the number of its address, which "
        "the run printed; if it is on this one, check that it is still going.",
    )
    for host in ("localhost", "127.0.0.1"):
        assert str(call((host, port))).endswith(
            ". Check that the run is still going, and that this is the address it printed."
        )


@pytest.mark.parametrize("port", [0, -1, 70_000])
def test_a_port_that_is_none(port: int) -> None:
    assert said(call(("127.0.0.1", port)), ("127.0.0.1", port)) == (
        UsageError, "HOST:PORT is no address to call: a port is 1 to 65535. Use the address that the run printed.",
    )


def test_nobody_answers() -> None:
    """A listener whose queue is full: the kernel drops what comes, as a firewall would."""
    with nothing_left(), socket.socket() as listener, contextlib.ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(4):
            sock = waiting.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(address)
        assert said(call(address, timeout=0.2), address) == (
            Unreachable,
            "No answer from HOST:PORT within 0.2 s. Check the address; if it is right, a firewall between the two "
            "machines may drop what is sent.",
        )


def test_somebody_takes_the_call_and_says_nothing() -> None:
    with impostor(closed_by_the_other_side) as address:
        assert said(call(address, timeout=0.2), address) == (
            Unreachable,
            "Somebody listens at HOST:PORT, but did not answer within 0.2 s. Check that it is the address of a "
            "Holdfast run, and that its machine is not overloaded.",
        )


def test_somebody_answers_a_byte_at_a_time() -> None:
    def drip(sock: socket.socket) -> None:
        for byte in b"HOLDFAST\x02\x20\x00" + bytes(NONCE):
            sock.sendall(bytes([byte]))
            threading.Event().wait(0.02)

    with impostor(drip) as address:
        assert isinstance(call(address, timeout=0.2), Unreachable)  # the time is for all of it


def test_an_end_in_the_middle() -> None:
    with impostor(lambda sock: sock.recv(100)) as address:
        assert said(call(address), address) == (
            NetworkError,
            "HOST:PORT closed the connection in the middle of the greeting. If the run is still going, try again; its "
            "log says whom it turned away.",
        )


@pytest.mark.parametrize("banner", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_something_else_answers(banner: bytes) -> None:
    with impostor(lambda sock: (sock.sendall(banner), sock.recv(1000))) as address:
        kind, sentence = said(call(address), address)
    assert kind is NotHoldfast
    assert sentence == (
        f"What answers at HOST:PORT is not a Holdfast run (it began with {banner[:11]!r}). Check address and port; if "
        "the run was started without --tls, call it without."
    )


def test_somebody_pretends_to_be_the_run() -> None:
    def pretend(sock: socket.socket) -> None:
        greeter = Greeter(token.make(), bytes(NONCE))
        sock.sendall(greeter.feed(sock.recv(44, socket.MSG_WAITALL)))
        sock.recv(1000)
        sock.sendall(struct.pack("<BH", 4, 32) + bytes(32))  # welcome, without a proof
        sock.recv(1000)

    with impostor(pretend) as address:
        assert said(call(address), address) == (
            NotHoldfast,
            "What answers at HOST:PORT cannot prove that it holds the run's token, so nothing was said to it. Check "
            "the address; if it is right, somebody pretends to be this run.",
        )


def test_another_way_of_greeting() -> None:
    with impostor(lambda sock: (sock.sendall(Greeter.turn_away(Code.PROTOCOL)), sock.recv(1000))) as address:
        assert said(call(address), address) == (
            Refused,
            "The run at HOST:PORT is of a Holdfast that greets in another way than 0.1 does. Install the same version "
            "on both machines.",
        )


# ---------------------------------------------------------------- TLS


def test_a_run_with_tls_called_without() -> None:
    with nothing_left(), door(Credentials(TOKEN, MATERIAL)) as opened:
        assert said(call(opened.address), opened.address) == (
            Refused,
            "The run at HOST:PORT was started with --tls, and this machine has no certificate. Give it the file "
            "`credentials` from the run's directory instead of the token.",
        )
        assert opened.complaint() == "Refused a connection from 127.0.0.1: it does not speak TLS, and this run does."


def test_a_run_without_tls_called_with() -> None:
    with nothing_left(), door(Credentials(TOKEN)) as opened:
        kind, sentence = said(call(opened.address, material=MATERIAL), opened.address)
        assert kind is NotHoldfast
        assert sentence == (
            "What answers at HOST:PORT does not agree on TLS (wrong version number). Check the address; if the run was "
            "started without --tls, call it with its token alone."
        )
        assert opened.complaint() == "Refused a connection from 127.0.0.1: it speaks TLS, and this run does not."


def test_a_run_with_another_authority() -> None:
    with nothing_left(), door(Credentials(TOKEN, Authority("run").issue("host"))) as opened:
        kind, sentence = said(call(opened.address, material=MATERIAL), opened.address)
        assert kind is NotHoldfast
        assert sentence.startswith("The certificate that HOST:PORT showed is not of this run (")
        assert sentence.endswith(
            ". Copy the file `credentials` from the run's directory again, and check the address."
        )


def test_a_caller_whose_certificate_is_of_another_authority() -> None:
    """It trusts the run, but the run does not trust it."""
    stranger = Authority("run").issue("stranger")
    mixed = Material(MATERIAL.authority, stranger.certificate, stranger.key)
    with nothing_left(), door(Credentials(TOKEN, MATERIAL)) as opened:
        assert isinstance(call(opened.address, material=mixed), NetworkError)
        assert opened.complaint().startswith("Refused a connection from 127.0.0.1: TLS with it failed: cert")


def test_a_caller_without_a_certificate() -> None:
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
    with nothing_left(), door(Credentials(TOKEN, MATERIAL)) as opened:
        with opened.raw() as sock, bare.wrap_socket(sock) as line, pytest.raises(ssl.SSLError):
            line.recv(1)
        assert opened.complaint().startswith("Refused a connection from 127.0.0.1: TLS with it failed: peer did not")


def test_an_older_tls_is_refused() -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with nothing_left(), door(Credentials(TOKEN, MATERIAL)) as opened:
        with opened.raw() as sock, pytest.raises(ssl.SSLError):
            old.wrap_socket(sock).close()
        assert opened.complaint().startswith("Refused a connection from 127.0.0.1: TLS with it failed: unsupported")


def test_an_impostor_with_the_certificate_but_without_the_token() -> None:
    def pretend(sock: socket.socket) -> None:
        with server_context(MATERIAL).wrap_socket(sock, server_side=True) as line:
            greeter = Greeter(token.make(), bytes(NONCE))
            line.sendall(greeter.feed(line.recv(44)))
            line.recv(1000)
            line.sendall(struct.pack("<BH", 4, 32) + bytes(32))
            line.recv(1)

    with impostor(pretend) as address:
        assert isinstance(call(address, material=AUTHORITY.issue("caller")), NotHoldfast)
