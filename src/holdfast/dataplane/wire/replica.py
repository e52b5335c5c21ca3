"""Replicas: whole copies of the state on other hosts than its primary, so that the loss of the primary loses no step.

    primary: version v is made  ──►  first replica  ──►  second  ──►  ...  ──►  last
          v counts           ◄──  held  ◄─────────────  held  ◄──────────────┘

The replicas stand in a chain (`core.roles.chain_link`). Each passes on what comes in while more of it comes, so the
primary sends one copy however many there are. Each says that it holds a version when all after it do, so one word at
the primary means: everybody does. Then v counts: clocks show it, and v + 1 may be made.

Only in relaxed modes: in exact training every host holds the state anyway. A replica's copy
lies beside the arena of its host, whose workers compute with the mirror like those of any other (see `primary_sync`). A
version that the primary has made and a replica does not hold yet was shown to nobody, so going on from the replica
takes nothing back. A replica is replaced as a whole, when the last byte of the next version is there.

A generation begins with a version that was shown, so nobody waits for replicas then: whoever is new in the chain gets
that version while lanes compute. When the next one is decided before all of it has gone, the copy is given up, and the
new replica begins with the next version, which comes as it would without it. Who held it before is not sent it again.

When the mode changes, everybody stands at a version that all replicas hold. Each makes of its copy what the primary
makes of the state (`take_up`), so it still holds what the primary begins with. In exact they make it the state of their
hosts. From exact, where each host has a state, replicas begin with that. No torch here.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

import msgspec

from holdfast.config.limits import TRANSFER
from holdfast.core.sync.mirroring import copied
from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.memory.sections import Life, of_life, passing
from holdfast.dataplane.relaxed.inner_state import SINCE, InnerState
from holdfast.dataplane.wire.primary_sync import PrimarySync, first_cut, inherit, recut
from holdfast.dataplane.wire.state_transfer import receive_state, send_section, send_words
from holdfast.errors import FrameError
from holdfast.transport.frames import Kind, pack
from holdfast.transport.stream import Stream, next_frame

__all__ = ["Replica", "ReplicaChain", "replicate"]

_GIVEN_UP = b""  # in the place of the clocks of a version: there is a newer one, and the rest of this one does not come
_numbers = msgspec.msgpack.Decoder(int)


class _WholeState(NamedTuple):
    """All of a version is here, and is on its way to the next replica."""

    version: int
    confirm: Callable[[], None]  #: says so to the replica before this one, or to the primary


class ReplicaChain:
    """From a replica to the next one of the chain: what came in at the one end goes out at the other.

    Nothing is copied: what waits here are views of the replica. It is not written to before its version is confirmed,
    because whoever makes the next version waits for that; where a version is given up, the next one goes elsewhere.
    """

    def __init__(self) -> None:
        self._waiting: SimpleQueue[tuple[bytes | memoryview, ...] | _WholeState | None] = SimpleQueue()

    def put(self, *buffers: bytes | memoryview) -> None:
        """A frame is here."""
        self._waiting.put(buffers)

    def whole(self, version: int, confirm: Callable[[], None]) -> None:
        """All frames of a version are here, and it is held: confirm it when the next replica has."""
        self._waiting.put(_WholeState(version, confirm))

    def end(self) -> None:
        """Let whoever runs it go."""
        self._waiting.put(None)

    def run(self, stream: Stream, generation: int) -> None:
        """Pass on to the next replica until the end. Raises OSError, EOFError or FrameError when that is gone."""
        while (next_ := self._waiting.get()) is not None:
            if isinstance(next_, _WholeState):
                _await_held(stream, generation, next_.version)
                with contextlib.suppress(OSError):  # whoever receives from there finds out, and says so
                    next_.confirm()
            else:
                stream.send(*next_)


class Replica:
    """One host's replica."""

    def __init__(self) -> None:
        self.version = -1  #: that it holds; -1: none
        self.generation = 0  #: in which it came
        self._sections: dict[str, bytearray] = {}
        self._spare: dict[str, bytearray] = {}
        self._clocks = b""

    def receive(
        self,
        view: ArenaView,
        stream: Stream,
        generation: int,
        closing: Callable[[], bool],
        onward: ReplicaChain | None = None,
    ) -> None:
        """Hold one version after the other, and say so, until the generation ends. With `onward`, pass them on.

        Raises OSError, EOFError or FrameError.
        """
        sizes = {name: view.manifest.sections[name][1] for name in view.manifest.whole()}
        while not closing():
            self._spare = {name: _sized(self._spare.get(name), size) for name, size in sizes.items()}
            places = {name: memoryview(place) for name, place in self._spare.items()}
            clocks, _ = receive_state(stream, generation, places, onward=onward.put if onward is not None else None)
            if clocks == _GIVEN_UP:
                self._spare = {}  # what came of it may still wait to be passed on
                continue
            version = PrimarySync.version_of(clocks)
            self._sections, self._spare = self._spare, self._sections
            self._clocks, self.version, self.generation = clocks, version, generation
            confirm = partial(stream.send, pack(Kind.HELD, generation, msgspec.msgpack.encode(version)))
            if onward is None:
                confirm()
            else:
                onward.whole(version, confirm)

    def keep(self, view: ArenaView, generation: int, version: int, step: int) -> None:
        """Begin with what lies in the arena, of this generation, if that is what the mode began with.

        Soon the arena is a mirror, and what the primary has made may be lost with it before it is here.
        """
        if set(view.board.versions()) == {version} and view.board.level() == version and not view.board.torn():
            self._sections = {name: bytearray(view.section(name)) for name in view.manifest.whole()}
            self._clocks, self.version, self.generation = first_cut(view, version, step), version, generation

    def take_up(self, view: ArenaView) -> None:
        """Be a copy in the mode that counts in this memory, also if it is of the one before, and of where that ended.

        What becomes of it is what `host_memory` makes of the state itself, with the same bits: after local steps the
        owners go on with the mean of all lanes; before them lanes begin with what the owners have, and the outer
        optimizer with nothing. Rounds of another length go on with all of it.
        """
        manifest, copy, pace = view.manifest, self._sections, view.board.pace()
        rounds = SINCE in copy
        if pace is None or pace.version != self.version:
            assert rounds == manifest.rounds, f"a copy of version {self.version} is of another mode than {pace}"
            return
        inner = partial(InnerState, lambda name: memoryview(copy[name]), manifest.owners())
        if rounds and not manifest.rounds:
            inner().end(self.version, manifest.lanes, manifest.kinds, manifest.pieces)
            self._sections = {name: data for name, data in copy.items() if not passing(name)}
        elif manifest.rounds and not rounds:
            begin = [SINCE, *of_life(manifest.sections, Life.OUTER)]
            copy.update({name: bytearray(manifest.sections[name][1]) for name in begin})
            inner().begin(self.version)
        self._clocks = recut(self._clocks, pace.step)  # those of the mode before may count steps, or rounds

    def install(self, view: ArenaView) -> None:
        """Make the arena of this host, a mirror until now, one that holds the state. Nobody acts meanwhile."""
        self.take_up(view)
        for name, data in self._sections.items():
            view.section(name)[:] = data
        inherit(view, self._clocks)


