"""The store over TCP: who is let in, what travels, and what is said when it cannot be."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from holdfast import store
from holdfast.errors import (
    FrameError,
    HandlerFailed,
    NobodyListens,
    Refused,
    StoreTimeout,
    Unreachable,
    UsageError,
    WrongToken,
)
from holdfast.store.address import parse
from holdfast.store.heap import Extent
from holdfast.store.messages import (
    Bytes,
    Done,
    Failed,
    Grown,
    Hello,
    Init,
    JoinRound,
    Meta,
    Open,
    Pull,
    PushRequest,
    ValueView,
    Welcome,
)
from holdfast.store.payload import LONGEST_RUN, Payload, moved, payload_of, run_length
from holdfast.store.remote.framing import FramedMessages, head
from holdfast.store.remote.send_queue import SendQueue
from holdfast.transport.auth import dial, token
from holdfast.transport.auth.credentials import Credentials
from holdfast.transport.auth.handshake import Hello as Greeting
from holdfast.transport.frames import HEADER, Kind, pack
from holdfast.transport.stream import PlainStream, Stream

META = Meta("float32", (3,), "x")
PLACE = Extent(0, 4096, 64, 12)


@pytest.fixture
def group() -> Iterator[store.Group]:
    with store.local(threads=True, listen="127.0.0.1") as group:
        yield group


@pytest.fixture
def credentials(group: store.Group, tmp_path: Path) -> Path:
    group.write_credentials(tmp_path / "credentials")
    return tmp_path / "credentials"


# ------------------------------------------------------------ who is let in


def test_nothing_listens_unless_it_was_asked_for(tmp_path: Path) -> None:
    with store.local(threads=True) as group:
        for act in (lambda: group.far_address, lambda: group.write_credentials(tmp_path / "x")):
            with pytest.raises(UsageError) as caught:
                act()
            assert str(caught.value) == (
                "This store lets no clients of other hosts in. Start it with local(listen='HOST'), an address of this "
                "machine that they can reach."
            )
    with pytest.raises(UsageError) as caught, store.local(threads=True, tls=True):
        pass
    assert str(caught.value) == (
        "token_file and tls are for clients of other hosts, and none are let in. Give listen=, too."
    )


def test_a_client_needs_the_token(group: store.Group, credentials: Path, tmp_path: Path) -> None:
    with store.connect(group.far_address, "a", credentials=credentials) as mine:
        mine.init("w", torch.ones(3)).wait()
        assert mine.pull("w").result().tolist() == [1, 1, 1]
    assert credentials.stat().st_mode & 0o777 == 0o600
    place = group.far_address.partition("/")[0]
    with pytest.raises(UsageError) as caught:
        store.connect(group.far_address, "a")
    assert str(caught.value) == (
        f"The servers at {place} are on another host, and let nobody in without their token. Give "
        "connect(..., credentials=FILE), the file that write_credentials of their group wrote."
    )
    token.write(tmp_path / "other", token.make())
    with pytest.raises(WrongToken):
        store.connect(group.far_address, "a", credentials=tmp_path / "other")


def test_a_token_of_ones_own(tmp_path: Path) -> None:
    token.write(tmp_path / "token", token.make())
    with (
        store.local(threads=True, listen="127.0.0.1", token_file=tmp_path / "token") as group,
        store.connect(group.far_address, "a", credentials=tmp_path / "token") as mine,
    ):
        mine.init("w", torch.ones(3)).wait()


def test_with_tls(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    with store.local(threads=True, listen="127.0.0.1", tls=True) as group:
        group.write_credentials(tmp_path / "credentials")
        with store.connect(group.far_address, "a", credentials=tmp_path / "credentials") as mine:
            value = torch.rand(500_000)
            mine.init("w", value).wait()
            assert torch.equal(mine.push_pull("w", value).result(), value + value)
        with pytest.raises(Refused):  # the token alone is not enough
            store.Store(group.far_address, "a", credentials=Credentials(group.listener.credentials.token))


def test_when_the_group_is_closed_nothing_listens(tmp_path: Path) -> None:
    with store.local(threads=True, listen="127.0.0.1") as group:
        address, credentials = group.far_address, tmp_path / "credentials"
        group.write_credentials(credentials)
        with store.connect(address, "a", credentials=credentials) as mine:
            mine.init("w", torch.zeros(3)).wait()
    with pytest.raises(NobodyListens):
        store.connect(address, "a", credentials=credentials)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("holdfast-store")]


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        (Greeting("join"), "this is a parameter store, where nobody comes to join"),
        (Greeting("store", facts={"server": 1, "client": "a"}), "there is no server 1; this store has 1"),
        (Greeting("store", facts={"client": "a"}), "there is no server None; this store has 1"),
        (
            Greeting("store", facts={"server": 0, "client": "a\n"}),
            "'a\\n' cannot be the name of a client: use 1 to 200 bytes of printable text, not 2.",
        ),
    ],
    ids=["join", "server", "none", "name"],
)
def test_who_means_something_else_is_refused(group: store.Group, hello: Greeting, why: str) -> None:
    place = parse(group.far_address).place
    assert place is not None
    with pytest.raises(Refused) as caught:
        dial.connect(place, hello, group.listener.credentials, 5.0)
    assert str(caught.value) == f"The run at {place[0]}:{place[1]} will not have this machine: {why}"


# ------------------------------------------------------------ those who do not speak its language


@contextlib.contextmanager
def visiting(group: store.Group) -> Iterator[Stream]:
    place = parse(group.far_address).place
    assert place is not None
    hello = Greeting("store", facts={"server": 0, "client": "x"})
    stream = dial.connect(place, hello, group.listener.credentials, 5.0)
    stream.settimeout(5.0)
    try:
        yield stream
    finally:
        stream.close()


@pytest.mark.parametrize(
    ("letter", "text"),
    [
        (b"nonsense" * 4, "it begins with b'nons', not with b'HFD1'"),
        (pack(Kind.SUM, 0, b"m"), "its kind is SUM, which has no business on this connection"),
        (pack(Kind.STORE, 0, b"\xc1"),
         "it holds no message of a store (MessagePack data is malformed: invalid opcode '\\xc1' (byte 0))"),
        (head(Hello("y")), "Hello has no business on this connection"),
        (head(Grown(1, 5)), "Grown has no business on this connection"),
        (head(Init(1, "w", META, PLACE), 13), "13 bytes come with a request that has 12"),
        (head(PushRequest(1, "w", 1, META, PLACE, 0, Extent(0, 4096, 70, 8))),
         "Extent(run=0, length=4096, offset=70, size=8) and Extent(run=0, length=4096, offset=64, size=12) are no "
         "stretch of one memory. Both sides must be of one version."),
        (head(Init(1, "w", META, PLACE), 4) + b"abcd" + head(Bytes(1, 8, 12), 4),
         "4 bytes with Bytes come where byte 4 of 12 is due"),
        (head(Init(1, "w", META, PLACE), 4) + b"abcd" + head(Open(2, "w")),
         "0 bytes with Open come where byte 4 of 12 is due"),
    ],
    ids=["text", "kind", "msgpack", "hello", "grown", "long", "stretch", "gap", "turn"],
)  # fmt: skip
def test_who_sends_nonsense_is_told_so_and_sent_away(group: store.Group, letter: bytes, text: str) -> None:
    with visiting(group) as stream:
        box = FramedMessages(stream)
        assert isinstance(box.answered()[0], Welcome)
        stream.send(letter)
        answer, _ = box.answered()
        known = text if text.endswith("version.") else f"{text}. Both sides must be of one version."
        assert isinstance(answer, Failed)
        told = re.sub(r" \(it came from 127\.0\.0\.1:\d+\)", "", answer.text)
        assert (answer.id, answer.kind, told) == (-1, "StoreError", f"What client 'x' sent cannot be read: {known}")
        with pytest.raises((EOFError, OSError)):
            box.answered()
    with group.connect("good", timeout=5.0) as mine:
        mine.init("good", torch.zeros(3)).wait()


def test_what_does_not_fit_the_memory_is_refused_and_the_connection_goes_on(group: store.Group) -> None:
    huge = Meta("float32", (2**50,), "x")
    with visiting(group) as stream:
        box = FramedMessages(stream)
        box.answered()
        stream.send(head(Init(1, "w", huge, Extent(0, 2**53, 0, 2**52)), 4), b"abcd")
        answer, _ = box.answered()
        assert isinstance(answer, Failed) and answer.kind == "ResourceError" and answer.id == 1
        assert answer.text.startswith("A request of client 'x' needs 4,294,967,296.0 MiB of shared memory, but only ")


# ------------------------------------------------------------ overtaken


@store.elementwise
def picky(key: str, stored: torch.Tensor, pushed: torch.Tensor) -> None:
    """Adds, and finds out too late that it does not want negative numbers."""
    stored += pushed
    if pushed[0] < 0:
        raise ValueError("negative")


@pytest.mark.parametrize("fails", [False, True], ids=["published", "failed"])
def test_a_push_that_is_overtaken_halfway_is_made_and_sent_again(fails: bool) -> None:
    size = 600_000
    mine = torch.arange(size, dtype=torch.float32)
    raw = memoryview(mine.numpy()).cast("B")
    half = 2**20
    with (
        store.local(threads=True, handler=picky, listen="127.0.0.1") as group,
        group.connect("near", timeout=10.0) as near,
        visiting(group) as stream,
    ):
        near.init("w", torch.zeros(size)).wait()
        box, got = FramedMessages(stream), torch.zeros(size)
        into, seen = memoryview(got.numpy()).cast("B"), []
        box.answered()
        push = PushRequest(
            1, "w", 1, Meta("float32", (size,), "x"), Extent(0, raw.nbytes, 0, raw.nbytes), 0, None, True
        )
        stream.send(head(push, half), raw[:half])
        early = sum(_taken(box, into, seen) for _ in range(half // run_length(raw.nbytes)))
        assert early <= half and torch.equal(got[: early // 4], mine[: early // 4])  # before anything is published
        if fails:
            with pytest.raises(HandlerFailed):
                near.push("w", torch.full((size,), -7.0)).wait()
        else:
            near.push("w", torch.full((size,), 5.0)).wait()
        for begin in range(half, raw.nbytes, half):
            rest = raw[begin : begin + half]
            stream.send(head(Bytes(1, begin, raw.nbytes), rest.nbytes), rest)
        while _taken(box, into, seen):
            pass
        assert seen.count(0) == 2  # it has begun twice
        assert torch.equal(got, mine if fails else mine + 5)
        assert torch.equal(near.pull("w").result(), got)


def _taken(box: FramedMessages, into: memoryview, seen: list[int]) -> int:
    """Take one letter of an answer; how many bytes came with it."""
    answer, size = box.answered()
    if isinstance(answer, Bytes):
        seen.append(answer.begin)
        box.take(into[answer.begin : answer.begin + size])
    else:
        assert isinstance(answer, ValueView)
    return size


# ------------------------------------------------------------ pure


def test_what_goes_along_with_a_request() -> None:
    rows, values = Extent(0, 4096, 0, 16), Extent(0, 4096, 64, 24)
    assert payload_of(Open(1, "w")) is None
    assert payload_of(Pull(1, "w")) is None
    assert payload_of(JoinRound(1, "m", 1, 2)) is None
    assert payload_of(Init(1, "w", META, PLACE)) == Payload(PLACE, 12)
    assert payload_of(PushRequest(1, "w", 1, META, PLACE, 12)) == Payload(PLACE, 12)
    assert payload_of(PushRequest(1, "w", 1, META, values, 24, rows)) == Payload(Extent(0, 4096, 0, 88), 88)
    assert payload_of(Pull(1, "w", rows, values)) == Payload(Extent(0, 4096, 0, 88), 16)
    assert payload_of(JoinRound(1, "m", 1, 2, "w", META, PLACE)) == Payload(PLACE, 12)


def test_a_request_whose_payload_was_moved() -> None:
    rows, values, new = Extent(0, 4096, 128, 16), Extent(0, 4096, 192, 24), Extent(8192, 65536, 1024, 88)
    request: Any = PushRequest(1, "w", 1, META, values, 24, rows)
    payload = payload_of(request)
    assert payload is not None
    there = moved(request, payload.place, new)
    assert (there.rows, there.value) == (Extent(8192, 65536, 1024, 16), Extent(8192, 65536, 1088, 24))
    assert payload_of(there) == Payload(new, 88)
    assert moved(Open(1, "w"), new, new) == Open(1, "w")


def test_an_send_queue_sends_piece_by_piece_and_in_order() -> None:
    size = 2**16 + 4096
    push = PushRequest(1, "w", 1, META, Extent(0, 2**20, 64, size), 4096)
    pending: Any = SimpleNamespace(request=push)
    box = SendQueue()
    assert box.next() is None
    box.add(pending)
    box.add(SimpleNamespace(request=Open(2, "w")))  # type: ignore[arg-type]
    assert box.next() == (push, Extent(0, 2**20, 64, 4096))
    assert box.next() is None  # the rest is not here yet, and nothing goes out before it
    pending.request = msgspec.structs.replace(push, here=size)
    assert box.next() == (Bytes(1, 4096, size), Extent(0, 2**20, 64 + 4096, 2**16))
    assert box.next() == (Open(2, "w"), None)
    assert box.next() is None
    box.renew([pending])
    assert box.next() == (pending.request, Extent(0, 2**20, 64, 2**16))
    assert box.next() == (Bytes(1, 2**16, size), Extent(0, 2**20, 64 + 2**16, 4096))
    pending.request = PushRequest(3, "w", 2, META, Extent(0, 2**20, 0, 0), 0)  # an empty value
    box.renew([pending])
    assert box.next() == (pending.request, Extent(0, 2**20, 0, 0))
    assert box.next() is None


def test_small_things_go_out_together() -> None:
    def push(id_: int, size: int) -> Any:
        return SimpleNamespace(request=PushRequest(id_, "w", id_, META, Extent(0, 2**24, 0, size), size))

    box = SendQueue()
    for i in range(100):
        box.add(push(i, 12))
    assert [len(box.several()), len(box.several()), len(box.several())] == [64, 36, 0]
    for i in range(3):
        box.add(push(i, 2**17))
    ids = [[message.id for message, _ in box.several()] for _ in range(7)]  # type: ignore[union-attr]
    assert ids == [[0], [0], [1], [1], [2], [2], []], "large ones go as they did"


@pytest.mark.parametrize("size", [0, 1, 10**6, 10**7, 10**9, 10**12])
def test_runs_are_whole_numbers_and_neither_tiny_nor_huge(size: int) -> None:
    assert 2**16 <= run_length(size) <= LONGEST_RUN
    assert run_length(size) % 4096 == 0


def test_a_letter_that_no_client_expects() -> None:
    ours, theirs = PlainStream.pair()
    theirs.send(head(Done(1)), pack(Kind.STORE, 1, b"m"))
    box = FramedMessages(ours)
    assert box.answered() == (Done(1), 0)
    with pytest.raises(FrameError, match="generation 1"):
        box.answered()
    ours.close()
    theirs.close()


def test_an_address() -> None:
    assert parse("10.0.0.5:4000/2/4").place == ("10.0.0.5", 4000)
    assert parse("[fd00::5]:4000/2/4").place == ("fd00::5", 4000)
    assert str(parse("holdfast-store-4f/2/4")) == "holdfast-store-4f/2/4"
    assert len(head(Open(1, "w"))) > HEADER


def test_a_server_that_cannot_be_reached_any_more(
    group: store.Group, credentials: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its deadline says why, and not only that it is over."""
    mine: Any = store.connect(group.far_address, "a", credentials=credentials, timeout=10.0)
    mine.init("w", torch.ones(3)).wait()
    assert mine.pull("w").result().tolist() == [1, 1, 1]
    (wire,) = mine._keyed_requests.wires

    def cut() -> None:
        raise Unreachable("10.0.0.5:4000 does not answer. Look at the firewall.")

    monkeypatch.setattr(wire, "_connect", cut)
    wire._stream.close()
    waiting = mine.pull("w")
    with wire._changed:
        assert wire._changed.wait_for(lambda: wire._trouble, 10.0)
    with pytest.raises(StoreTimeout) as caught:
        waiting.wait(0.01)
    assert str(caught.value) == (
        "Server 0 did not answer in time: client 'a' waits for a pull of key 'w'. It cannot be reached now: "
        "10.0.0.5:4000 does not answer. Allow more time (timeout=), or see what keeps it."
    )
    monkeypatch.undo()
    assert waiting.result().tolist() == [1, 1, 1]
    mine.close()
