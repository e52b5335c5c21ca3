"""The verbs, with servers in threads of this process: what they give, and what they say when they cannot."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from holdfast import store
from holdfast.errors import (
    HandlerFailed,
    Mismatch,
    ResourceError,
    ServerLost,
    StoreError,
    StoreTimeout,
    UnknownKey,
    UsageError,
)
from holdfast.store.client.keyed_requests import PIECE
from holdfast.store.client.pending import Pending
from holdfast.store.heap import Extent
from holdfast.store.messages import Init, Meta, Pull
from holdfast.store.owners import owner
from tests.unit.store.conftest import connected

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8]


def until_met(mine: store.Store, rounds: str, client: str) -> None:
    """Until a client has arrived at a meeting."""
    deadline = time.monotonic() + 10.0
    while (
        client not in mine._keyed_requests.ask(owner(rounds.removeprefix("\0broadcast "), 2), rounds, deadline).here
    ):
        time.sleep(0.001)


# ------------------------------------------------------------ values


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 0), (5, 3), (2, 3, 4)], ids=str)
def test_a_push_is_added_and_a_pull_shows_it(mine: store.Store, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    first, more = torch.full(shape, 3).to(dtype), torch.full(shape, 2).to(dtype)
    mine.init("w", first).wait()
    assert mine.push("w", more).result() is None
    got = mine.pull("w").result()
    assert got.dtype == dtype and got.shape == shape and torch.equal(got, first + more)
    assert torch.equal(mine.push_pull("w", more).result(), first + more + more)


def test_the_first_init_counts(mine: store.Store, other: store.Store) -> None:
    mine.init("w", torch.ones(3)).wait()
    other.init("w", torch.zeros(3)).wait()
    assert torch.equal(other.pull("w").result(), torch.ones(3))


ODD = [torch.arange(12.0).view(3, 4).t(), torch.ones(8, 3)[::2], torch.ones(3).expand(4, 3)]


@pytest.mark.parametrize("pushed", ODD, ids=["transposed", "strided", "expanded"])
def test_what_is_pushed_may_lie_in_memory_as_it_likes(mine: store.Store, pushed: Tensor) -> None:
    mine.init("w", torch.zeros(4, 3)).wait()
    assert torch.equal(mine.push_pull("w", pushed).result(), pushed)


def test_what_was_pushed_may_be_changed_at_once(mine: store.Store) -> None:
    mine.init("w", torch.zeros(1000)).wait()
    gradient = torch.ones(1000)
    handle = mine.push("w", gradient)
    gradient.zero_()
    handle.wait()
    assert mine.pull("w").result().sum() == 1000


def test_a_large_push_goes_in_pieces(mine: store.Store) -> None:
    size = 3 * PIECE // 4 + 1001
    mine.init("w", torch.arange(float(size))).wait()
    value = torch.rand(size)
    assert torch.equal(mine.push_pull("w", value).result(), torch.arange(float(size)) + value)


def test_pieces_of_a_tensor_that_requires_grad(mine: store.Store) -> None:
    weight = torch.ones(4, requires_grad=True)
    mine.init("w", weight).wait()
    mine.push("w", weight * 2).wait()
    assert torch.equal(mine.pull("w").result(), torch.full((4,), 3.0))


def test_a_view_keeps_its_version(mine: store.Store, other: store.Store) -> None:
    mine.init("w", torch.zeros(1000)).wait()
    views = []
    for i in range(10):
        views.append(mine.pull("w").result())
        other.push("w", torch.ones(1000)).wait()
        assert [view.unique().tolist() for view in views] == [[float(n)] for n in range(i + 1)]


def test_a_slice_of_a_view_keeps_it_too(mine: store.Store) -> None:
    mine.init("w", torch.zeros(1000)).wait()
    part = mine.pull("w").result()[10:20].view(2, 5)
    gc.collect()
    for _ in range(5):
        mine.push("w", torch.ones(1000)).wait()
    assert part.sum() == 0


def test_buffers_are_used_again_when_nobody_looks(mine: store.Store) -> None:
    mine.init("w", torch.zeros(1000)).wait()
    places = set()
    for _ in range(100):
        view = mine.push_pull("w", torch.ones(1000)).result()
        places.add(view.data_ptr())
        del view
    assert len(places) <= 3


def test_a_view_that_nobody_took_is_let_go(mine: store.Store) -> None:
    mine.init("w", torch.zeros(10)).wait()
    for _ in range(100):
        mine.pull("w").done  # noqa: B018
        mine.push("w", torch.ones(10)).wait()
    assert mine.pull("w").result().sum() == 1000


def test_views_outlive_the_store(group: store.Group) -> None:
    with group.connect("c") as one:
        one.init("w", torch.ones(100_000)).wait()
        view = one.pull("w").result()
    assert view.sum() == 100_000


def test_out(mine: store.Store) -> None:
    mine.init("w", torch.zeros(2, 3)).wait()
    mine.init("t", torch.arange(10.0).view(5, 2), spread=True).wait()
    out, rows = torch.empty(2, 3), torch.empty(2, 2)
    assert mine.push_pull("w", torch.ones(2, 3), out=out).result() is out and out.sum() == 6
    out += 1  # it is ours
    whole = torch.empty(5, 2)
    assert mine.pull("t", out=whole).result() is whole and torch.equal(whole, torch.arange(10.0).view(5, 2))
    assert mine.pull("t", rows=[4, 0], out=rows).result() is rows
    assert rows.tolist() == [[8.0, 9.0], [0.0, 1.0]]


def test_a_buffer_is_pushed_without_a_copy(mine: store.Store) -> None:
    mine.init("w", torch.zeros(1000)).wait()
    buffer = mine.buffer("w")
    for i in range(3):
        buffer.fill_(float(i))
        mine.push("w", buffer).wait()
    assert mine.pull("w").result().sum() == 3000
    del buffer
    gc.collect()
    assert mine.push_pull("w", torch.ones(1000)).result().sum() == 4000


# ------------------------------------------------------------ rows


@pytest.mark.parametrize("spread", [False, True])
def test_rows(mine: store.Store, spread: bool) -> None:
    table = torch.arange(20.0).view(10, 2)
    mine.init("t", table, spread=spread).wait()
    mine.push("t", store.Rows([9, 0, 9], torch.ones(3, 2))).wait()
    table[9] += 2
    table[0] += 1
    assert torch.equal(mine.pull("t").result(), table)
    assert torch.equal(mine.pull("t", rows=torch.tensor([5, 9, 0, 5])).result(), table[[5, 9, 0, 5]])
    pushed = mine.push_pull("t", store.Rows([3, 8], torch.ones(2, 2))).result()
    assert torch.equal(pushed, table[[3, 8]] + 1)
    assert mine.pull("t", rows=[]).result().shape == (0, 2)
    mine.push("t", store.Rows([], torch.ones(0, 2))).wait()


def test_rows_that_were_pulled_are_our_own(mine: store.Store) -> None:
    mine.init("t", torch.zeros(10, 2)).wait()
    rows = mine.pull("t", rows=[1, 2]).result()
    more = mine.pull("t", rows=[1, 2]).result()
    rows += 1
    assert more.sum() == 0 and mine.pull("t").result().sum() == 0


def test_a_whole_view_of_a_table_keeps_its_version_when_rows_are_pushed(mine: store.Store) -> None:
    mine.init("t", torch.zeros(10, 2)).wait()
    view = mine.pull("t").result()
    for _ in range(3):
        mine.push("t", store.Rows([4], torch.ones(1, 2))).wait()
    assert view.sum() == 0 and mine.pull("t").result().sum() == 6


def test_a_whole_value_can_be_pushed_to_a_spread_key(mine: store.Store) -> None:
    mine.init("t", torch.zeros(5, 2), spread=True).wait()
    value = torch.arange(10.0).view(5, 2)
    assert torch.equal(mine.push_pull("t", value).result(), value)


def test_more_servers_than_rows(mine: store.Store) -> None:
    mine.init("t", torch.zeros(1, 2), spread=True).wait()
    mine.push("t", store.Rows([0], torch.ones(1, 2))).wait()
    assert mine.push_pull("t", torch.ones(1, 2)).result().tolist() == [[2, 2]]
    assert mine.pull("t", rows=[0]).result().tolist() == [[2, 2]]


# ------------------------------------------------------------ handles


def test_handles_are_waited_for_together(mine: store.Store) -> None:
    mine.init("w", torch.zeros(10)).wait()
    handles = [mine.push("w", torch.ones(10)) for _ in range(200)]
    store.wait(handles, timeout=10.0)
    assert all(handle.done for handle in handles)
    assert mine.pull("w").result().sum() == 2000


def test_a_deadline_names_the_server_the_client_and_what_it_waits_for() -> None:
    go = threading.Event()

    def slow(key: str, stored: Tensor, pushed: Tensor) -> None:
        go.wait(10.0)

    with store.local(handler=slow, threads=True) as group, group.connect("a") as mine:
        mine.init("w", torch.zeros(3)).wait()
        handle = mine.push("w", torch.ones(3))
        with pytest.raises(StoreTimeout) as caught:
            handle.wait(timeout=0.05)
        pid = mine._keyed_requests.wires[0].pid
        assert str(caught.value) == (
            f"Server 0 did not answer in time: client 'a' waits for a push of key 'w'. It is process {pid}. Allow more "
            "time (timeout=), or see what keeps it."
        )
        assert isinstance(caught.value, TimeoutError)
        with pytest.raises(StoreTimeout):
            mine.pull("w", timeout=0.05).result()  # the verb's own deadline
        go.set()
        handle.wait()  # it went on all the time


def test_a_failure_that_nobody_looked_at_is_told_at_the_end() -> None:
    with store.local(handler=bad, threads=True) as group, pytest.raises(HandlerFailed), group.connect("a") as mine:
        mine.init("w", torch.zeros(3)).wait()
        mine.push("w", torch.ones(3))


def test_a_key_that_is_not_there_is_told_at_the_end_if_nobody_looked(group: store.Group, reach: str) -> None:
    mine = connected(group, reach, "a")
    mine.push("w", torch.ones(3))
    with pytest.raises(UnknownKey, match="Key 'w' was never initialised"):
        mine.wait()
    mine.wait()  # once
    mine.push(["v"], [torch.ones(3)])
    with pytest.raises(UnknownKey, match="Key 'v' was never initialised"):
        mine.close()


def test_who_closes_does_not_wait_again_for_what_took_too_long(group: store.Group, reach: str) -> None:
    mine = connected(group, reach, "a")
    waiting = [mine.barrier("x"), mine.broadcast("v", torch.ones(1), root="a")]
    for handle in waiting:
        with pytest.raises(StoreTimeout):
            handle.wait(timeout=0.05)
    begin = time.monotonic()
    mine.close()
    assert time.monotonic() - begin < 5.0  # and not the 10 that the store has


def test_who_closes_after_a_wait_for_all_does_not_wait_again(group: store.Group) -> None:
    mine = group.connect("a")
    for name in "xyz":  # at both servers
        mine.barrier(name)
    with pytest.raises(StoreTimeout):
        mine.wait(timeout=0.05)
    begin = time.monotonic()
    mine.close()
    assert time.monotonic() - begin < 5.0


def test_a_push_that_nobody_would_wait_for_still_gets_through() -> None:
    go = threading.Event()

    def slow(key: str, stored: Tensor, pushed: Tensor) -> None:
        go.wait(20.0)
        stored += pushed

    with store.local(handler=slow, threads=True) as group:
        with group.connect("a", timeout=20.0) as mine:
            mine.init("w", torch.zeros(3)).wait()
            pushed = mine.push("w", torch.ones(3))
            with pytest.raises(StoreTimeout):
                pushed.wait(timeout=0.05)
            threading.Timer(0.1, go.set).start()
        assert pushed.done and pushed.result() is None


@pytest.mark.parametrize(
    ("request_", "overdue", "until"),
    [
        (Pull(1, "w"), False, 100.0),
        (Pull(1, "w"), True, None),
        (Init(1, "w", Meta("float32", (), "a"), Extent(0, 0, 0, 0)), False, 100.0),
        (Init(1, "w", Meta("float32", (), "a"), Extent(0, 0, 0, 0)), True, 50.0),
    ],
    ids=["pull", "overdue pull", "init", "overdue init"],
)  # fmt: skip
def test_how_long_who_closes_waits(request_: Any, overdue: bool, until: float | None) -> None:
    pending = Pending(None, request_, "it", 50.0, None)  # type: ignore[arg-type]
    pending.overdue = overdue
    assert pending.patience(40.0, 100.0) == until
    assert pending.patience(60.0, 100.0) == (None if overdue else 100.0)


# ------------------------------------------------------------ meetings


def both(one: store.Store, two: store.Store, act: Any) -> list[Any]:
    with ThreadPoolExecutor(2) as pool:
        return [job.result(20.0) for job in [pool.submit(act, one), pool.submit(act, two)]]


def test_a_barrier_holds_until_all_are_there(mine: store.Store, other: store.Store) -> None:
    waiting = mine.barrier("start")
    with pytest.raises(StoreTimeout) as caught:
        waiting.wait(timeout=0.05)
    assert str(caught.value).endswith(
        "did not answer in time: client 'a' waits for all 2 clients at barrier 'start'. Only 'a' is there. Allow more "
        "time (timeout=), or see what keeps it."
    )
    assert not waiting.done
    other.barrier("start").wait()
    waiting.wait()
    both(mine, other, lambda one: [one.barrier("again").wait() for _ in range(20)])
    mine.barrier("alone", clients=1).wait()


def test_a_broadcast_gives_everybody_the_value_of_the_root(mine: store.Store, other: store.Store) -> None:
    def act(one: store.Store) -> list[Tensor]:
        value = torch.zeros(4) if one is mine else None
        return [one.broadcast("w", value if value is None else value + i, root="a").result() for i in range(10)]

    left, right = both(mine, other, act)
    for i in range(10):
        assert torch.equal(left[i], torch.full((4,), float(i))) and torch.equal(right[i], left[i])
    mine.push("w", torch.ones(4)).wait()  # it is a key like any other


def test_a_broadcast_without_a_root_or_with_two(mine: store.Store, other: store.Store) -> None:
    handles = [one.broadcast("w", root="c") for one in (mine, other)]
    with pytest.raises(Mismatch) as caught:
        store.wait(handles)
    assert str(caught.value) == (
        "Clients 'a', 'b' wait for a broadcast of key 'w', and none of them is its root. The root must be one of them."
    )
    handles = [mine.broadcast("w", torch.ones(1), root="a")]
    until_met(mine, "\0broadcast w", "a")
    handles.append(other.broadcast("w", torch.ones(1), root="b"))
    with pytest.raises(Mismatch) as caught:
        store.wait(handles)
    assert str(caught.value) == "Clients 'a' and 'b' both broadcast key 'w'. Name one of them as root."
    with pytest.raises(UsageError) as wrong:
        mine.broadcast("w", root="a")
    assert str(wrong.value) == "Client 'a' is the root of a broadcast of key 'w', but gave no value. Give one."


def test_a_broadcast_of_another_shape(mine: store.Store, other: store.Store) -> None:
    handles = [mine.broadcast("w", torch.ones(3), root="a"), other.broadcast("w", torch.ones(4), root="a")]
    handles[0].wait()
    with pytest.raises(Mismatch) as caught:
        handles[1].wait()
    assert str(caught.value) == (
        "Client 'b' expects key 'w' as float32 [4], but client 'a' has initialised it as float32 [3]. All clients must "
        "give the same shape and dtype."
    )


def test_who_comes_again_after_a_timeout_comes_to_the_same_round(mine: store.Store, other: store.Store) -> None:
    first = mine.barrier("x")
    with pytest.raises(StoreTimeout):
        first.wait(0.02)
    again = mine.barrier("x")
    until_met(mine, "\0barrier x", "a")
    other.barrier("x").wait()
    again.wait()
    first.wait()
    both(mine, other, lambda one: [one.barrier("x").wait() for _ in range(3)])


def test_two_rounds_that_nobody_has_waited_for_are_two(mine: store.Store, other: store.Store) -> None:
    one, two = mine.barrier("x"), mine.barrier("x")
    other.barrier("x").wait()
    one.wait()
    with pytest.raises(StoreTimeout):
        two.wait(0.02)
    other.barrier("x").wait()
    two.wait()


def test_a_round_that_was_refused_is_met_for_again(mine: store.Store, other: store.Store) -> None:
    waiting = mine.barrier("x", clients=3)
    until_met(mine, "\0barrier x", "a")
    for refused in (other.barrier("x", clients=2), waiting):
        with pytest.raises(Mismatch):
            refused.wait()
    both(mine, other, lambda one: [one.barrier("x").wait() for _ in range(3)])


def test_a_barrier_for_different_numbers(mine: store.Store, other: store.Store) -> None:
    handles = [mine.barrier("x", clients=3)]
    until_met(mine, "\0barrier x", "a")
    handles.append(other.barrier("x", clients=2))
    with pytest.raises(Mismatch) as caught:
        store.wait(handles)
    assert str(caught.value) == (
        "Clients at barrier x wait for different numbers of clients: 'a' for 3, 'b' for 2. Say the same."
    )


def test_nobody_is_told_that_all_are_there_when_nobody_knows_how_many_they_are(reach: str) -> None:
    listen = "127.0.0.1" if reach == "far" else None
    with store.local(threads=True, listen=listen) as group, connected(group, reach, "a") as mine:
        with pytest.raises(UsageError) as caught:
            mine.barrier("start")
        assert str(caught.value) == (
            "Client 'a' is at 'barrier start', and nobody knows for how many clients to wait. Say so when the servers "
            "are started, store.local(clients=3), or here, barrier(..., clients=3)."
        )
        with pytest.raises(UsageError) as caught:
            mine.broadcast("w", torch.ones(1), root="a")
        assert str(caught.value) == (
            "Client 'a' is at 'broadcast w', and nobody knows for how many clients to wait. Say so when the servers "
            "are started, store.local(clients=3), or here, broadcast(..., clients=3)."
        )
        with pytest.raises(UsageError) as caught:
            mine.barrier("start", clients=0)
        assert str(caught.value) == "Client 'a' is at 'barrier start' with clients=0: there is at least one."
        mine.barrier("start", clients=1).wait()
        assert mine.broadcast("w", torch.ones(1), root="a", clients=1).result().item() == 1


@pytest.mark.parametrize("reach", ["near", "far"])
def test_whoever_passes_a_barrier_sees_what_was_pushed_before_it(reach: str) -> None:
    go = threading.Event()

    def slow(key: str, stored: Tensor, pushed: Tensor) -> None:
        go.wait(20.0)
        stored += pushed

    listen = "127.0.0.1" if reach == "far" else None
    elsewhere = next(name for name in "xyzabcd" if owner(f"\0barrier {name}", 2) != owner("w", 2))
    with (
        store.local(servers=2, clients=2, handler=slow, threads=True, listen=listen) as group,
        connected(group, reach, "a") as mine,
        connected(group, reach, "b") as other,
    ):
        mine.init("w", torch.zeros(3)).wait()
        pushed, waiting = mine.push("w", torch.ones(3)), other.barrier(elsewhere)
        with pytest.raises(StoreTimeout, match=r"client 'a' waits for a push of key 'w'\. .* Allow more time"):
            mine.barrier(elsewhere, timeout=0.05).wait()
        with pytest.raises(StoreTimeout, match="Only 'b' is there"):
            waiting.wait(timeout=0.05)
        go.set()
        mine.barrier(elsewhere).wait()
        assert pushed.done
        waiting.wait()
        assert other.pull("w").result().sum() == 3


def test_whoever_has_a_broadcast_sees_what_was_pushed_before_it() -> None:
    go = threading.Event()

    def slow(key: str, stored: Tensor, pushed: Tensor) -> None:
        go.wait(20.0)
        stored += pushed

    with store.local(clients=2, handler=slow, threads=True) as group, group.connect("a", timeout=10.0) as mine:
        mine.init("w", torch.zeros(3))
        pushed = mine.push("w", torch.ones(3))
        with pytest.raises(StoreTimeout, match="client 'a' waits for which round of 'broadcast v' is next"):
            mine.broadcast("v", torch.ones(1), root="a", timeout=0.05).wait()
        go.set()
        given = mine.broadcast("v", torch.ones(1), root="a")
        assert pushed.done
        with group.connect("b") as other:
            other.broadcast("v", root="a").wait()
            assert other.pull("w").result().sum() == 3
        given.wait()


@pytest.mark.parametrize("reach", ["near", "far"])
def test_a_barrier_at_the_only_server_returns_at_once_and_comes_after_the_pushes(reach: str) -> None:
    go, at_it = threading.Event(), threading.Event()

    def slow(key: str, stored: Tensor, pushed: Tensor) -> None:
        at_it.set()
        go.wait(20.0)
        stored += pushed

    listen = "127.0.0.1" if reach == "far" else None
    with (
        store.local(clients=2, handler=slow, threads=True, listen=listen) as group,
        connected(group, reach, "a") as mine,
        connected(group, reach, "b") as other,
    ):
        mine.init("w", torch.zeros(3)).wait()
        both(mine, other, lambda one: one.barrier().wait())
        there, pushed = other.barrier(), mine.push("w", torch.ones(3))
        assert at_it.wait(10.0)
        here = mine.barrier()
        assert not pushed.done and not here.done and not there.done
        go.set()
        there.wait()
        assert other.pull("w").result().sum() == 3
        here.wait()


def test_a_push_that_failed_is_told_by_its_own_handle_and_holds_up_no_barrier() -> None:
    with store.local(clients=1, handler=bad, threads=True) as group, group.connect("a", timeout=10.0) as mine:
        mine.init("w", torch.zeros(3)).wait()
        pushed = mine.push("w", torch.ones(3))
        mine.barrier().wait()
        with pytest.raises(HandlerFailed, match="no w today"):
            pushed.wait()


# ------------------------------------------------------------ numbers


def test_a_number_counts_once(mine: store.Store) -> None:
    mine.init("w", torch.zeros(1)).wait()
    for number in (1, 2, 2, 1, 3, 3):
        mine.push("w", torch.ones(1), number=number).wait()
    assert mine.pull("w").result().item() == 3
    assert mine.applied("w") == 3
    mine.push("w", torch.ones(1)).wait()  # goes on from there
    assert mine.applied("w") == 4
    with pytest.raises(UsageError, match="A push of key 'w' has the number 0: numbers begin at 1"):
        mine.push("w", torch.ones(1), number=0)


def test_what_failed_does_not_count_until_it_was_pushed_again(reach: str) -> None:
    unlucky = [3.0]

    def sometimes(key: str, stored: Tensor, pushed: Tensor) -> None:
        if pushed[0] in unlucky:
            raise ValueError("not yet")
        stored += pushed

    def work(one: store.Store) -> list[type]:
        """The loop of docs/store.md: five pushes, of 1, 2, 3, 4 and 5."""
        failed = []
        for step in range(one.applied("w") + 1, 6):
            try:
                one.push("w", torch.full((2,), float(step)), number=step).wait()
            except StoreError as error:
                failed.append(type(error))
        return failed

    listen = "127.0.0.1" if reach == "far" else None
    with store.local(handler=sometimes, threads=True, listen=listen) as group:
        with connected(group, reach, "a") as mine:
            mine.init("w", torch.zeros(2)).wait()
            assert mine.applied("w") == 0
            assert work(mine) == [HandlerFailed]
            assert mine.applied("w") == 2
            with pytest.raises(Mismatch):
                mine.push("w", torch.ones(3)).wait()  # number 6
            mine.push("w", torch.ones(2)).wait()  # number 7: it goes on after all that were used
        unlucky.clear()
        with connected(group, reach, "a") as mine:
            assert mine.applied("w") == 2
            assert work(mine) == []
            assert mine.applied("w") == 5
            mine.push("w", torch.zeros(2), number=6).wait()
            assert mine.applied("w") == 7
            assert mine.pull("w").result().tolist() == [16, 16]  # each of them once


@pytest.mark.parametrize("size", [3, PIECE], ids=["small", "large"])
def test_what_failed_is_not_taken_for_applied_after_a_takeover(size: int) -> None:
    """Push 1 fails, push 2 is applied, and the client has heard of neither when another server takes over."""
    failing = [True]

    @store.elementwise
    def once(key: str, stored: Tensor, pushed: Tensor) -> None:
        if failing[0]:
            raise ValueError("not yet")
        stored += pushed

    with store.local(handler=once, threads=True) as group, group.connect("a", timeout=10.0) as mine:
        mine.init("w", torch.zeros(size)).wait()
        with pytest.raises(HandlerFailed, match="not yet"):
            mine.push("w", torch.ones(size), number=1).wait()
        failing[0] = False
        handle = mine.push("w", torch.ones(size), number=2)
        handle.wait()
        wire, request = mine._keyed_requests.wires[0], handle._pending[0].request
        request = msgspec.structs.replace(request, id=wire.next_id(), number=1, here=4 * size, again=True)
        repeated = wire.post(request, "a push", deadline=mine._deadline(5.0))
        wire.wait(repeated, mine._deadline(5.0))
        repeated.seen = True
        assert str(repeated.error) == (
            "A push of client 'a' on key 'w' has failed, and was not applied; why was lost with the server that said "
            "so. Push it again to be told."
        )
        mine.push("w", torch.ones(size), number=1).wait()  # who knows that it has failed may try again
        mine.push("w", torch.ones(size), number=1).wait()
        assert mine.pull("w").result().unique().tolist() == [2.0]


def test_a_client_that_comes_back_goes_on_counting(group: store.Group) -> None:
    for turn in range(3):
        with group.connect("worker") as one:
            one.init("w", torch.zeros(1)).wait()
            assert one.applied("w") == 2 * turn
            for _ in range(2):
                one.push("w", torch.ones(1))
    with group.connect("other") as one:
        assert one.applied("w") == 0 and one.pull("w").result().item() == 6


# ------------------------------------------------------------ what is refused


def bad(key: str, stored: Tensor, pushed: Tensor) -> None:
    stored += 100
    raise ValueError(f"no {key} today")


@pytest.mark.parametrize("value", [torch.ones(3), torch.ones(2_000_000)], ids=["small", "large"])
@pytest.mark.parametrize("mark", [store.elementwise, lambda handler: handler], ids=["pieces", "whole"])
def test_a_handler_that_raises(value: Tensor, mark: Any) -> None:
    failing = [True]

    @mark  # type: ignore[untyped-decorator]
    def sometimes(key: str, stored: Tensor, pushed: Tensor) -> None:
        stored += pushed
        if failing[0]:
            raise ValueError(f"no {key} today")

    with store.local(handler=sometimes, threads=True) as group, group.connect("a") as mine:
        mine.init("w", torch.zeros_like(value)).wait()
        with pytest.raises(HandlerFailed) as caught:
            mine.push("w", value).wait()
        line = sometimes.__code__.co_firstlineno + 4
        assert str(caught.value) == (
            "The handler raised for a push of client 'a' on key 'w': ValueError: no w today (test_verbs.py, line "
            f"{line}, in sometimes). The push was not applied and the value is as it was; server 0 goes on. Correct "
            "the handler, or what was pushed."
        )
        failing[0] = False
        assert torch.equal(mine.push_pull("w", value).result(), value)


def test_a_handler_that_changes_what_was_pushed() -> None:
    def careless(key: str, stored: Tensor, pushed: Tensor) -> None:
        pushed *= 0.1
        stored -= pushed

    with store.local(handler=careless, threads=True) as group, group.connect("a") as mine:
        mine.init("w", torch.zeros(3)).wait()
        with pytest.raises(HandlerFailed) as caught:
            mine.push("w", torch.ones(3)).wait()
        assert str(caught.value) == (
            "The handler changed what client 'a' pushed on key 'w'. The push was not applied. Change `stored` only; "
            "write `pushed * 2`, not `pushed *= 2`."
        )
        assert mine.pull("w").result().sum() == 0


def test_a_handler_gets_rows_once_and_together() -> None:
    seen = []

    def note(key: str, stored: Tensor, pushed: Tensor) -> None:
        seen.append((key, stored.clone(), pushed.clone()))
        stored.copy_(pushed)

    with store.local(handler=note, threads=True) as group, group.connect("a") as mine:
        mine.init("t", torch.arange(6.0).view(3, 2)).wait()
        mine.push("t", store.Rows([2, 0, 2], torch.ones(3, 2))).wait()
        assert mine.pull("t").result().tolist() == [[1, 1], [2, 3], [2, 2]]
    ((key, stored, pushed),) = seen
    assert key == "t" and stored.tolist() == [[0, 1], [4, 5]] and pushed.tolist() == [[1, 1], [2, 2]]


def test_a_key_that_was_never_initialised(mine: store.Store) -> None:
    for handle in (mine.push("w", torch.ones(3)), mine.pull("w"), mine.push_pull("w", torch.ones(3))):
        with pytest.raises(UnknownKey) as caught:
            handle.wait()
        assert str(caught.value) == (
            f"Key 'w' was never initialised. Server {owner('w', 2)}, where it would be, holds no key yet. Call "
            "init('w', tensor) first, in any one client."
        )
    names = sorted(name for name in map(str, range(10, 40)) if owner(name, 2) == owner("w", 2))
    for name in names:
        mine.init(name, torch.zeros(1)).wait()
    with pytest.raises(UnknownKey) as caught:
        mine.pull("w").wait()
    assert f"holds {', '.join(map(repr, names[:5]))}, .... Call" in str(caught.value)


def test_shapes_that_differ_between_workers(mine: store.Store, other: store.Store) -> None:
    mine.init("w", torch.zeros(3, 4)).wait()
    with pytest.raises(Mismatch) as caught:
        other.init("w", torch.zeros(4, 3)).wait()
    assert str(caught.value) == (
        "Client 'b' initialises key 'w' as float32 [4, 3], but client 'a' has initialised it as float32 [3, 4]. All "
        "clients must give the same shape and dtype."
    )
    with pytest.raises(Mismatch) as caught:
        other.push("w", torch.zeros(3, 4, dtype=torch.float64)).wait()
    assert str(caught.value) == (
        "Client 'b' pushes key 'w' as float64 [3, 4], but client 'a' has initialised it as float32 [3, 4]. All clients "
        "must give the same shape and dtype."
    )
    with pytest.raises(Mismatch, match=r"pushes rows of key 'w' as float32 \[3, 5\]"):
        other.push("w", store.Rows([1], torch.zeros(1, 5))).wait()
    with pytest.raises(Mismatch, match=r"as float32 \[2, 4\] \(a share of 4 rows\), but .* as float32 \[3, 4\]"):
        other.init("w", torch.zeros(4, 4), spread=True).wait()
    large = torch.zeros(PIECE)
    with pytest.raises(Mismatch):  # told while it is still being written
        other.push("w", large).wait()
    other.push("w", torch.ones(3, 4)).wait()


def test_rows_that_do_not_exist(mine: store.Store) -> None:
    mine.init("t", torch.zeros(3, 2)).wait()
    mine.init("s", torch.zeros(())).wait()
    with pytest.raises(UsageError) as caught:
        mine.push("t", store.Rows([1, 3, -1], torch.zeros(3, 2)))
    assert str(caught.value) == (
        "Row 3 of key 't' does not exist: it has rows 0 to 2. 2 of the 3 row numbers are wrong."
    )
    with pytest.raises(UsageError) as caught:
        mine.pull("s", rows=[0])
    assert str(caught.value) == "Key 's' is a single number and has no rows. Push and pull it whole."
    with pytest.raises(UsageError) as caught:
        store.Rows([1, 2], torch.zeros(3, 2))
    assert str(caught.value) == (
        "Rows has 2 indices and values of shape (3, 2): give one row of values for each index."
    )


@pytest.mark.parametrize(
    "verb",
    [
        lambda one, key: one.init(key, torch.ones(2)),
        lambda one, key: one.push(key, torch.ones(2)),
        lambda one, key: one.push(key, store.Rows([0], torch.ones(1))),
        lambda one, key: one.pull(key),
        lambda one, key: one.pull(key, rows=[0]),
        lambda one, key: one.push_pull(key, torch.ones(2)),
        lambda one, key: one.push_pull(key, store.Rows([0], torch.ones(1))),
        lambda one, key: one.broadcast(key, torch.ones(2), root="a"),
        lambda one, key: one.applied(key),
        lambda one, key: one.buffer(key),
    ],
    ids=[
        "init", "push", "push rows", "pull", "pull rows", "push_pull", "push_pull rows", "broadcast", "applied",
        "buffer",
    ],
)  # fmt: skip
def test_a_key_that_is_no_text(mine: store.Store, verb: Any) -> None:
    for key, text in [
        (3, "3 cannot be the name of a key: it is of type int. Use text, such as '3'."),
        (b"w", "b'w' cannot be the name of a key: it is of type bytes. Use text, such as \"b'w'\"."),
        ("", "'' cannot be the name of a key: use 1 to 200 bytes of printable text, not 0."),
    ]:
        with pytest.raises(UsageError) as caught:
            verb(mine, key)
        assert str(caught.value) == text


def test_other_names_that_are_no_text(group: store.Group, mine: store.Store) -> None:
    for act, text in [
        (lambda: mine.barrier(0), "0 cannot be the name of a barrier: it is of type int. Use text, such as '0'."),
        (
            lambda: mine.broadcast("w", root=0),
            "0 cannot be the name of a client: it is of type int. Use text, such as '0'.",
        ),
        (lambda: group.connect(1), "1 cannot be the name of a client: it is of type int. Use text, such as '1'."),
    ]:  # type: tuple[Any, str]
        with pytest.raises(UsageError) as caught:
            act()
        assert str(caught.value) == text


WRONG_ROWS = [
    (
        [1.7],
        "Row numbers were given as float32, the first is 1.7. Give whole numbers: a list of ints, or an int64 tensor.",
    ),
    (
        torch.tensor([2.0], dtype=torch.float64),
        "Row numbers were given as float64, the first is 2. Give whole numbers: a list of ints, or an int64 tensor.",
    ),
    (
        torch.tensor([True]),
        "Row numbers were given as a mask of 1 bools. Give the numbers of the rows that are meant: "
        "mask.nonzero().flatten().",
    ),
    ([True], "Row numbers were given as a mask of 1 bools. Give the numbers of the rows that are meant: "
     "mask.nonzero().flatten()."),
    (
        "1",
        "Row numbers were given as a str that is no list of numbers. Give a list of ints, or an int64 tensor.",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "text"), WRONG_ROWS, ids=["floats", "whole floats", "mask", "list of bools", "text"])
def test_row_numbers_that_are_none(mine: store.Store, rows: Any, text: str) -> None:
    mine.init("t", torch.zeros(3)).wait()
    with pytest.raises(UsageError) as caught:
        store.Rows(rows, torch.ones(1))
    assert str(caught.value) == text
    with pytest.raises(UsageError) as caught:
        mine.pull("t", rows=rows)
    assert str(caught.value) == text
    for good in ([1], torch.tensor([1], dtype=torch.int32), torch.tensor([1]).numpy(), range(1, 2)):
        mine.push("t", store.Rows(good, torch.ones(1))).wait()
    assert mine.pull("t").result().tolist() == [0, 4, 0]


def test_what_is_no_tensor(mine: store.Store) -> None:
    mine.init("w", torch.zeros(3)).wait()
    with pytest.raises(UsageError) as caught:
        mine.push("w", [1.0, 2.0])  # type: ignore[arg-type]
    assert str(caught.value) == ("push of key 'w' was given a list: give a torch.Tensor, or Rows(indices, values).")
    with pytest.raises(UsageError) as caught:
        mine.init("v", torch.ones(2, 2).to_sparse())
    assert str(caught.value) == (
        "init of key 'v' was given a tensor of layout torch.sparse_coo and dtype torch.float32: give a dense one of "
        "real numbers; for rows of a table there is Rows(indices, values)."
    )
    with pytest.raises(UsageError) as caught:
        mine.init("v", torch.tensor(1.0), spread=True)
    assert str(caught.value) == "Key 'v' is a single number and cannot be spread. Leave out spread=True."


@store.elementwise_into
def descend_into(key: str, stored: Tensor, pushed: Tensor, new: Tensor) -> None:
    torch.sub(stored, pushed, alpha=0.5, out=new)


@pytest.mark.parametrize("size", [10, PIECE], ids=["small", "large"])
def test_a_handler_that_writes_elsewhere(size: int) -> None:
    with store.local(threads=True, handler=descend_into) as group, group.connect("a", timeout=10.0) as mine:
        mine.init("w", torch.ones(size)).wait()
        before = mine.pull("w").result()
        for left in (0.5, 0.0, -0.5):
            assert torch.equal(mine.push_pull("w", torch.ones(size)).result(), torch.full((size,), left))
        assert torch.equal(before, torch.ones(size))
        mine.init("table", torch.ones(size // 2, 2)).wait()
        mine.push("table", store.Rows([1, 3, 3], torch.ones(3, 2))).wait()
        assert mine.pull("table", rows=[0, 1, 3]).result()[:, 0].tolist() == [1.0, 0.5, 0.0]


@pytest.mark.parametrize("reach", ["near"], indirect=True)
def test_too_many_versions_are_looked_at(mine: store.Store) -> None:
    mine.init("w", torch.zeros(10)).wait()
    views = []
    with pytest.raises(ResourceError) as caught:
        for _ in range(100):
            views.append(mine.push_pull("w", torch.ones(10)).result())
    assert str(caught.value) == (
        "All 32 buffers of key 'w' are looked at, by 'a' (32): a pulled value keeps its version for as long as a "
        "tensor shows it. Drop older ones (del), or keep clones."
    )
    views.clear()
    mine.push("w", torch.ones(10)).wait()


def test_two_processes_of_one_name(group: store.Group, mine: store.Store) -> None:
    mine.init("w", torch.zeros(3)).wait()
    with group.connect("a") as second:
        second.push("w", torch.ones(3)).wait()
        with pytest.raises(StoreError) as caught:
            mine.push("w", torch.ones(3)).wait()
        assert str(caught.value) == (
            "Another process has connected as client 'a'. Give every process a name of its own."
        )


def test_a_server_that_is_gone() -> None:
    with store.local(threads=True) as group:
        mine = group.connect("a")
        mine.init("w", torch.zeros(3)).wait()
    with pytest.raises(ServerLost) as caught:
        mine.push("w", torch.ones(3)).wait()
    assert str(caught.value) == (
        "Server 0 of the store is gone, and nobody takes over (Connection refused). What was not answered may or may "
        "not have been applied. See how the process that keeps the servers ended."
    )


def test_a_store_that_is_closed(group: store.Group) -> None:
    with group.connect("c") as one:
        one.init("w", torch.zeros(3)).wait()
    with pytest.raises(StoreError) as caught:
        one.pull("w").wait()
    assert str(caught.value) == "The store of client 'c' is closed. Connect again."


def test_an_address_that_is_none() -> None:
    with pytest.raises(UsageError) as caught:
        store.connect("localhost:4000", "a")
    assert str(caught.value) == (
        "'localhost:4000' is not the address of a store. Use the `address` of the group of servers."
    )
    with pytest.raises(UsageError) as caught, store.local(servers=0):
        pass
    assert str(caught.value) == "A store of 0 servers: there must be at least one of each."
    with pytest.raises(UsageError) as caught, store.local(servers=1, clients=0):
        pass
    assert str(caught.value) == "A store of 1 servers for 0 clients: there must be at least one of each."
