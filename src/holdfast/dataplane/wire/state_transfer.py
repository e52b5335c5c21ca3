"""Fetching: a host without the newest state gets all of it from one that has it, verified by hash.

It happens inside a generation in which both are members. The source serves when it stands at one version; nobody sums
the next step before the fetching host has arrived at it, so the source's state stands still meanwhile, and its workers
already compute. Where the fetching host holds an older state, that stays whole until the new one is here and verified:
should the source be lost meanwhile, the run goes on from the older one.
"""

from __future__ import annotations

import hashlib
import mmap
import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import msgspec

from holdfast.config.limits import TRANSFER
from holdfast.dataplane.memory import board as cells
from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.memory.snapshot import SnapshotRoom, copy_script, of_script, put_sections
from holdfast.dataplane.relaxed.inner_state import SINCE, InnerState
from holdfast.dataplane.relaxed.pushes import ToldClocks
from holdfast.dataplane.wire.primary_sync import PrimarySync
from holdfast.errors import FrameError
from holdfast.transport.frames import Kind, pack
from holdfast.transport.stream import Stream, next_frame

__all__ = [
    "Fetched", "fetch", "receive_state", "send_section", "send_state", "send_words", "serve", "serve_mirror",
]  # fmt: skip

_CLOCKS = "clocks"  # in the place of a section's name: how far all lanes are
_CHUNK = 512 << 10  # small enough that what is empty is seldom sent
_EMPTY = bytes(_CHUNK)

_Chunk = tuple[str, int, int, bytes]  # section (empty: the board, and the end), offset, length, hash (empty: zeros)
_decoder = msgspec.msgpack.Decoder(_Chunk)
_encode = msgspec.msgpack.Encoder().encode


class Fetched(NamedTuple):
    """What a fetch brought."""

    version: int
    size: int
    seconds: float
    clocks: ToldClocks | None = None  #: where a mirror was made: how far lanes were

    def told(self) -> str:
        """How much it was, and how long it took."""
        return f"{self.size / 2**20:.1f} MiB in {self.seconds:.2f} s, verified"


def serve(view: ArenaView, stream: Stream, generation: int, closing: Callable[[], bool], version: int) -> None:
    """Send the state, once this host stands at the version that it could reach when the generation began.

    Before that it may stand at one version as well, but is about to leave it. Raises OSError when the other is gone.
    """
    while view.board.words[cells.H_MAGIC] != cells.MAGIC or set(view.board.versions()) != {version}:
        if closing():
            return
        time.sleep(TRANSFER.state_poll)
    send_state(view, stream.send, generation, closing)


def send_state(view: ArenaView, send: Callable[..., None], generation: int, closing: Callable[[], bool]) -> None:
    """Send the state as it lies here; whoever calls sees to it that it stands at one version.

    Scripts go on meanwhile. Where they stand and what they have left are sent as both were at one moment: with older
    settings, a worker that begins there would lack a call of its scheduler.
    """
    for name in view.manifest.state():
        if not of_script(name):
            send_section(view, send, generation, closing, name)
    words, sections = copy_script(view, SnapshotRoom())
    for name, section in sections.items():
        _send_bytes(send, generation, closing, name, section)
    _send(send, generation, "", 0, words)


def serve_mirror(
    view: ArenaView, stream: Stream, generation: int, closing: Callable[[], bool], lanes: Collection[int]
) -> list[int]:
    """Send what a host needs to compute these lanes, while the owners here go on: each slice whole, at its version.

    Returns these versions; fewer than all where the generation ended meanwhile. Raises OSError when the other is gone.
    """
    primary_sync = PrimarySync(view)
    inner = _inner(view, lanes)
    # With local steps, a round that was pushed whole is applied first: then it is settled with what the next begins.
    while inner and primary_sync.pushes.decided(min(view.board.versions())) and not closing():
        time.sleep(TRANSFER.state_poll)
    inner += _first(view) if inner else []
    for name in [name for name in view.manifest.state() if not name.startswith("parameters/")] + inner:
        send_section(view, stream.send, generation, closing, name)
    words = memoryview(bytearray(view.board.state_words())).cast("q")
    published = primary_sync.published()
    sent: list[int] = []
    for slice_, (space, begin, _) in enumerate(view.manifest.slices):
        while (copy := primary_sync.copied(slice_)) is None:
            if closing():
                return sent
            time.sleep(TRANSFER.state_poll)
        version, data = copy
        sent.append(version)
        words[len(words) - len(view.manifest.slices) + slice_] = version
        for at in range(0, len(data), _CHUNK):
            _send(stream.send, generation, f"parameters/{space}", begin + at, data[at : at + _CHUNK])
    told = len(published.clocks).to_bytes(8, "little") + published.clocks + published.buffers
    for at in range(0, len(told), _CHUNK):
        _send(stream.send, generation, _CLOCKS, at, told[at : at + _CHUNK])
    _send(stream.send, generation, "", 0, bytes(words))
    return sent


