"""The ledger, killed after every single store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.config.limits import STORE
from holdfast.errors import ResourceError
from holdfast.store.dedup import DedupWindow
from holdfast.store.heap import Extent
from holdfast.store.messages import Meta
from holdfast.store.region import Owned, create
from holdfast.store.server.ledger import Ledger, LedgerChange

META = Meta("float32", (3, 4), "a")


class Killed(BaseException):
    """The server was killed here."""


class Mortal:
    """Words that take so many stores and no more."""

    def __init__(self, words: Any, lives: int) -> None:
        self.words, self.lives = words, lives

    def __getitem__(self, index: Any) -> Any:
        return self.words[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        if not self.lives:
            raise Killed
        self.lives -= 1
        self.words[index] = value


@pytest.fixture
def region() -> Iterator[Owned]:
    region = Owned(create())
    yield region
    region.close()


def state(ledger: Ledger, key: int, client: int) -> tuple[int, int, DedupWindow, int]:
    return ledger.version(key), ledger.current(key), ledger.dedup(key, client), ledger.changes


def test_what_is_written_is_there_for_the_next_one(region: Owned) -> None:
    ledger = Ledger(region)
    client, key = ledger.add_client("a"), ledger.add_key("w", META)
    place = Extent(4096, 8192, 64, 48)
    ledger.put_buffer(key, 3, place)
    ledger.note_process(client, 77)
    ledger.note_top(123456)
    change = LedgerChange(key, 3, 1, client, DedupWindow(5, 2))
    ledger.begin(change)
    ledger.end(change)
    again = Ledger(region)
    assert again.clients == ["a"] and again.keys == [("w", META)] and again.under_way() is None
    assert state(again, key, client) == (1, 3, DedupWindow(5, 2), 1)
    assert [p for p in again.buffers(key) if p] == [place] == [again.buffers(key)[3]]
    assert (again.process(client), again.top, again.add_client("a")) == (77, 123456, client)


@pytest.mark.parametrize("rows", [None, (Extent(4096, 4096, 0, 8), Extent(4096, 4096, 64, 48))], ids=["whole", "rows"])
def test_a_change_happens_or_does_not_wherever_it_is_cut(rows: tuple[Extent, Extent] | None) -> None:
    seen = set()
    for lives in range(60):
        region = Owned(create())
        ledger = Ledger(region)
        client, key = ledger.add_client("a"), ledger.add_key("w", META)
        rounds = ledger.add_key("\0barrier", Meta("", (), "a"))
        first = LedgerChange(key, 0, 1, client, DedupWindow(1, 0))
        ledger.begin(first)
        ledger.end(first)
        before = (*state(ledger, key, client), ledger.version(rounds))
        ledger._words = Mortal(ledger._words, lives)  # type: ignore[assignment]
        change = LedgerChange(key, 1, 2, client, DedupWindow(2, 1), rounds, 1, rows)
        try:
            ledger.begin(change)
            ledger.end(change)
        except Killed:
            pass
        again = Ledger(region)
        if found := again.under_way():
            assert found == change
            again.end(found)
        after = (*state(again, key, client), again.version(rounds))
        assert after in (before, (2, 1, DedupWindow(2, 1), 2, 1))
        assert again.under_way() is None
        seen.add(after)
        os.close(region.fd)
    assert len(seen) == 2  # both were met


def test_a_client_or_key_too_many(region: Owned) -> None:
    ledger = Ledger(region)
    for i in range(STORE.clients):
        ledger.add_client(f"client {i}")
    with pytest.raises(ResourceError) as caught:
        ledger.add_client("b")
    assert str(caught.value) == (
        "Client 'b' is one too many: a server remembers at most 256 names. Give a worker that comes back the name it "
        "had before."
    )
    for i in range(STORE.keys):
        ledger.add_key(f"key {i}", META)
    with pytest.raises(ResourceError) as caught:
        ledger.add_key("w", META)
    assert str(caught.value) == (
        "Key 'w' is one too many: a server holds at most 8192 keys. Keep what belongs together in one table, and push "
        "its rows."
    )


def test_the_longest_names_fit(region: Owned) -> None:
    ledger = Ledger(region)
    meta = Meta("float32", (2**40,) * 12, "c" * 200, 2**40)
    ledger.add_client("c" * 200)
    ledger.add_key("k" * 200, meta)
    assert Ledger(region).keys == [("k" * 200, meta)]
