"""A server and those who do not speak its language."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from holdfast import store
from holdfast.errors import UsageError
from holdfast.store.heap import Extent
from holdfast.store.messages import (
    Failed,
    Grown,
    Hello,
    Init,
    JoinRound,
    Meta,
    Open,
    Pull,
    PushRequest,
    ReleaseView,
    Welcome,
    answers,
    pack,
)
from holdfast.store.region import Region, create
from holdfast.transport.link import Link

META = Meta("float32", (3,), "x")
NOWHERE = Extent(2**40, 4096, 0, 12)


@pytest.fixture
def group() -> Iterator[store.Group]:
    with store.local(threads=True) as group:
        yield group


def raw(group: store.Group) -> Link:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect("\0" + group.address.split("/")[0] + ".0")
    sock.settimeout(5.0)
    link = Link(sock)
    sock.settimeout(5.0)
    return link


def welcomed(group: store.Group) -> Link:
    link, memory = raw(group), create()
    os.ftruncate(memory, 8192)
    link.send(pack(Hello("x")), [memory])
    os.close(memory)
    frame = link.recv()
    assert frame is not None
    assert isinstance(answers(frame.data)[0], Welcome)
    for fd in frame.fds:
        os.close(fd)
    return link


def still_serves(group: store.Group) -> None:
    with group.connect("good", timeout=5.0) as mine:
        mine.init("good", torch.zeros(3)).wait()
        assert mine.push_pull("good", torch.ones(3)).result() is not None


@pytest.mark.parametrize(
    "data", [b"\xc1", b"hello", pack(Open(1, "w")), pack(Hello("x"))], ids=["c1", "text", "open", "bare"]
)
def test_who_begins_with_anything_but_hello_is_sent_away(group: store.Group, data: bytes) -> None:
    with raw(group) as link:
        link.send(data)
        frame = link.recv()
        assert frame is not None
        answer = answers(frame.data)[0]
        assert isinstance(answer, Failed) and answer.id == -1 and answer.kind == "StoreError"
        assert link.recv() is None
    still_serves(group)


@pytest.mark.parametrize(
    "message",
    [
        Init(1, "w", META, NOWHERE),
        Init(1, "w", META, Extent(0, 4096, 4090, 12)),
        Init(1, "w", META, Extent(0, 4096, 0, 13)),
        Init(1, "w", Meta("Tensor", (3,), "x"), Extent(0, 4096, 0, 12)),
        Init(1, "w", Meta("float32", (-3,), "x"), Extent(0, 4096, 0, 12)),
        PushRequest(1, "good", 1, META, NOWHERE, 12),
        PushRequest(1, "good", 1, META, Extent(0, 4096, 0, 12), 12, NOWHERE),
        PushRequest(1, "good", 1, META, Extent(0, 4096, 0, 12), 12, Extent(0, 4096, 0, 9)),
        Pull(1, "good", Extent(0, 4096, 0, 8), Extent(0, 4096, 0, 5)),
        JoinRound(1, "m", 1, 1, "k", META, NOWHERE),
    ],
    ids=str,
)  # fmt: skip
def test_what_lies_nowhere_is_refused(group: store.Group, message: Any) -> None:
    still_serves(group)
    with welcomed(group) as link:
        link.send(pack(message))
        frame = link.recv()
        assert frame is not None
        answer = answers(frame.data)[0]
        assert isinstance(answer, Failed) and answer.id == 1, answer
    still_serves(group)


def test_what_is_about_nothing_is_ignored(group: store.Group) -> None:
    with welcomed(group) as link:
        for message in (Grown(99, 5), ReleaseView("w", 3), ReleaseView("good", -1), ReleaseView("good", 99)):
            link.send(pack(message))
        still_serves(group)


def test_a_place_that_is_not_there() -> None:
    region = Region(create(), writable=True)
    with pytest.raises(UsageError) as caught:
        region.bytes(NOWHERE)
    assert str(caught.value) == (
        "Extent(run=1099511627776, length=4096, offset=0, size=12) is beyond the 0 bytes that there are. Both sides "
        "must be of one version."
    )
    region.close()
