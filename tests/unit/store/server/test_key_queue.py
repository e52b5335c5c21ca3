"""Whose turn it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.store.server.key_queue import KeyQueue


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
