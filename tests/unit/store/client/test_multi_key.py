"""Several keys under one verb: one handle, one deadline, and a tale of what became of each."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from holdfast import store
from holdfast.config.limits import STORE
from holdfast.errors import HandlerFailed, Mismatch, StoreTimeout, UnknownKey, UsageError
from holdfast.store.client.multi_key import tale
from holdfast.store.heap import Extent
from holdfast.store.messages import Done, Grown, Meta, Open, Pull, PushRequest, answers, pack, packed, says
from holdfast.store.owners import owner
from holdfast.store.payload import is_light
from holdfast.store.server import server
from holdfast.transport.link import Link
from tests.unit.store.conftest import connected

NAMES = [f"k{i:03d}" for i in range(100)]


def test_keys_and_values_are_in_one_order(mine: store.Store, other: store.Store) -> None:
    values = [torch.full((3,), float(i)) for i in range(100)]
    assert mine.init(NAMES, values).result() is None
    assert mine.push(NAMES, values).result() is None
    got = other.pull(tuple(reversed(NAMES))).result()
    assert [int(value[0]) for value in got] == [2 * i for i in reversed(range(100))]
    both = mine.push_pull(NAMES[:2], [torch.ones(3), torch.ones(3)]).result()
    assert [value.tolist() for value in both] == [[1.0] * 3, [3.0] * 3]


def test_of_none_there_is_nothing(mine: store.Store) -> None:
    mine.init([], []).wait()
    mine.push([], []).wait()
    assert mine.pull([]).result() == ()
    assert mine.applied([]) == 0


def test_lens(mine: store.Store) -> None:
    lens = [2, 3, 1]
    mine.init(["a", "b", "c"], [torch.zeros(n) for n in lens]).wait()
    flat = torch.arange(6.0)
    mine.push(["a", "b", "c"], flat.split(lens)).wait()
    mine.init("t", torch.zeros(2, 2)).wait()
    mine.push(["t", "a"], [store.Rows([1], torch.ones(1, 2)), torch.ones(2)]).wait()
    out = torch.empty(6)
    mine.pull(["a", "b", "c"], out=out.split(lens)).wait()
    assert out.tolist() == [1.0, 2.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("spread", [False, True])
def test_ranges_of_rows(mine: store.Store, spread: bool) -> None:
    table = torch.arange(20.0).view(10, 2)
    mine.init(["t", "u"], [table, table], spread=spread).wait()
    assert torch.equal(mine.pull("t", rows=range(3, 8)).result(), table[3:8])
    assert torch.equal(mine.pull("t", rows=range(8, 2, -3)).result(), table[[8, 5]])
    assert mine.pull("t", rows=range(5, 5)).result().shape == (0, 2)
    mine.push("t", store.Rows(range(2, 9), torch.ones(7, 2))).wait()
    first, second = mine.pull(["t", "u"], rows=[range(1, 3), None]).result()
    assert torch.equal(first, table[1:3] + torch.tensor([[0.0], [1.0]])) and torch.equal(second, table)
    rows = [store.Rows([0], torch.ones(1, 2)), store.Rows(range(10), torch.ones(10, 2))]
    first, second = mine.push_pull(["t", "u"], rows).result()
    assert torch.equal(first, table[:1] + 1) and torch.equal(second, table + 1)
    with pytest.raises(UsageError) as caught:
        mine.pull("t", rows=slice(3, None))
    assert str(caught.value) == (
        "Row numbers were given as slice(3, None, None), which leaves out silently what does not exist. Give a range, "
        "such as range(3, 1000)."
    )


def test_a_broadcast_of_several(mine: store.Store, other: store.Store) -> None:
    given = mine.broadcast(["w", "b"], [torch.ones(2), torch.zeros(1)], root="a")
    w, b = other.broadcast(["w", "b"], root="a").result()
    assert w.tolist() == [1, 1] and b.tolist() == [0]
    assert len(given.result()) == 2
    with pytest.raises(UsageError, match="root of a broadcast of key 'b', but gave no value"):
        mine.broadcast(["w", "b"], [torch.ones(2), None], root="a")  # type: ignore[list-item]
    assert not mine._keyed_requests.under_way(), "nobody heard of the other one"


def test_numbers_of_several(mine: store.Store) -> None:
    keys = ["a", "b"]
    mine.init(keys, [torch.zeros(1), torch.zeros(1)]).wait()
    mine.push("a", torch.ones(1), number=1).wait()
    assert mine.applied(keys) == 0 and mine.applied("a") == 1
    for number in (1, 2, 2):
        mine.push(keys, [torch.ones(1), torch.ones(1)], number=number).wait()
    assert [value.item() for value in mine.pull(keys).result()] == [2, 2]
    assert mine.applied(keys) == 2


# ------------------------------------------------------------ what goes wrong


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda mine: mine.push(["a", "b", "a"], [torch.ones(1)] * 3),
         "Key 'a' is named twice among 3 keys of one call. Name every key once."),
        (lambda mine: mine.pull({"a", "b"}),
         "Keys were given as a set. Give one key as text, or several as a list or a tuple, whose order is that of the "
         "values: list(keys)."),
        (lambda mine: mine.pull(["a", 1]), "1 cannot be the name of a key: it is of type int. Use text, such as '1'."),
        (lambda mine: mine.push(["a", "b"], [torch.ones(1)]),
         "push of 2 keys was given 1 as values: give a list with one for each key."),
        (lambda mine: mine.push(["a", "b"], torch.ones(2)),
         "push of 2 keys was given a Tensor as values: give a list with one for each key."),
        (lambda mine: mine.pull(["a", "b"], out=torch.ones(2)),
         "pull of 2 keys was given a Tensor as out: give a list with one for each key."),
        (lambda mine: mine.pull(["a", "b"], rows=[3, 4]),
         "pull of 2 keys was given the number 3 as rows of one of them: give a list of row numbers for each key, or "
         "None for all of its rows."),
        (lambda mine: mine.push(["a", "b"], [torch.ones(1), None]),
         "push of key 'b' was given a NoneType: give a torch.Tensor, or Rows(indices, values)."),
        (lambda mine: mine.push(["a", "b"], [torch.ones(1), store.Rows([1], torch.ones(1))]),
         "Row 1 of key 'b' does not exist: it has rows 0 to 0. 1 of the 1 row numbers are wrong."),
        (lambda mine: mine.push(["a", "b"], [torch.ones(1)] * 2, number=0),
         "A push of key 'a' has the number 0: numbers begin at 1."),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_for_is_refused_before_anything_is_sent(mine: store.Store, ask: Any, text: str) -> None:
    mine.init(["a", "b"], [torch.zeros(1), torch.zeros(1)]).wait()
    with pytest.raises(UsageError) as caught:
        ask(mine)
    assert str(caught.value) == text
    assert mine.applied(["a", "b"]) == 0 and [value.item() for value in mine.pull(["a", "b"]).result()] == [0, 0]


def test_one_that_was_never_initialised(mine: store.Store) -> None:
    mine.init(["a", "c"], [torch.zeros(1), torch.zeros(1)]).wait()
    here = ", ".join(repr(key) for key in ("a", "c") if owner(key, 2) == owner("b", 2)) or "no key yet"
    sentence = (
        f"Key 'b' was never initialised. Server {owner('b', 2)}, where it would be, holds {here}. Call init('b', "
        "tensor) first, in any one client."
    )
    with pytest.raises(UnknownKey) as caught:
        mine.push(["a", "b", "c"], [torch.ones(1)] * 3).wait()
    assert str(caught.value) == f"{sentence} None of the 3 keys of this push was applied."
    with pytest.raises(UnknownKey) as caught:
        mine.pull(["a", "b", "c"]).wait()
    assert str(caught.value) == sentence
    assert [value.item() for value in mine.pull(["a", "c"]).result()] == [0, 0]


def test_one_of_another_shape(mine: store.Store, other: store.Store) -> None:
    mine.init(["a", "b"], [torch.zeros(1), torch.zeros(1)]).wait()
    values = [torch.ones(1), torch.ones(2)]
    with pytest.raises(Mismatch) as caught:
        other.push(["a", "b"], values).wait()
    assert str(caught.value) == (
        "Client 'b' pushes key 'b' as float32 [2], but client 'a' has initialised it as float32 [1]. All clients must "
        "give the same shape and dtype. None of the 2 keys of this push was applied."
    )
    with pytest.raises(Mismatch, match=r"pushes rows of key 'b' as float32 \[1, 2\].* None of the 2 keys"):
        other.push_pull(["a", "b"], [torch.ones(1), store.Rows([0], torch.ones(1, 2))]).wait()
    assert [value.item() for value in mine.pull(["a", "b"]).result()] == [0, 0]
    with pytest.raises(Mismatch) as caught:
        other.init(["c", "b", "d"], [torch.ones(1), torch.ones(2), torch.ones(1)]).wait()
    assert str(caught.value).endswith(
        "dtype. Of the 3 keys of this init, 'c', 'd' were initialised; 'b' was not initialised."
    )


def no_b(key: str, stored: Tensor, pushed: Tensor) -> None:
    if key == "b":
        raise ValueError("no b today")
    stored += pushed


@pytest.mark.parametrize("reach", ["near", "far"])
def test_one_that_the_handler_refuses(reach: str) -> None:
    listen = "127.0.0.1" if reach == "far" else None
    with (
        store.local(servers=2, handler=no_b, threads=True, listen=listen) as group,
        connected(group, reach, "a") as mine,
    ):
        keys = ["a", "b", "c"]
        mine.init(keys, [torch.zeros(1)] * 3).wait()
        with pytest.raises(HandlerFailed) as caught:
            mine.push(keys, [torch.ones(1)] * 3).wait()
        assert str(caught.value).endswith(
            "Correct the handler, or what was pushed. Of the 3 keys of this push, 'a', 'c' were applied; 'b' was not "
            "applied."
        )
        assert [value.item() for value in mine.pull(keys).result()] == [1, 0, 1]
        assert mine.applied(keys) == 0 and mine.applied(["a", "c"]) == 1
        mine.init("t", torch.zeros(1, 1)).wait()
        with pytest.raises(HandlerFailed, match=r"'t' was applied; 'b' was not applied\.$"):
            mine.push_pull(["t", "b"], [store.Rows([0], torch.ones(1, 1)), torch.ones(1)]).result()


def test_a_deadline_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    go, at_b = threading.Event(), threading.Event()

    def slow(key: str, stored: Tensor, pushed: Tensor) -> None:
        if key == "b":
            at_b.set()
            go.wait(20.0)
        stored += pushed

    monkeypatch.setattr(server, "STORE", replace(STORE, together=-1.0))  # answers wait for no others
    with store.local(handler=slow, threads=True) as group, group.connect("m", timeout=20.0) as mine:
        keys = ["a", "b", "c"]
        mine.init(keys, [torch.zeros(1)] * 3).wait()
        pushed = mine.push(keys, [torch.ones(1)] * 3)
        assert at_b.wait(10.0)
        with pytest.raises(StoreTimeout) as caught:
            pushed.wait(timeout=0.05)
        pid = mine._keyed_requests.wires[0].pid  # type: ignore[attr-defined]
        assert str(caught.value) == (
            f"Server 0 did not answer in time: client 'm' waits for a push of key 'b'. It is process {pid}. Allow more "
            "time (timeout=), or see what keeps it. Of the 3 keys of this push, 'a' was applied; 'b', 'c' were not "
            "answered."
        )
        go.set()
        pushed.wait()
        assert [value.item() for value in mine.pull(keys).result()] == [1, 1, 1]


def test_more_keys_than_may_be_unanswered_at_a_deadline() -> None:
    go = threading.Event()

    def slow(key: str, stored: Tensor, pushed: Tensor) -> None:
        go.wait(20.0)
        stored += pushed

    with store.local(handler=slow, threads=True) as group, group.connect("m", timeout=20.0) as mine:
        mine.init(NAMES, [torch.zeros(1)] * 100).wait()
        mine.pull(NAMES).wait()
        pushed = mine.push(NAMES, [torch.ones(1)] * 100, timeout=1.0)
        with pytest.raises(StoreTimeout) as caught:
            pushed.wait()
        assert str(caught.value).endswith(
            "'k000', 'k001', 'k002', 'k003', 'k004' and 58 more were not answered; 'k063', 'k064', 'k065', 'k066', "
            "'k067' and 32 more were not applied."
        )
        go.set()
        with pytest.raises(StoreTimeout, match="'k004' and 58 more were applied; 'k063'"):
            pushed.wait(timeout=20.0)
        assert sum(int(value) for value in mine.pull(NAMES).result()) == 63


def test_who_closes_is_told_of_keys_that_were_never_asked_for() -> None:
    go = threading.Event()

    def slow(key: str, stored: Tensor, pushed: Tensor) -> None:
        go.wait(20.0)
        stored += pushed

    with store.local(handler=slow, threads=True) as group:
        mine = group.connect("m", timeout=20.0)
        mine.init(NAMES, [torch.zeros(1)] * 100).wait()
        mine.pull(NAMES).wait()
        mine.push(NAMES, [torch.ones(1)] * 100, timeout=1.0)
        go.set()
        with pytest.raises(StoreTimeout, match=r"'k004' and 58 more were applied; 'k063', .* were not applied"):
            mine.close()


def test_a_tale() -> None:
    assert tale("push", dict.fromkeys("abcdefg", "not answered") | {"h": "applied in part"}) == (
        "Of the 8 keys of this push, 'a', 'b', 'c', 'd', 'e' and 2 more were not answered; 'h' was applied in part."
    )


# ------------------------------------------------------------ how it travels


def test_what_is_asked_of_one_server_travels_together_and_so_do_the_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    real = Link.offer

    def offer(self: Link, data: bytes, fds: Any = ()) -> Any:
        sent.append(data)
        return real(self, data, fds)

    monkeypatch.setattr(server, "STORE", replace(STORE, together=100.0))  # however slow this machine is
    with store.local(threads=True) as group, group.connect("m") as mine:
        keys, values = NAMES[:60], [torch.ones(10)] * 60
        mine.init(keys, values).wait()
        mine.push(keys, values).wait()
        monkeypatch.setattr(Link, "offer", offer)
        mine.push(keys, values).wait()
        assert sorted(len(says(letter)) for letter in sent if b"PushRequest" in letter) == [28, 32]
        assert sorted(len(answers(letter)) for letter in sent if b"Done" in letter) == [28, 32]


def test_letters_are_no_longer_than_they_may_be() -> None:
    told = [Done(i, Meta("float32", (), "x" * 200)) for i in range(500)]
    letters = packed(told, 10_000)
    assert [one for letter in letters for one in answers(letter)] == told
    assert max(map(len, letters)) <= 10_000 < len(pack(*told))
    assert packed(told[:1], 10) == [pack(told[0])]


def test_who_waits_for_company() -> None:
    def push(size: int) -> PushRequest:
        return PushRequest(1, "w", 1, Meta("uint8", (size,), "x"), Extent(0, 2**30, 0, size), size)

    assert [is_light(one) for one in (Open(1, "w"), Pull(1, "w"), push(100), push(2**20), Grown(1, 5))] == [
        True, True, True, False, False,
    ]  # fmt: skip
