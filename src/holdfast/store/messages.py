"""What clients and servers say to each other, as msgpack. Pure.

No message has a value in it: values lie in shared memory, the client's (what is pushed, and rows that are pulled) or
the server's (what is published), and messages say where. A client's requests have numbers (`id`); it sends those that
are unanswered again, unchanged and in order, to a server that takes over. Between hosts a proxy speaks to the servers
for a client (see `proxy`); bytes of values travel beside the messages then (`Bytes`, `payload`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from holdfast.errors import Mismatch
from holdfast.store.heap import Extent

__all__ = [
    "Answer", "Bytes", "Done", "Failed", "Grown", "Hello", "Init", "JoinRound", "Meta", "Open", "Partly", "Pull",
    "PushRequest",
    "ReleaseView", "Request", "Say", "ValueView", "Welcome", "answers", "check_alike", "pack", "packed", "says",
]  # fmt: skip


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


class Meta(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a key. `rows` is the number of rows of the whole where it is spread, else -1."""

    dtype: str
    shape: tuple[int, ...]
    by: str  #: the client that initialised it, or that says this
    rows: int = -1

    def __str__(self) -> str:
        spread = f" (a share of {self.rows} rows)" if self.rows >= 0 else ""
        return f"{self.dtype} {list(self.shape)}{spread}"


def check_alike(key: str, known: Meta, mine: Meta, verb: str) -> None:
    """Does a client mean the same by a key as the one that initialised it? Raises Mismatch."""
    if (known.dtype, known.shape, known.rows) != (mine.dtype, mine.shape, mine.rows):
        raise Mismatch(
            f"Client {mine.by!r} {verb} key {key!r} as {mine}, but client {known.by!r} has initialised it as {known}. "
            "All clients must give the same shape and dtype."
        )


# ------------------------------------------------------------ from a client


class Hello(_Message, frozen=True):
    """The first words. With them comes the client's memory. `looks`: buffers of keys it still looks at.

    `far`: a proxy says this for a client of another host. It looks at nothing beyond the life of a server.
    """

    client: str
    looks: tuple[tuple[str, int], ...] = ()
    far: bool = False


class Open(_Message, frozen=True):
    """What about this key?"""

    id: int
    key: str


class Init(_Message, frozen=True):
    """A key and its first value."""

    id: int
    key: str
    meta: Meta
    value: Extent


class PushRequest(_Message, frozen=True):
    """Hand the value (or the rows with these numbers) to the handler.

    `number` is what it counts under (see `dedup`), `here` how many bytes of the value are written already. `again`: it
    was sent before, to a server that is gone, and nobody here knows what became of it. `early`: with `pull`, say what
    the next version is going to be as far as it is made (`Partly`).
    """

    id: int
    key: str
    number: int
    meta: Meta
    value: Extent
    here: int
    rows: Extent | None = None
    pull: bool = False
    again: bool = False
    early: bool = False


class Grown(_Message, frozen=True):
    """More bytes of a push are written."""

    id: int
    here: int


class Pull(_Message, frozen=True):
    """Show me the published version, or copy the rows with these numbers into my memory."""

    id: int
    key: str
    rows: Extent | None = None
    into: Extent | None = None


class ReleaseView(_Message, frozen=True):
    """I no longer look at this buffer of a key."""

    key: str
    buffer: int


class JoinRound(_Message, frozen=True):
    """I am at this round of so many clients (0: of the crew). With a key: a broadcast; with a value: I am its root."""

    id: int
    name: str
    turn: int
    parties: int
    key: str = ""
    meta: Meta | None = None
    value: Extent | None = None


class Bytes(_Message, frozen=True):
    """Between hosts: with this come bytes of request `id`, or of its answer, which has `size` of them in all.

    They begin at byte `begin`. An answer may begin anew, as often as it likes.
    """

    id: int
    begin: int
    size: int


Request = Open | Init | PushRequest | Pull | JoinRound
Say = Hello | Open | Init | PushRequest | Grown | Pull | ReleaseView | JoinRound | Bytes


# ------------------------------------------------------------ from a server


class Welcome(_Message, frozen=True):
    """The answer to Hello. With it comes the server's memory, to be looked at only."""

    server: int
    num_servers: int
    pid: int


class Done(_Message, frozen=True):
    """It is done. `number`: the last push of this client on the key, or the last round of the meeting.

    `here`: of a meeting, who has arrived at the round that is not over, and `awaited` who of the crew has not.
    `counted`: of a key, up to which number this client's pushes count.
    """

    id: int
    meta: Meta | None = None
    number: int = 0
    here: tuple[str, ...] = ()
    counted: int = 0
    awaited: tuple[str, ...] = ()


class ValueView(_Message, frozen=True):
    """It is done, and here is the value; the buffer is yours to look at until you release it."""

    id: int
    key: str
    meta: Meta
    place: Extent
    buffer: int
    version: int


class Partly(_Message, frozen=True):
    """A push is under way: `here` bytes of the version that it makes lie there. They are not published yet.

    With another `attempt` than before, what was made has become void (somebody else's push came first), and it begins
    anew. What is published is what the last attempt has made.
    """

    id: int
    meta: Meta
    place: Extent
    here: int
    attempt: int


class Failed(_Message, frozen=True):
    """It cannot be done. `kind` is the name of an error class; id -1: it is about all of this client's requests."""

    id: int
    kind: str
    text: str


Answer = Welcome | Done | ValueView | Partly | Failed | Bytes

_encoder = msgspec.msgpack.Encoder()
#: What a client says, and what a server answers. Raise msgspec.DecodeError.
says: Callable[[bytes], list[Say]] = msgspec.msgpack.Decoder(list[Say]).decode
answers: Callable[[bytes], list[Answer]] = msgspec.msgpack.Decoder(list[Answer]).decode


def pack(*messages: Say | Answer) -> bytes:
    """Messages that travel together, as bytes."""
    return _encoder.encode(messages)


def packed(messages: Sequence[Say | Answer], most: int) -> list[bytes]:
    """The same, in as many pieces as it takes for none to have more than `most` bytes, if that can be."""
    data = pack(*messages)
    if len(data) <= most or len(messages) < 2:
        return [data]
    half = len(messages) // 2
    return packed(messages[:half], most) + packed(messages[half:], most)
