"""The ledger: what a server knows, in shared memory that outlives it.

It lies at the beginning of the server's region:

    header | the change under way | one record per client | one record per key | tallies, one per key and client

There is one writer, the server. What has to change together (a key's published buffer, its version, the tally of the
client that pushed) is first written down as the *change under way*; one store, of `C_KIND`, makes it happen; then it
is carried out; another store ends it. Whoever takes over carries out what it finds under way. Carrying it out twice
is the same as once. So a kill at any moment leaves a change that has happened, or has not. No torch here.

Memory that was never touched costs nothing, so the tables are made for many.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from holdfast.config.limits import STORE
from holdfast.errors import ResourceError
from holdfast.store.dedup import DedupWindow
from holdfast.store.heap import Extent, room_for
from holdfast.store.messages import Meta
from holdfast.store.region import Region

__all__ = ["LEDGER", "MAX_BUFFERS", "Ledger", "LedgerChange"]

MAGIC = 0x484F4C44_53544F52  # "HOLDSTOR"
#: Versions of one key that are there at the same time: the published one, the next, and those that clients look at.
MAX_BUFFERS = 32

_HEADER, _CHANGE, _CLIENT, _RECORD, _DEDUP = 64, 64, 64, 256, 2  # words
H_MAGIC, H_TOP, H_KEYS, H_CLIENTS, H_CHANGES, H_PUSHED, H_PUSHER = range(7)
(C_KIND, C_KEY, C_BUFFER, C_VERSION, C_CLIENT, C_LAST, C_FAILED, C_MEETING, C_TURN, C_CHANGES, C_NUMBERS,
 C_VALUES) = (*range(11), 14)  # fmt: skip
K_VERSION, K_CURRENT, K_BUFFERS, K_META = 0, 1, 2, 2 + 4 * MAX_BUFFERS
_CHANGE0 = _HEADER
_CLIENT0 = _CHANGE0 + _CHANGE
_RECORD0 = _CLIENT0 + STORE.clients * _CLIENT
_DEDUP0 = _RECORD0 + STORE.keys * _RECORD
#: Bytes of the ledger; values lie behind it.
LEDGER = 8 * (_DEDUP0 + STORE.keys * STORE.clients * _DEDUP)

_encode = msgspec.msgpack.encode


class LedgerChange(msgspec.Struct, frozen=True):
    """What happens at once. Numbers below 0 mean: not this part.

    With `rows`, places of row numbers and of their new contents, rows of the buffer change, and not which one is
    published: whoever carries it out writes them.
    """

    key: int = -1
    buffer: int = 0
    version: int = 0
    client: int = -1
    dedup: DedupWindow = DedupWindow()
    barrier: int = -1
    turn: int = 0
    rows: tuple[Extent, Extent] | None = None


class Ledger:
    """The ledger of one server, over memory that may have had another server before."""

    def __init__(self, region: Region) -> None:
        if os.fstat(region.fd).st_size < LEDGER:
            os.ftruncate(region.fd, LEDGER)
        self._map = region.run(Extent(0, LEDGER, 0, LEDGER))
        self._raw = memoryview(self._map)
        self._words = self._raw.cast("q")
        if self._words[H_MAGIC] != MAGIC:
            self._words[H_TOP] = LEDGER
            self._words[H_MAGIC] = MAGIC
        names = [self._text(_CLIENT0 + i * _CLIENT, _CLIENT) for i in range(self._words[H_CLIENTS])]
        self.clients = [bytes(name).decode() for name in names]
        records = [self._text(self._record(i) + K_META, _RECORD - K_META) for i in range(self._words[H_KEYS])]
        self.keys = [msgspec.msgpack.decode(record, type=tuple[str, Meta]) for record in records]

    @property
    def changes(self) -> int:
        """How many changes have happened: who restarts servers sees from it whether they get on."""
        return self._words[H_CHANGES]

    def note_push(self, key: int = -1, client: int = -1) -> None:
        """The handler is at a push of this client on this key; or at none. For whoever finds this server dead."""
        self._words[H_PUSHER], self._words[H_PUSHED] = client + 1, key + 1

    @property
    def push(self) -> tuple[str, str] | None:
        """The push that the handler is at: client and key."""
        key, client = self._words[H_PUSHED] - 1, self._words[H_PUSHER] - 1
        return None if min(key, client) < 0 else (self.clients[client], self.keys[key][0])

    @property
    def valued(self) -> list[str]:
        """The keys that have a value."""
        return [name for key, (name, meta) in enumerate(self.keys) if meta.dtype and self.version(key)]

    def note_top(self, top: int) -> None:
        """Everything that was ever handed out is below this byte."""
        self._words[H_TOP] = top

    @property
    def top(self) -> int:
        """Where whoever takes over begins to hand out memory."""
        return self._words[H_TOP]

    # ------------------------------------------------------------ names

    def add_client(self, name: str) -> int:
        """The number of a client; a new one if it was never here."""
        if name in self.clients:
            return self.clients.index(name)
        if len(self.clients) == STORE.clients:
            raise ResourceError(
                f"Client {name!r} is one too many: a server remembers at most {STORE.clients} names. Give a worker "
                "that comes back the name it had before."
            )
        self._put_text(_CLIENT0 + len(self.clients) * _CLIENT, _CLIENT, name.encode())
        self.clients.append(name)
        self._words[H_CLIENTS] = len(self.clients)
        return len(self.clients) - 1

    def note_process(self, client: int, pid: int) -> None:
        """The process that a client is, while it is connected; 0 afterwards."""
        self._words[_CLIENT0 + (client + 1) * _CLIENT - 1] = pid

    def process(self, client: int) -> int:
        """The process that a client was when it was last heard of; 0: it said goodbye, or was seen to die."""
        return self._words[_CLIENT0 + (client + 1) * _CLIENT - 1]

    def add_key(self, name: str, meta: Meta) -> int:
        """A new key at version 0, without a buffer; it is there when this returns."""
        if len(self.keys) == STORE.keys:
            raise ResourceError(
                f"Key {name!r} is one too many: a server holds at most {STORE.keys} keys. Keep what belongs together "
                "in one table, and push its rows."
            )
        self._put_text(self._record(len(self.keys)) + K_META, _RECORD - K_META, _encode((name, meta)))
        self.keys.append((name, meta))
        self._words[H_KEYS] = len(self.keys)
        return len(self.keys) - 1

    def put_meta(self, key: int, meta: Meta) -> None:
        """Of a key that never got its first value, because whoever had it was killed."""
        name = self.keys[key][0]
        self._put_text(self._record(key) + K_META, _RECORD - K_META, _encode((name, meta)))
        self.keys[key] = (name, meta)

    # ------------------------------------------------------------ records

    def version(self, key: int) -> int:
        """How many changes a key has behind it; 0: it has no value yet."""
        return self._words[self._record(key) + K_VERSION]

    def current(self, key: int) -> int:
        """Which of its buffers is published."""
        return self._words[self._record(key) + K_CURRENT]

    def buffers(self, key: int) -> list[Extent | None]:
        """Where its buffers lie."""
        at = self._record(key) + K_BUFFERS
        return [self._place(at + 4 * i) for i in range(MAX_BUFFERS)]

    @property
    def used(self) -> int:
        """Bytes that all buffers of all keys take."""
        places = (place for key in range(len(self.keys)) for place in self.buffers(key))
        return sum(room_for(place.size) for place in places if place is not None)

    def put_buffer(self, key: int, buffer: int, place: Extent) -> None:
        """It has one more buffer. The length goes last: it is what makes a place be there."""
        self._put_place(self._record(key) + K_BUFFERS + 4 * buffer, place)

    def dedup(self, key: int, client: int) -> DedupWindow:
        """What is settled of a client's pushes on a key."""
        at = _DEDUP0 + (key * STORE.clients + client) * _DEDUP
        return DedupWindow(self._words[at], self._words[at + 1])

    # ------------------------------------------------------------ the change under way

    def begin(self, change: LedgerChange) -> None:
        """From now on this has happened; `end` carries it out."""
        words, at = self._words, _CHANGE0
        words[at + C_KEY], words[at + C_BUFFER], words[at + C_VERSION] = change.key, change.buffer, change.version
        words[at + C_CLIENT], words[at + C_LAST], words[at + C_FAILED] = change.client, *change.dedup
        words[at + C_MEETING], words[at + C_TURN] = change.barrier, change.turn
        words[at + C_CHANGES] = words[H_CHANGES] + 1
        for place, where in zip(change.rows or (), (C_NUMBERS, C_VALUES), strict=False):
            self._put_place(at + where, place)
        words[at + C_KIND] = 2 if change.rows else 1

    def under_way(self) -> LedgerChange | None:
        """What whoever was here before has begun and not ended."""
        words, at = self._words, _CHANGE0
        if not words[at + C_KIND]:
            return None
        numbers, values = self._place(at + C_NUMBERS), self._place(at + C_VALUES)
        rows = (numbers, values) if words[at + C_KIND] == 2 and numbers and values else None
        return LedgerChange(
            words[at + C_KEY], words[at + C_BUFFER], words[at + C_VERSION], words[at + C_CLIENT],
            DedupWindow(words[at + C_LAST], words[at + C_FAILED]), words[at + C_MEETING], words[at + C_TURN], rows,
        )  # fmt: skip

    def end(self, change: LedgerChange) -> None:
        """Carry out what has begun. Rows, if there are any, must be written by now."""
        words = self._words
        if change.key >= 0 and change.version > 0:
            record = self._record(change.key)
            words[record + K_VERSION], words[record + K_CURRENT] = change.version, change.buffer
        if change.client >= 0:
            at = _DEDUP0 + (change.key * STORE.clients + change.client) * _DEDUP
            words[at], words[at + 1] = change.dedup
        if change.barrier >= 0:
            words[self._record(change.barrier) + K_VERSION] = change.turn
        words[H_CHANGES] = words[_CHANGE0 + C_CHANGES]
        words[_CHANGE0 + C_KIND] = 0

    def close(self) -> None:
        """Look away, so that the memory can be unmapped."""
        self._words.release()
        self._raw.release()

    # ------------------------------------------------------------ words and bytes

    def _record(self, key: int) -> int:
        return _RECORD0 + key * _RECORD

    def _place(self, at: int) -> Extent | None:
        run, length, offset, size = self._words[at : at + 4]
        return Extent(run, length, offset, size) if length else None

    def _put_place(self, at: int, place: Extent) -> None:
        words: Sequence[int] = (place.run, place.offset, place.size, place.length)
        for where, word in zip((0, 2, 3, 1), words, strict=True):
            self._words[at + where] = word

    def _text(self, at: int, words: int) -> memoryview:
        return self._raw[8 * at + 8 : 8 * (at + words)][: self._words[at]]

    def _put_text(self, at: int, words: int, text: bytes) -> None:
        assert len(text) <= 8 * (words - 1), f"{len(text)} bytes do not fit into {words} words"
        self._raw[8 * at + 8 : 8 * at + 8 + len(text)] = text
        self._words[at] = len(text)