def fetch(view: ArenaView, stream: Stream, generation: int, lanes: Collection[int] = ()) -> Fetched:
    """Fill the arena from what `serve` sends. Settings of this host's own workers are kept where they are newer.

    `lanes` are those that this host is to compute.
    """
    began = time.monotonic()
    names = view.manifest.state() + _inner(view, lanes) + (list(view.manifest.owners()) if view.manifest.rounds else [])
    apart = set(names) if view.board.words[cells.H_MAGIC] == cells.MAGIC else {"settings"}
    places = {name: _apart(view, name) if name in apart else view.section(name) for name in names}
    told, came = bytearray(), set[str]()
    words, size = receive_state(stream, generation, places, told, came=came)
    put_sections(view, {name: places[name] for name in apart & came | {"settings"}})
    clocks = _mirror(view, memoryview(told)) if view.manifest.relaxed else None
    version = view.board.land_state(memoryview(words), mirror=clocks is not None)
    view.begin(frozenset(lanes))
    view.board.put_current(generation)  # the last: workers write from now on
    return Fetched(version, size, time.monotonic() - began, clocks)


def receive_state(
    stream: Stream, generation: int, places: Mapping[str, memoryview], told: bytearray | None = None,
    onward: Callable[..., None] | None = None, came: set[str] | None = None,
) -> tuple[bytes, int]:  # fmt: skip
    """Receive sections into their places, clocks into `told`, and what ends them: (that, bytes in all).

    Each frame is passed `onward` as soon as it is here and verified. `came` gets the names of sections.
    """
    size = 0
    while True:
        header, meta = next_frame(stream, generation=generation)
        if header.kind is not Kind.STATE:
            raise FrameError(f"a {header.kind.name} among the state")
        try:
            name, at, length, digest = _decoder.decode(meta)
        except msgspec.MsgspecError as error:
            raise FrameError(f"its meta is not what a STATE has: {error}") from None
        size += header.body
        if name == "" or (name == _CLOCKS and told is not None and at == len(told)):
            words = bytearray(header.body)
            stream.recv_into(memoryview(words))
            _verify(name, at, memoryview(words), digest)
            if onward is not None:
                onward(pack(header.kind, generation, bytes(meta), header.body), words)
            if name == "":
                return bytes(words), size
            assert told is not None
            told += words
            continue
        if name not in places:
            raise FrameError(f"it brings the section {name!r}, which is no state")
        place = places[name]
        if came is not None:
            came.add(name)
        if not 0 <= at < at + length <= place.nbytes or length > _CHUNK or header.body not in (0, length):
            raise FrameError(f"it brings bytes {at} to {at + length} of {name!r}, which has {place.nbytes}")
        if header.body:
            stream.recv_into(place[at : at + length])
            _verify(name, at, place[at : at + length], digest)
        else:
            place[at : at + length] = _EMPTY[:length]
        if onward is not None:
            onward(pack(header.kind, generation, bytes(meta), header.body), place[at : at + header.body])


def send_words(send: Callable[..., None], generation: int, words: bytes) -> None:
    """Send what ends a state."""
    _send(send, generation, "", 0, words)


def send_section(
    view: ArenaView, send: Callable[..., None], generation: int, closing: Callable[[], bool], name: str
) -> None:
    """Send a section as it lies here."""
    _send_bytes(send, generation, closing, name, view.section(name))


def _send_bytes(
    send: Callable[..., None], generation: int, closing: Callable[[], bool], name: str, section: memoryview
) -> None:
    for at in range(0, section.nbytes, _CHUNK):
        if closing():
            return
        # A copy: settings and tables may change under us, and what is hashed must be what is sent. Whatever
        # changes is also carried by this host's sender, and landed after the fetch.
        _send(send, generation, name, at, bytes(section[at : at + _CHUNK]))


def _inner(view: ArenaView, lanes: Collection[int]) -> list[str]:
    """With local steps: what the next rounds of these lanes begin with, in either turn."""
    if not view.manifest.rounds or not lanes:
        return []
    return [SINCE, *(f"inner/{lane}/{turn}" for lane in sorted(lanes) for turn in (0, 1))]


def _first(view: ArenaView) -> list[str]:
    """What the very first round begins with, if it is not over: see `inner_state`."""
    owners = view.manifest.owners()
    return list(owners) if min(view.board.versions()) == InnerState(view.section, owners).since else []


def _mirror(view: ArenaView, data: memoryview) -> ToldClocks:
    """Begin to mirror another host: all clocks are its own, also those of lanes that this host had further on."""
    size = int.from_bytes(data[:8], "little")
    primary_sync = PrimarySync(view)
    primary_sync.pushes.forget()
    try:
        return primary_sync.mirror(data[8 : 8 + size], data[8 + size :], ())
    except msgspec.MsgspecError as error:
        raise FrameError(f"its clocks are none: {error}") from None


def _send(send: Callable[..., None], generation: int, name: str, at: int, chunk: bytes) -> None:
    """Send a chunk; of one without content only that it is."""
    if name and chunk == _EMPTY[: len(chunk)]:
        send(pack(Kind.STATE, generation, _encode([name, at, len(chunk), b""])))
        return
    meta = _encode([name, at, len(chunk), hashlib.sha256(chunk).digest()])
    send(pack(Kind.STATE, generation, meta, len(chunk)), chunk)


def _verify(name: str, at: int, data: memoryview, digest: bytes) -> None:
    if hashlib.sha256(data).digest() != digest:
        raise FrameError(f"the hash of {name or 'the board'!r} from byte {at} on is wrong")


def _apart(view: ArenaView, name: str) -> memoryview:
    return memoryview(mmap.mmap(-1, max(1, view.manifest.sections[name][1])))[: view.manifest.sections[name][1]]
