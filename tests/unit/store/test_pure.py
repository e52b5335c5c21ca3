"""What decides: who holds what, what counts, whose turn it is, who has arrived, who has which bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config.limits import STORE
from holdfast.errors import UsageError
from holdfast.store.dedup import WINDOW, DedupVerdict, DedupWindow
from holdfast.store.heap import Extent, Heap, room_for
from holdfast.store.owners import checked_name, owner, parts, server_of
from holdfast.store.server.key_queue import KeyQueue
from holdfast.store.server.rounds import Rounds

# ------------------------------------------------------------ owners


@given(st.integers(0, 10_000), st.integers(1, 64))
def test_shares_are_all_rows_in_order_and_differ_by_one_at_most(rows: int, servers: int) -> None:
    shares = parts(rows, servers)
    assert [row for first, last in shares for row in range(first, last)] == list(range(rows))
    sizes = [last - first for first, last in shares]
    assert len(sizes) == servers
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 10_000), st.integers(1, 64), st.data())
def test_every_row_is_in_the_share_of_its_server(rows: int, servers: int, data: st.DataObject) -> None:
    row = data.draw(st.integers(0, rows - 1))
    first, last = parts(rows, servers)[server_of(row, rows, servers)]
    assert first <= row < last


def test_the_owner_of_a_name_is_the_same_everywhere() -> None:
    # Pinned: a client and a server of different builds must agree.
    assert [owner(name, 5) for name in ("a", "b", "user", "item", "layer.0.weight")] == [3, 3, 4, 1, 3]
    assert len({owner(f"key {i}", 4) for i in range(100)}) == 4


def test_names() -> None:
    assert checked_name("w", "key") == "w"
    assert checked_name("Gewicht Ω", "key") == "Gewicht Ω"
    for bad in ("", "a\0b", "a\nb", "x" * (STORE.name_bytes + 1)):
        with pytest.raises(UsageError):
            checked_name(bad, "key")
    with pytest.raises(UsageError) as caught:
        checked_name("", "barrier")
    assert str(caught.value) == "'' cannot be the name of a barrier: use 1 to 200 bytes of printable text, not 0."


# ------------------------------------------------------------ tally


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=80))
def test_a_tally_remembers_what_a_client_may_still_ask_for(pushes: list[tuple[int, bool]]) -> None:
    dedup, truth, number = DedupWindow(), {}, 0
    for ahead, ok in pushes:
        number += ahead
        assert dedup.judge(number) is DedupVerdict.NEW
        dedup = dedup.settle(number, ok=ok)
        truth[number] = ok
    for settled, ok in truth.items():
        if number - settled < WINDOW:
            assert dedup.judge(settled) is (DedupVerdict.APPLIED if ok else DedupVerdict.FAILED)
    assert dedup.judge(number + 1) is DedupVerdict.NEW
    assert 0 <= dedup.failed < 1 << 63  # it is kept in a signed word


@given(st.lists(st.booleans(), max_size=WINDOW))
def test_what_counts_ends_before_the_first_that_failed(pushes: list[bool]) -> None:
    dedup = DedupWindow()
    for number, ok in enumerate(pushes, 1):
        dedup = dedup.settle(number, ok=ok)
    assert dedup.counted == ([*pushes, False].index(False))
    for number in range(dedup.counted + 1, len(pushes) + 1):  # who begins again there repeats all that is missing
        if dedup.judge(number) is DedupVerdict.FAILED:
            dedup = dedup.settle(number, ok=True)
    assert dedup.counted == len(pushes)


def test_what_failed_may_be_tried_again_under_its_number() -> None:
    dedup = DedupWindow().settle(1, ok=False).settle(2, ok=True).settle(1, ok=True)
    assert [dedup.judge(number) for number in (1, 2, 3)] == [
        DedupVerdict.APPLIED,
        DedupVerdict.APPLIED,
        DedupVerdict.NEW,
    ]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=60))
def test_however_pushes_are_repeated_each_number_counts_once(arrivals: list[tuple[int, int]]) -> None:
    """A client repeats a run of pushes that ends at its newest one; servers die between any two of them."""
    dedup, applied, newest = DedupWindow(), [], 0
    for back, new in arrivals:
        for number in range(max(1, newest - back), newest + new + 1):
            if dedup.judge(number) is DedupVerdict.NEW:
                applied.append(number)
                dedup = dedup.settle(number, ok=True)
        newest += new
    assert applied == list(range(1, newest + 1))


# ------------------------------------------------------------ line


class Stub:
    """A request of `store`; whole or not."""

    def __init__(self, client: str, whole: bool = True) -> None:
        self.client, self.whole = client, whole


def line_of(*items: Stub) -> KeyQueue[Stub]:
    line: KeyQueue[Stub] = KeyQueue(lambda item: item.client, lambda item: item.whole)
    for item in items:
        line.join(item)
    return line


def test_first_come_first_served() -> None:
    a, b = Stub("a"), Stub("b")
    line = line_of(a, b)
    assert line.next() is a
    line.leave(a)
    assert line.next() is b
    line.leave(b)
    assert line.next() is None and line.first() is None and len(line) == 0


def test_who_is_not_whole_is_overtaken_but_not_by_itself() -> None:
    slow, behind, other = Stub("a", whole=False), Stub("a"), Stub("b")
    line = line_of(slow, behind, other)
    assert line.first() is slow
    assert line.next() is other
    line.leave(other)
    assert line.next() is None
    slow.whole = True
    assert line.next() is slow


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=20))
def test_the_order_of_one_client_is_kept(drawn: list[tuple[str, bool]]) -> None:
    items = [Stub(client, whole) for client, whole in drawn]
    line, served = line_of(*items), []
    while (item := line.next()) is not None:
        line.leave(item)
        served.append(item)
    for client in "abc":
        mine = [item for item in items if item.client == client]
        assert [item for item in served if item.client == client] == mine[: sum(1 for _ in _whole_first(mine))]


def _whole_first(items: list[Stub]) -> list[Stub]:
    count = next((i for i, item in enumerate(items) if not item.whole), len(items))
    return items[:count]


# ------------------------------------------------------------ meeting


def test_a_round_is_over_when_all_have_arrived() -> None:
    rounds = Rounds(done=4)
    assert not rounds.arrive("late", 4)  # its round is over
    assert rounds.arrive("a", 5) and rounds.arrive("a", 5) and not rounds.over(2)
    rounds.lose("a")
    assert rounds.arrive("b", 5) and not rounds.over(2)
    assert rounds.arrive("a", 5) and rounds.over(2)
    assert rounds.here == ["b", "a"]
    assert rounds.close() == 5 and rounds.here == []


# ------------------------------------------------------------ heap


@given(st.lists(st.tuples(st.integers(0, 40 * 2**20), st.booleans()), max_size=40))
def test_places_that_are_taken_never_overlap(drawn: list[tuple[int, bool]]) -> None:
    heap, taken = Heap(12345), []
    for size, give in drawn:
        if give and taken:
            heap.give(taken.pop(0))
        taken.append(heap.take(size))
    spans = sorted((place.run + place.offset, room_for(place.size)) for place in taken)
    for (start, size), (after, _) in pairwise(spans):
        assert start + size <= after
    for place in taken:
        assert place.run >= 12345 and place.run % 4096 == 0 and (place.run + place.offset) % 64 == 0
        assert place.offset + place.size <= place.length and place.run + place.length <= heap.top


def test_what_is_given_back_is_used_again() -> None:
    heap = Heap(0)
    big = heap.take(100 * 2**20)
    top = heap.top
    heap.give(big)
    assert heap.take(100 * 2**20) == big and heap.top == top
    assert Extent(0, 100, 10, 20).part(5, 3) == Extent(0, 100, 15, 3)