def _sized(place: bytearray | None, size: int) -> bytearray:
    return place if place is not None and len(place) == size else bytearray(size)


def replicate(
    view: ArenaView, stream: Stream, generation: int, closing: Callable[[], bool], held: Callable[[int], None],
    last: int = -1,
) -> None:  # fmt: skip
    """At primary: send each version to the first replica once it is complete; `held` is told when all have it.

    `last` is the version that they have. Raises OSError, EOFError or FrameError when the other host is gone, or says
    something else.
    """
    primary_sync = PrimarySync(view)
    while not closing():
        versions = view.board.versions()
        version = copied(versions, last, decided=primary_sync.pushes.decided(min(versions)))
        if version is None:
            time.sleep(TRANSFER.replica_poll)
            continue
        overtaken = partial(primary_sync.pushes.decided, version) if primary_sync.pushes.free(version) else _never
        for name in view.manifest.whole():
            send_section(view, stream.send, generation, _either(closing, overtaken), name)
        if closing():
            return
        if overtaken():
            send_words(stream.send, generation, _GIVEN_UP)
            continue
        send_words(stream.send, generation, primary_sync.cut(version))
        _await_held(stream, generation, version)
        last = version
        held(version)


def _never() -> bool:
    return False


def _either(one: Callable[[], bool], other: Callable[[], bool]) -> Callable[[], bool]:
    return lambda: one() or other()


def _await_held(stream: Stream, generation: int, version: int) -> None:
    """Wait until the next replica, and all after it, hold a version. Raises OSError, EOFError or FrameError."""
    header, meta = next_frame(stream, generation=generation)
    try:
        said = _numbers.decode(meta)
    except msgspec.MsgspecError as error:
        raise FrameError(f"its meta is not what a HELD has: {error}") from None
    if header.kind is not Kind.HELD or header.body or said != version:
        raise FrameError(f"a {header.kind.name} about version {said}, where a HELD about {version} is due")
