"""A live listener, and everybody who should not come in. After each of them somebody who should does."""

from __future__ import annotations

import os
import random
import resource
import select
import socket
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from holdfast.config.limits import NETWORK
from holdfast.errors import OtherRun, OtherVersion, Refused, UsageError, WrongToken
from holdfast.transport.auth import token
from holdfast.transport.auth.credentials import Credentials
from holdfast.transport.auth.handshake import MAX_HELLO, NONCE, Caller, Code, Hello
from holdfast.transport.auth.listener import Listener, pushed_out
from holdfast.transport.auth.proof import PROOF
from holdfast.transport.auth.tls import Authority
from tests.unit.transport.lines import SOON, Door, closed_by_the_other_side, door, nothing_left

FROM = "Refused a connection from 127.0.0.1"
MATERIAL = Authority("run").issue("host")


@pytest.fixture(params=["plain", "tls"])
def opened(request: pytest.FixtureRequest) -> Iterator[Door]:
    material = MATERIAL if request.param == "tls" else None
    with nothing_left(), door(Credentials(token.make(), material), deadline=SOON) as opened:
        yield opened
        assert_somebody_comes_in(opened)


@pytest.fixture
def plain() -> Iterator[Door]:
    with nothing_left(), door(deadline=SOON) as opened:
        yield opened
        assert_somebody_comes_in(opened)


def assert_somebody_comes_in(opened: Door) -> None:
    ours, theirs = opened.joined()
    ours.send(b"here")
    got = bytearray(4)
    theirs.recv_into(memoryview(got))
    assert got == b"here"
    ours.close()
    theirs.close()


def test_who_holds_the_token_comes_in_with_its_hello(opened: Door) -> None:
    hello = Hello("peer", host=3, generation=7, facts={"cores": 8, "nics": ["eth0"]})
    ours = opened.call(hello)
    came, theirs = opened.came.get(timeout=SOON)
    assert came == hello
    assert ours.peer == "{}:{}".format(*opened.address)
    assert theirs.peer.startswith("127.0.0.1:")
    ours.close()
    theirs.close()
    assert opened.keeper.turned_away == 0 and opened.complaints.empty()


def test_what_is_said_right_after_the_greeting_is_not_lost() -> None:
    def welcome(hello: Hello, stream) -> None:
        arrived.append(stream)
        stream.send(b"first word")

    arrived: list = []
    with nothing_left(), door(came=welcome) as opened:
        ours = opened.call()
        got = bytearray(10)
        ours.recv_into(memoryview(got))
        assert got == b"first word"
        ours.close()
        arrived[0].close()


# ---------------------------------------------------------------- strangers


def test_a_bare_connect_and_close(opened: Door) -> None:
    opened.raw().close()
    assert opened.complaint() == f"{FROM}: it closed the connection before it had said who it is."


def test_a_reset(opened: Door) -> None:
    sock = opened.raw(b"HOLD" if opened.credentials.tls is None else b"\x16\x03\x01")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    sock.close()
    assert opened.complaint() == f"{FROM}: it closed the connection before it had said who it is."


