"""Servers that have no memory left: what does not fit is refused, and all else goes on."""

from __future__ import annotations

import pytest
import torch

from holdfast import store
from holdfast.errors import ResourceError
from holdfast.store.heap import RUN, Heap, room_for
from holdfast.store.region import Limit, Owned, create, refuse_beyond

MIB = 2**20 // 4  # numbers


def test_what_a_server_may_not_hold_is_refused_and_the_rest_goes_on() -> None:
    with store.local(threads=True, memory="8MiB") as group, group.connect("a", timeout=10.0) as mine:
        mine.init("w", torch.zeros(3 * MIB)).wait()
        mine.push("w", torch.ones(3 * MIB)).wait()  # in a second version
        for _ in range(2):
            with pytest.raises(ResourceError) as caught:
                mine.init("v", torch.zeros(4 * MIB)).wait()
            assert str(caught.value) == (
                "The first value of key 'v' needs 4.0 MiB more, but server 0 uses 6.0 of the 8.0 MiB that it may use "
                "(memory=8MiB). It goes on with what it has. Allow it more, or spread large keys over more servers "
                "(spread=True)."
            )
        mine.init("v", torch.zeros(MIB)).wait()  # a smaller one under the same name
        mine.init("u", torch.zeros(MIB)).wait()
        with pytest.raises(ResourceError) as caught:
            mine.push("v", torch.ones(MIB)).wait()
        assert str(caught.value) == (
            "Another version of key 'v' needs 1.0 MiB more, but server 0 uses 8.0 of the 8.0 MiB that it may use "
            "(memory=8MiB). It goes on with what it has. Allow it more, or spread large keys over more servers "
            "(spread=True)."
        )
        assert mine.pull("v").result().sum() == 0
        assert torch.equal(mine.push_pull("w", torch.ones(3 * MIB)).result(), torch.full((3 * MIB,), 2.0))


def test_a_limit() -> None:
    limit = Limit(100, "server 0", "memory=100B")
    refuse_beyond(None, "It", 10**12, 0)
    refuse_beyond(limit, "It", 60, 40)
    with pytest.raises(ResourceError):
        refuse_beyond(limit, "It", 61, 40)


def test_a_refusal_leaves_everything_as_it_was() -> None:
    region = Owned(create(), Limit(2 * 2**20, "it", "memory=2MiB"))
    first, top = region.take(2**20, "One"), region.top
    with pytest.raises(ResourceError):
        region.take(64 * 2**20, "Another")
    assert region.top == top
    region.give(first)
    assert region.take(2**20, "The same") == first
    region.close()


def test_what_a_heap_has_set_aside() -> None:
    heap = Heap(0)
    assert heap.grows(100) and heap.more(100) == 128
    place = heap.take(100)
    assert heap.used == 128 and not heap.grows(100) and heap.grows(RUN)
    heap.give(place)
    assert heap.more(100) == 0 and heap.more(200) == room_for(200)
    heap.take(120)
    assert heap.used == 128
