"""The threads around following: they end when they are told to, and say so when they end by themselves."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.config.limits import NETWORK
from holdfast.dataplane.wire.state_transfer import Fetched
from holdfast.hosts import catch_up_threads
from holdfast.hosts.catch_up_threads import CatchUp, Donors
from holdfast.transport.stream import PlainStream, Stream

HOLD: Any = SimpleNamespace()


class Heard:
    def __init__(self) -> None:
        self.came: list[str] = []
        self.ended: list[str] = []
        self.over = threading.Event()

    def end(self, sentence: str) -> None:
        self.ended.append(sentence)
        self.over.set()


def follower(heard: Heard, dial: object, view: Any = HOLD) -> CatchUp:
    return CatchUp(
        lambda: view, 3, 7, frozenset({1}), dial=dial, ring=lambda: None, came=heard.came.append, ended=heard.end,  # type: ignore[arg-type]
    )  # fmt: skip


def receive(view: object, stream: Stream, generation: int, **given: object) -> None:
    """What `follow` does, as far as it matters here: it brings the state, then reads until the connection ends."""
    given["came"](Fetched(version=5, size=2**20, seconds=0.5))  # type: ignore[operator]
    stream.recv_into(memoryview(bytearray(1)))


def test_it_follows_until_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catch_up_threads, "follow", receive)
    ours, theirs = PlainStream.pair()
    heard = Heard()
    one = follower(heard, lambda: ours)
    while not heard.came:
        pass
    one.close()
    one.close()
    (told,) = heard.came
    assert told == "the state at step 5 has come from host 3 while the run goes on (1.0 MiB in 0.50 s, verified)"
    assert heard.ended == [], "who closes it knows"
    with pytest.raises(EOFError):
        theirs.recv_into(memoryview(bytearray(1)))
    theirs.close()


def test_it_says_when_the_donor_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catch_up_threads, "follow", receive)
    ours, theirs = PlainStream.pair()
    heard = Heard()
    one = follower(heard, lambda: ours)
    theirs.close()
    assert heard.over.wait(5)
    assert heard.ended[0].startswith("host 3 gives no more (")
    one.close()


def test_it_says_also_what_nobody_has_thought_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("a body of 70000000 bytes")

    monkeypatch.setattr(catch_up_threads, "follow", fail)
    ours, theirs = PlainStream.pair()
    heard = Heard()
    one = follower(heard, lambda: ours)
    assert heard.over.wait(5)
    assert heard.ended == ["host 3 gives no more (ValueError: a body of 70000000 bytes)"]
    one.close()
    theirs.close()


def test_and_so_does_a_donor(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(FakeDonor):
        def run(self) -> None:
            raise ValueError("a body of 70000000 bytes")

    monkeypatch.setattr(catch_up_threads, "Donor", Failing)
    told: list[str] = []
    donors, (ours, theirs) = Donors(told.append), PlainStream.pair()
    donors.add(1, HOLD, ours, 7, lambda: None)
    donors.close()
    assert told == ["a new host is not guided any more: ValueError: a body of 70000000 bytes"]
    theirs.close()


def test_a_donor_that_cannot_be_reached_is_tried_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catch_up_threads, "NETWORK", replace(NETWORK, donor=0.2))
    tries: list[int] = []

    def dial() -> Stream:
        tries.append(1)
        raise ConnectionError("nothing listens there")

    heard = Heard()
    one = follower(heard, dial)
    assert heard.over.wait(5)
    assert heard.ended == ["host 3 gives no more (nothing listens there)"] and len(tries) > 1
    one.close()


def test_it_waits_for_the_manifest_and_can_be_closed_meanwhile() -> None:
    heard = Heard()
    one = follower(heard, lambda: pytest.fail("there is nothing to fill yet"), None)
    one.close()
    assert heard.ended == []


class FakeDonor:
    made: list[FakeDonor] = []  # noqa: RUF012

    def __init__(self, view: object, stream: Stream, generation: int, ring: object) -> None:
        self.stream, self.over = stream, threading.Event()
        FakeDonor.made.append(self)

    def run(self) -> None:
        self.over.wait(10)
        raise ConnectionAbortedError

    def close(self) -> None:
        self.stream.close()
        self.over.set()


def test_donors_end_with_the_next_one_or_all_together(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeDonor.made = []
    monkeypatch.setattr(catch_up_threads, "Donor", FakeDonor)
    donors = Donors(lambda sentence: None)
    pairs = [PlainStream.pair() for _ in range(3)]
    for host, (ours, _) in zip((1, 2), pairs, strict=False):
        donors.add(host, HOLD, ours, 7, lambda: None)
    assert [donor.over.is_set() for donor in FakeDonor.made] == [True, False], "one at a time, the newest"
    donors.forget(2)
    assert all(donor.over.is_set() for donor in FakeDonor.made)
    donors.close()
    assert all(donor.over.is_set() for donor in FakeDonor.made)
    donors.add(3, HOLD, pairs[2][0], 7, lambda: None)
    assert len(FakeDonor.made) == 2, "after the end nobody is guided"
    for _, theirs in pairs:
        with pytest.raises(EOFError):
            theirs.recv_into(memoryview(bytearray(1)))
        theirs.close()