def test_garbage(plain: Door) -> None:
    assert closed_by_the_other_side(plain.raw(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")) == b""
    assert plain.complaint() == f"{FROM}: it is not a Holdfast (it began with b'GET / HTTP/')."


def test_garbage_where_tls_is_spoken() -> None:
    with nothing_left(), door(Credentials(token.make(), MATERIAL)) as opened:
        closed_by_the_other_side(opened.raw(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
        assert opened.complaint() == f"{FROM}: TLS with it failed: http request."
        assert_somebody_comes_in(opened)


def test_an_oversized_hello(plain: Door) -> None:
    with plain.raw(Caller("t", bytes(NONCE), Hello("join")).opening) as sock:
        challenge = sock.recv(100)
        assert challenge.startswith(b"HOLDFAST")
        sock.sendall(b"\x03\xff\xff")
        assert closed_by_the_other_side(sock) == b""
    assert plain.complaint() == (
        f"{FROM}: it is not a Holdfast (it announced a message of 65535 bytes, where 32 to {32 + MAX_HELLO} are taken)."
    )


def test_a_handshake_without_end() -> None:
    """TLS records of the right form that never become a greeting: bounded in bytes."""
    with nothing_left(), door(Credentials(token.make(), MATERIAL), deadline=SOON) as opened:
        sock = opened.raw()
        record = b"\x16\x03\x01\x40\x00" + b"\x01\x00\xff\xff" + bytes(16380)  # a ClientHello of 64 KiB, in parts
        try:
            for _ in range(100):
                sock.sendall(record)
        except ConnectionError:
            pass
        closed_by_the_other_side(sock)
        assert "Refused a connection from 127.0.0.1: " in opened.complaint()
        assert_somebody_comes_in(opened)


def test_a_slow_loris_gets_its_time_and_no_more() -> None:
    with nothing_left(), door(deadline=0.2) as opened:
        began = time.monotonic()
        sock = opened.raw()
        line = iter(Caller(opened.credentials.token, bytes(NONCE), Hello("join")).opening)
        while not select.select([sock], [], [], 0.01)[0]:  # a byte now and then, all of them right
            sock.sendall(bytes([next(line)]))
        assert closed_by_the_other_side(sock) == b""
        assert 0.2 <= time.monotonic() - began < SOON
        assert opened.complaint() == f"{FROM}: it did not say who it is within 0.2 s."
        assert_somebody_comes_in(opened)


def test_a_wrong_token(opened: Door) -> None:
    with pytest.raises(WrongToken):
        opened.call(credentials=Credentials(token.make(), opened.credentials.tls))
    assert opened.complaint() == f"{FROM}: it does not hold the run's token."


def test_a_replayed_greeting(plain: Door) -> None:
    """Everything an honest caller said, recorded and said again."""
    caller = Caller(plain.credentials.token, os.urandom(NONCE), Hello("join"))
    with plain.raw(caller.opening) as sock:
        proof = caller.feed(sock.recv(43, socket.MSG_WAITALL))
        sock.sendall(proof)
        caller.feed(sock.recv(35, socket.MSG_WAITALL))
        assert caller.welcome
        plain.came.get(timeout=SOON)[1].close()
    with plain.raw(caller.opening) as sock:
        sock.recv(43, socket.MSG_WAITALL)
        sock.sendall(proof)
        answer = closed_by_the_other_side(sock)
    assert answer == b"\x05\x21\x00" + bytes(PROOF) + bytes([Code.TOKEN])
    assert plain.complaint() == f"{FROM}: it does not hold the run's token."
    assert plain.came.empty()


def test_another_version_another_run_and_a_run_that_says_no() -> None:
    reasons = {"probe": "No measurements now."}
    with nothing_left(), door(admit=lambda hello: reasons.get(hello.kind), run="r1", version="1.0") as opened:
        with pytest.raises(OtherVersion, match=r"is of Holdfast 1\.0, and this machine has 0\.9"):
            opened.call(Hello("join", "0.9"))
        assert opened.complaint() == (
            f"{FROM}: it has another version of Holdfast (it has 0.9, this run has 1.0). Install the same one there."
        )
        with pytest.raises(OtherRun, match="is r1, not r2"):
            opened.call(Hello("join", "1.0", "r2"))
        assert opened.complaint() == f"{FROM}: it means another run (it means run r2, this is r1)."
        with pytest.raises(Refused, match=r"will not have this machine: No measurements now\.$"):
            opened.call(Hello("probe", "1.0"))
        assert opened.complaint() == f"{FROM}: the run will not have it: No measurements now."
        opened.call(Hello("join", "1.0", "r1")).close()
        opened.came.get(timeout=SOON)[1].close()


# ---------------------------------------------------------------- crowds


class Waiting(NamedTuple):
    host: str
    since: float


def test_who_is_pushed_out_is_the_oldest_of_those_who_take_most_places() -> None:
    crowd = [Waiting("joiner", 1.0), Waiting("flood", 3.0), Waiting("flood", 2.0), Waiting("other", 0.5)]
    assert pushed_out(crowd) == Waiting("flood", 2.0)
    assert pushed_out(crowd[:1] + crowd[3:]) == Waiting("other", 0.5)


def test_more_than_a_crowd_pushes_out_its_oldest(plain: Door) -> None:
    first = plain.raw()
    others = [plain.raw() for _ in range(NETWORK.handshakes)]
    assert closed_by_the_other_side(first) == b""
    assert plain.complaint() == (
        f"{FROM}: more than {NETWORK.handshakes} connections had not said who they are, most of them from there."
    )
    assert_somebody_comes_in(plain)  # while they all still sit there
    for sock in others:
        sock.close()


def malformed(opened: Door, rng: random.Random) -> None:
    """One bad connection of any kind."""
    begin = rng.choice([b"", b"HOLDFAST", b"HOLDFAST\x01\x21\x00\x01", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n"])
    with opened.raw() as sock:
        try:
            sock.sendall(begin + rng.randbytes(rng.choice([0, 1, 40, 500, 20_000])))
            if rng.random() < 0.3:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            elif rng.random() < 0.3:
                sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it was thrown out while it was still talking


def test_a_thousand_malformed_connections(opened: Door) -> None:
    rng = random.Random(7)
    for number in range(1000):
        malformed(opened, rng)
        if number % 250 == 0:
            assert_somebody_comes_in(opened)
    until = time.monotonic() + SOON
    while opened.keeper.turned_away < 1000 and time.monotonic() < until:
        assert_somebody_comes_in(opened)
    assert opened.keeper.turned_away == 1000
    assert opened.complaints.qsize() <= len(Code)  # each reason once


def test_each_reason_is_told_once_per_address_and_then_counted(plain: Door) -> None:
    for _ in range(3):
        closed_by_the_other_side(plain.raw(b"nonsense"))
        with pytest.raises(WrongToken):
            plain.call(credentials=Credentials(token.make()))
    assert sorted([plain.complaint(), plain.complaint()]) == [
        f"{FROM}: it does not hold the run's token.",
        f"{FROM}: it is not a Holdfast (it began with b'nonsense').",
    ]
    assert_somebody_comes_in(plain)  # one thread does it all, so all that came before is counted
    assert plain.complaints.empty()
    assert plain.keeper.turned_away == 6


def test_somebody_with_many_addresses_does_not_fill_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.transport.auth.listener.NETWORK", replace(NETWORK, refusals_told=2))
    with nothing_left(), door() as opened:
        for number in range(2, 9):  # all of 127/8 is this machine
            with socket.create_connection(opened.address, SOON, (f"127.0.0.{number}", 0)) as sock:
                sock.sendall(b"nonsense")
                closed_by_the_other_side(sock)
        told = [opened.complaints.get(timeout=SOON) for _ in range(3)]
        assert told[2] == "Refused connections for 2 different reasons; no more of them are told."
        assert_somebody_comes_in(opened)
        assert opened.complaints.empty() and opened.keeper.turned_away == 7


def test_strangers_get_a_fifth_of_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    with door() as opened:
        monkeypatch.setattr(opened.keeper._closing, "wait", lambda seconds: rests.append(seconds))
        monkeypatch.setattr(time, "thread_time", iter(range(1000)).__next__)  # every round takes a second
        assert_somebody_comes_in(opened)
        assert rests == []
        closed_by_the_other_side(opened.raw(b"nonsense"))
        opened.complaint()
        assert_somebody_comes_in(opened)
        assert rests == [0.05]  # and not four seconds: nobody waits long


# ---------------------------------------------------------------- our own troubles


def test_no_descriptors_left_is_survived() -> None:
    with nothing_left(), door() as opened:
        waiting = socket.socket()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        try:
            waiting.connect(opened.address)
            told = opened.complaints.get(timeout=SOON)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert told == "No connection can be taken at the moment: Too many open files."
        waiting.close()
        assert_somebody_comes_in(opened)


def test_callbacks_that_raise_cost_their_connection_and_not_the_door() -> None:
    def admit(hello: Hello) -> str | None:
        if hello.kind == "probe":
            raise KeyError("host")
        return None

    def came(hello: Hello, stream) -> None:
        if hello.kind == "fetch":
            raise RuntimeError("no peer session yet")
        opened.came.put((hello, stream))

    with nothing_left(), door(admit=admit, came=came) as opened:
        with pytest.raises(Refused, match=r"the run failed while it looked at it \(KeyError: 'host'\)\."):
            opened.call(Hello("probe"))
        opened.complaints.get(timeout=SOON)
        stream = opened.call(Hello("fetch"))
        with pytest.raises(EOFError):
            stream.recv_into(memoryview(bytearray(1)))
        stream.close()
        assert opened.complaints.get(timeout=SOON).endswith("was lost: RuntimeError: no peer session yet.")
        assert_somebody_comes_in(opened)


def test_a_log_that_cannot_be_written_does_not_close_the_door() -> None:
    with nothing_left(), door() as opened:
        opened.keeper._complain = lambda sentence: 1 / 0  # type: ignore[assignment,return-value]
        closed_by_the_other_side(opened.raw(b"nonsense"))
        assert_somebody_comes_in(opened)


def test_closing_lets_go_who_waits_and_keeps_who_came_in() -> None:
    with nothing_left():
        with door(deadline=SOON) as opened:
            waits = opened.raw()
            ours, theirs = opened.joined()
            opened.keeper.close()
            opened.keeper.close()
            assert closed_by_the_other_side(waits) == b""
            ours.send(b"x")
            theirs.recv_into(memoryview(bytearray(1)))
            ours.close()
            theirs.close()
            with pytest.raises(ConnectionRefusedError):
                opened.raw()
        assert not [thread for thread in threading.enumerate() if "listener" in thread.name]


def test_the_clock_on_the_wall_is_never_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: pytest.fail("a clock that may be hours off was asked"))
    with door() as opened:
        assert_somebody_comes_in(opened)
        closed_by_the_other_side(opened.raw(b"nonsense"))


# ---------------------------------------------------------------- where it listens


def test_it_listens_where_it_was_told_and_else_on_loopback() -> None:
    with door(bind=("", 0)) as opened:
        assert opened.address[0] == "127.0.0.1" and opened.address[1] > 0


@pytest.mark.skipif(not os.path.exists("/proc/net/if_inet6"), reason="this machine has no IPv6")
@pytest.mark.parametrize("bind", ["::1", "::"])
def test_ipv6(bind: str) -> None:
    with nothing_left(), door(bind=(bind, 0)) as opened:
        port = opened.address[1]
        opened.keeper.address = ("::1", port)
        assert_somebody_comes_in(opened)
        with socket.create_connection(("::1", port)) as sock:
            sock.sendall(b"nonsense")
            closed_by_the_other_side(sock)
        assert opened.complaint() == f"{FROM[:-9]}[::1]: it is not a Holdfast (it began with b'nonsense')."
        if bind == "::":  # every address, so the old ones too, under their own names
            with socket.create_connection(("127.0.0.1", port)) as sock:
                sock.sendall(b"nonsense")
                closed_by_the_other_side(sock)
            assert opened.complaint() == f"{FROM}: it is not a Holdfast (it began with b'nonsense')."


@pytest.mark.parametrize("bind", [("203.0.113.7", 0), ("127.0.0.1", 70_000), ("no such name", 0)])
def test_where_nobody_can_listen_is_said(bind: tuple[str, int]) -> None:
    with nothing_left(), pytest.raises(UsageError, match=rf"^Cannot listen at {bind[0]}:{bind[1]}: .*Use an address"):
        Listener(bind, Credentials(token.make()), admit=lambda h: None, came=lambda h, s: None, complain=print)


def test_a_port_that_is_taken_is_said() -> None:
    with door() as opened:
        with pytest.raises(UsageError) as raised, door(bind=opened.address):
            pass
        assert str(raised.value) == (
            f"Cannot listen at 127.0.0.1:{opened.address[1]}: Address already in use. Use an address of this machine "
            "(`ip address` shows them) and a free port, or port 0 for any."
        )
