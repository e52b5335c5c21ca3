"""Replicas: whole copies of the state on other hosts than its home, so that the loss of the home loses no step.

    home: version v is made  ──►  all of it is sent to every replica  ──►  each says that it holds v
                                                                     ──►  v counts: clocks show it, v + 1 may be made

Only where lanes need not keep step: in exact training every host holds the state anyway. A replica's copy (*shadow*)
lies beside the arena of its host, whose workers compute with the mirror like those of any other (see `tender`). A
version that the home has made and a replica does not hold yet was shown to nobody, so going on from the replica takes
nothing back. A shadow is replaced as a whole, when the last byte of the next version is there. No torch here.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from holdfast.errors import FrameError
from holdfast.exchange.fetching import receive_state, send_section, send_words
from holdfast.exchange.hold import Hold
from holdfast.exchange.tender import Tender
from holdfast.transport.frames import HEADER, Kind, pack, unpack
from holdfast.transport.stream import Stream

__all__ = ["Shadow", "replicate"]

_POLL = 0.0005  # seconds between two looks whether a version is complete
_numbers = msgspec.msgpack.Decoder(int)


class Shadow:
    """One host's replica."""

    def __init__(self) -> None:
        self.version = -1  #: that it holds; -1: none
        self._sections: dict[str, bytearray] = {}
        self._spare: dict[str, bytearray] = {}
        self._clocks = b""

    def receive(self, hold: Hold, stream: Stream, generation: int, closing: Callable[[], bool]) -> None:
        """Hold one version after the other, and say so, until the generation ends.

        Raises OSError, EOFError or FrameError.
        """
        sizes = {name: hold.chart.sections[name][1] for name in hold.chart.whole()}
        while not closing():
            for name, size in sizes.items():
                if len(self._spare.get(name, b"")) != size:
                    self._spare[name] = bytearray(size)
            places = {name: memoryview(place) for name, place in self._spare.items()}
            clocks, _ = receive_state(stream, generation, places)
            version = Tender.version_of(clocks)
            self._sections, self._spare = self._spare, self._sections
            self._clocks, self.version = clocks, version
            stream.send(pack(Kind.HELD, generation, msgspec.msgpack.encode(version)))

    def install(self, hold: Hold) -> None:
        """Make the arena of this host, a mirror until now, the home of the state. Nobody acts meanwhile."""
        for name, data in self._sections.items():
            if name in hold.chart.sections and hold.chart.sections[name][1] == len(data):
                hold.section(name)[:] = data
        Tender(hold).inherit(self._clocks)


def replicate(
    hold: Hold, stream: Stream, generation: int, closing: Callable[[], bool], held: Callable[[int], None]
) -> None:
    """At home: send each version to a replica once it is complete; `held` is told when it is there.

    Raises OSError, EOFError or FrameError when the other host is gone, or says something else.
    """
    tender, last = Tender(hold), -1
    head = bytearray(HEADER)
    while not closing():
        versions = hold.board.versions()
        version = min(versions)
        # Nobody decides what leads on from a version before all replicas hold it: until then it stands still.
        if version == last or max(versions) > version or tender.pushes.decided(version):
            time.sleep(_POLL)
            continue
        for name in hold.chart.whole():
            send_section(hold, stream.send, generation, closing, name)
        if closing():
            return
        send_words(stream.send, generation, tender.cut(version))
        stream.recv_into(memoryview(head))
        header = unpack(head, generation=generation)
        meta = bytearray(header.meta)
        stream.recv_into(memoryview(meta))
        try:
            said = _numbers.decode(meta)
        except msgspec.MsgspecError as error:
            raise FrameError(f"its meta is not what a HELD has: {error}") from None
        if header.kind is not Kind.HELD or header.body or said != version:
            raise FrameError(f"a {header.kind.name} about version {said}, where a HELD about {version} is due")
        last = version
        held(version)
