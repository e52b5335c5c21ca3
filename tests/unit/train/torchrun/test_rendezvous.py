"""Ranks that find each other through a store, without a store: a dictionary, and threads for the ranks."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable

import pytest

from holdfast.errors import NetworkError, OtherVersion
from holdfast.train.torchrun.ranks import RankEntry, Roll, World
from holdfast.train.torchrun.rendezvous import Deadline, Rendezvous, RunAddress
from holdfast.train.torchrun.torch_store import TorchStore


class Texts:
    """See `rendezvous.Store`."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self._lock = threading.Lock()

    def put(self, key: str, text: str) -> None:
        self.texts[key] = text

    def look(self, key: str) -> str | None:
        return self.texts.get(key)

    def count(self, key: str, more: int) -> int:
        with self._lock:
            self.texts[key] = str(int(self.texts.get(key, "0")) + more)
            return int(self.texts[key])

    def drop(self, key: str) -> None:
        self.texts.pop(key, None)


class Clock:
    """Sleeping is what makes time pass."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


_marks = itertools.count()


def rank(store: Texts, number: int, size: int, *, version: str = "1", deadline: Deadline | None = None) -> Rendezvous:
    me = RankEntry(number, f"mark-{next(_marks)}", "m", "n", version)
    return Rendezvous(
        store, World(number, size, "gpu7", 29500, scope="job/0"), me, deadline or Deadline(_never, limit=20.0)
    )


def _never(sentence: str) -> None:
    raise AssertionError(sentence)


def together(*acts: Callable[[], object]) -> None:
    """Each in a thread of its own; what one raises is raised here."""
    errors: list[BaseException] = []

    def guarded(act: Callable[[], object]) -> None:
        try:
            act()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    if errors:
        raise errors[0]


def call_all(store: Texts, calls: list[Rendezvous]) -> dict[int, Roll]:
    rolls: dict[int, Roll] = {}
    together(*(lambda n=n, c=c: rolls.update({n: c.call()}) for n, c in enumerate(calls)))
    return rolls


def test_everybody_learns_of_everybody() -> None:
    store = Texts()
    calls = [rank(store, number, 3) for number in range(3)]
    rolls = call_all(store, calls)
    assert rolls[0] == rolls[1] == rolls[2] and sorted(rolls[0]) == [0, 1, 2]


def test_ranks_that_are_started_anew_are_not_taken_for_those_before() -> None:
    store = Texts()
    before = call_all(store, [rank(store, number, 2) for number in range(2)])
    clock = Clock()
    impatient = Deadline(lambda _: None, limit=1.0, clock=lambda: clock.now, sleep=clock.sleep)
    again = rank(store, 1, 2, deadline=impatient)
    with pytest.raises(NetworkError, match=r"^Waited 1 s for all 2 ranks to come to hf.join\(\)"):
        again.call()  # it finds the old session, with its roll, and must believe neither
    again._deadline = Deadline(_never, limit=20.0)
    rolls = call_all(store, [rank(store, 0, 2), again])
    assert rolls[0] == rolls[1] and rolls[0][1] == again._me != before[0][1]


def test_the_place_is_told_and_taken_away_again() -> None:
    store = Texts()
    calls = [rank(store, number, 2) for number in range(2)]
    call_all(store, calls)
    place = RunAddress(["10.0.0.5"], 4000, "secret")
    calls[0].invite(place)
    calls[0].open_door("holdfast-1234")
    assert calls[1].place() == place and calls[1].door(0) == "holdfast-1234"
    assert "secret" in str(store.texts)
    together(calls[0].done, calls[1].done)
    assert "secret" not in str(store.texts)


def test_another_version_is_refused_and_both_are_named() -> None:
    store = Texts()
    calls = [rank(store, 0, 2), rank(store, 1, 2, version="2")]
    with pytest.raises(OtherVersion, match=r"The run at gpu7:29500 is of Holdfast 1, and this machine has 2\."):
        call_all(store, calls)


def test_who_is_awaited_is_said_and_named_in_the_end() -> None:
    clock, said = Clock(), list[str]()
    store = Texts()
    deadline = Deadline(said.append, limit=60.0, clock=lambda: clock.now, sleep=clock.sleep)
    with pytest.raises(NetworkError) as error:
        rank(store, 0, 3, deadline=deadline).call()
    assert str(error.value) == (
        "Waited 60 s for ranks 1 and 2 of 3 to come to hf.join(). Look at the output of what is missing: it may have "
        "ended, or stand still before its first step."
    )
    assert said == [
        f"waiting for ranks 1 and 2 of 3 to come to hf.join() ({seconds} s so far, 60 s at most)"
        for seconds in (10, 20, 40)
    ]
    with pytest.raises(NetworkError, match=r"^Waited 60 s for rank 0 to come to hf.join\(\)\."):
        rank(Texts(), 2, 3, deadline=deadline).call()


def test_rank_0_goes_on_without_a_rank_that_was_lost_after_the_roll() -> None:
    clock, store = Clock(), Texts()
    calls = [rank(store, number, 2) for number in range(2)]
    call_all(store, calls)
    said: list[str] = []
    calls[0]._deadline = Deadline(said.append, clock=lambda: clock.now, sleep=clock.sleep)
    calls[0].invite(RunAddress([], 1, "secret"))
    calls[0].done()
    assert clock.now >= 30 and "secret" not in str(store.texts)
    assert said[0] == "waiting for the other ranks to find the run (10 s so far, 30 s at most)"


# ---------------------------------------------------------------- torch's own store


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def test_torchs_store_keeps_counts_and_drops() -> None:
    port = free_port()
    server = TorchStore(World(0, 2, "127.0.0.1", port))
    client = TorchStore(World(1, 2, "127.0.0.1", port))
    assert client.look("a") is None
    server.put("a", "text")
    assert server.look("a") == "text"  # torch's store does not answer a write; asking behind it, it has been made
    assert client.look("a") == "text"
    assert client.count("n", 1) == 1 and server.count("n", 2) == 3 and client.count("n", 0) == 3
    client.drop("a")
    assert server.look("a") is None
    server.close()
    with pytest.raises(NetworkError, match=rf"^What ranks find each other with, at .* = 127.0.0.1:{port}, is gone: "):
        client.look("a")
    client.close()


def test_a_store_that_cannot_be_served_or_reached() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(NetworkError, match=rf"^Rank 0 cannot serve at MASTER_ADDR:.* = 127.0.0.1:{port}: "):
            TorchStore(World(0, 2, "127.0.0.1", port))
    with pytest.raises(NetworkError, match=rf"^Nobody answers at MASTER_ADDR:MASTER_PORT = 127.0.0.1:{port} for 1 s: "):
        TorchStore(World(1, 2, "127.0.0.1", port), limit=1.0)
