"""Measuring, against a responder in this process. Between hosts of their own: tests/unit/cli/test_network_report.py."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import msgspec
import pytest

from holdfast.config.limits import NETWORK
from holdfast.core.routes import Address, NoRoute, Offer, Trial, choose
from holdfast.errors import FrameError, WrongToken
from holdfast.transport import probes
from holdfast.transport.frames import Kind, pack
from holdfast.transport.network import (
    Limits,
    Responder,
    candidates,
    describe,
    identity,
    knock,
    probe,
    survey,
    survey_from,
)
from holdfast.transport.stream import PlainStream, Stream

QUICK = Limits(pings=5, seconds=0.05, size=2**20)
LOCAL = Address("127.0.0.1", "lo", "loopback")
SECOND = Address("127.0.0.2", "lo2", "loopback")  # another name: another wire


class Listening:
    """A host without a listener: whoever connects is answered."""

    def __init__(self, *, asked: bool = False) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.offer = Offer(identity(), "gpu7", self.listener.getsockname()[1], (LOCAL, SECOND))
        self.responder = Responder(self.offer, dial=self.dial if asked else None)
        self.answering: list[threading.Thread] = []
        self.dialled: list[str] = []
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self.responder.answer, args=(PlainStream(sock, "whoever"),))
            self.answering.append(thread)
            thread.start()

    def dial(self, ip: str, port: int) -> Stream:
        self.dialled.append(ip)
        return PlainStream(socket.create_connection(("127.0.0.1", port), 2.0), ip)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self._thread.join()
        for thread in self.answering:
            thread.join(5.0)
            assert not thread.is_alive(), "every connection is served to its end"


@pytest.fixture
def host() -> Iterator[Listening]:
    with closing(Listening()) as it:
        yield it


@pytest.fixture
def pair() -> Iterator[tuple[PlainStream, PlainStream]]:
    ours, theirs = PlainStream.pair()
    with closing(ours), closing(theirs):
        yield ours, theirs


# ---------------------------------------------------------------- surveys


def test_every_address_that_answers_is_measured(host: Listening) -> None:
    trials = survey(host.offer, host.dial, limits=QUICK)
    assert [trial.dial for trial in trials] == ["127.0.0.1", "127.0.0.2"]
    for trial in trials:
        assert not trial.problem
        assert trial.here is not None
        assert 0 < trial.latency < 1
        assert min(trial.sent, trial.received) > 1e6
    # One connection each to knock and ping, one for each direction.
    assert sorted(host.dialled) == ["127.0.0.1"] * 3 + ["127.0.0.2"] * 3


def test_where_there_is_one_wire_nothing_but_pings_is_sent(host: Listening) -> None:
    offer = Offer(host.offer.identity, "gpu7", host.offer.port, (LOCAL, Address("127.0.0.3", "lo", "loopback")))
    choice = probe(offer, host.dial, here="host 1", limits=QUICK)
    assert choice.trial.dial == "127.0.0.1"
    assert choice.trial.sent == 0.0
    assert choice.sentence.endswith(" ms), the only network that connects them")
    assert sorted(host.dialled) == ["127.0.0.1", "127.0.0.3"], "no burst"


def test_where_there_are_two_both_are_measured_to_choose(host: Listening) -> None:
    choice = probe(host.offer, host.dial, here="host 1", limits=QUICK)
    assert choice.sentence.startswith("host 1 and gpu7 talk over lo to 127.0.0.")
    assert " than lo to 127.0.0." in choice.sentence


def test_whoever_answers_under_another_identity_is_not_used(host: Listening) -> None:
    offer = Offer(identity(), "gpu7", host.offer.port, (LOCAL,))
    (trial,) = survey(offer, host.dial, limits=QUICK)
    assert trial.problem == "another machine answers there, or this one itself"
    with pytest.raises(NoRoute, match=r"lo to 127\.0\.0\.1: another machine answers there"):
        probe(offer, host.dial, limits=QUICK)


def test_a_knock_waits_for_no_address_but_the_first_that_answers(host: Listening) -> None:
    asked, go = threading.Event(), threading.Event()

    def dial(ip: str, port: int) -> Stream:
        if ip == "127.0.0.2":
            asked.set()
            assert go.wait(20)
        return host.dial(ip, port)

    knock(host.offer, dial)
    assert asked.wait(20) and len(host.answering) == 1
    go.set()
    while len(host.answering) < 2:  # it is made all the same, and ends at once
        time.sleep(0.001)


def test_a_knock_that_nobody_answers(host: Listening) -> None:
    offer = Offer(identity(), "gpu7", host.offer.port, (LOCAL,))
    with pytest.raises(NoRoute) as caught:
        knock(offer, host.dial, here="host 1")
    assert str(caught.value).startswith(
        f"host 1 cannot reach gpu7 at any of its addresses, port {offer.port} (lo to 127.0.0.1: another machine "
        "answers there, or this one itself). "
    )
    with pytest.raises(NoRoute, match="it offered none"):
        knock(Offer("x", "gpu7", 1, ()), host.dial)


def test_a_dead_address_is_named_with_its_reason(host: Listening) -> None:
    def dial(ip: str, port: int) -> Stream:
        if ip == "127.0.0.2":
            raise WrongToken("127.0.0.2:1")
        return host.dial(ip, port)

    first, second = survey(host.offer, dial, limits=QUICK)
    assert not first.problem
    assert second.problem == "The run at 127.0.0.2:1 has another token"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (trial,) = survey(Offer("x", "gpu7", port, (LOCAL,)), host.dial, limits=QUICK)
    assert trial.problem == "Connection refused"
    assert survey(Offer("x", "gpu7", port, ()), host.dial) == []


def test_one_host_asks_another_to_measure() -> None:
    with closing(Listening(asked=True)) as asked, closing(Listening()) as target:
        with closing(asked.dial("127.0.0.1", asked.offer.port)) as stream:
            assert describe(stream) == asked.offer
            trials = survey_from(stream, target.offer)
        assert [trial.problem for trial in trials] == ["", ""]
        with closing(target.dial("127.0.0.1", target.offer.port)) as stream, pytest.raises((EOFError, OSError)):
            survey_from(stream, asked.offer)  # this one only answers


def test_the_addresses_of_this_machine() -> None:
    assert candidates("127.0.0.1") == [LOCAL]
    assert candidates()
    assert len(identity()) == 16 and identity() != identity()


# ---------------------------------------------------------------- bursts


def test_a_burst_is_bounded_in_bytes(pair: tuple[PlainStream, PlainStream]) -> None:
    ours, theirs = pair
    asked = threading.Thread(target=Responder(Offer("x", "", 0, ())).answer, args=(theirs,))
    asked.start()
    assert probes.received(ours, 0.5, 300_000) > 0
    asked.join(5.0)
    assert not asked.is_alive()


def test_a_burst_is_bounded_in_time(pair: tuple[PlainStream, PlainStream]) -> None:
    ours, theirs = pair
    sender = threading.Thread(target=probes.pour, args=(theirs, 0.05, 2**60))
    sender.start()
    _, size = probes.receive(ours)
    assert size == NETWORK.probe_bytes, "whatever is asked for"
    begin = time.perf_counter()
    assert probes.drink(ours, 0.001, size) > 0
    assert time.perf_counter() - begin < 1.0
    ours.close()  # that is how a receiver says that it has enough
    sender.join(5.0)
    assert not sender.is_alive()


def test_a_sender_that_stops_does_not_hold_up_the_receiver(pair: tuple[PlainStream, PlainStream]) -> None:
    ours, theirs = pair
    theirs.send(bytes(probes._FIRST_READ))
    begin = time.perf_counter()
    assert probes.drink(ours, 0.05, 10**6) > 0
    assert time.perf_counter() - begin < 1.0
    theirs.close()
    assert probes.drink(ours, 0.05, 10**6) == 0.0


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (bytes(32), "it begins with b'"),
        (pack(Kind.SUM, 0), "its kind is SUM, on a connection that measures"),
        (pack(Kind.PROBE, 0, b"\xc1"), "its meta is no message of a measurement: "),
        (pack(Kind.PROBE, 0, msgspec.msgpack.encode({"type": "Pong"})), "its meta is no message of a measurement: "),
        (pack(Kind.PROBE, 0, msgspec.msgpack.encode(probes.Ping()), 5), "a Ping with 5 bytes behind it"),
        (pack(Kind.PROBE, 0, msgspec.msgpack.encode(probes.Ping())), "a Ping, where a Pong is due"),
    ],
)
def test_nonsense_is_refused(pair: tuple[PlainStream, PlainStream], sent: bytes, told: str) -> None:
    ours, theirs = pair
    theirs.send(sent)
    with pytest.raises(FrameError) as caught:
        probes.ask(ours, probes.Ping(), probes.Pong)
    assert told in str(caught.value)


def test_a_responder_closes_on_nonsense_and_says_nothing(pair: tuple[PlainStream, PlainStream]) -> None:
    ours, theirs = pair
    ours.send(pack(Kind.PROBE, 0, msgspec.msgpack.encode(probes.Got(1.0))))
    Responder(Offer("x", "", 0, ())).answer(theirs)
    with pytest.raises(EOFError):
        ours.recv_into(memoryview(bytearray(1)))


def test_an_answer_reaches_a_sender_that_is_stopped_in_the_middle() -> None:
    """The receiver closes with bytes unread, so the kernel resets the connection; its answer must not get lost."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for _ in range(20):
            sock = socket.create_connection(listener.getsockname())
            ours, theirs = PlainStream(sock, "there"), PlainStream(listener.accept()[0], "here")
            answer = threading.Thread(target=Responder(Offer("x", "", 0, ())).answer, args=(theirs,))
            answer.start()
            assert probes.sent(ours, 0.005, 2**26) > 0
            answer.join(5.0)
            assert not answer.is_alive()


def test_trials_travel_whole() -> None:
    trial = Trial("fe80::1%a", LOCAL, None, problem="é")
    message = probes.Surveyed([trial, Trial("x", LOCAL, SECOND, 1.0, 2.0, 3.0)])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=probes.Surveyed) == message
    assert choose(message.trials).trial.sent == 2.0
