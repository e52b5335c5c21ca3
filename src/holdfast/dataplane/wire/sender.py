"""The sender: carries what other hosts need out of this host's arena, as soon as it is there.

One thread. It sleeps on a bell that the workers of this host ring beside their own; then it looks at the board, asks
`core.transfers` what is due to whom, and sends it: headers from here, bodies straight from the arena.

The others take turns, a run of slices each, beginning with the next host after this one. All hosts do so, hence each
of them receives from about one other at any time. With everybody sending to everybody at once, several streams meet at
one host while another one idles, and more and smaller packets cost more CPU.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from holdfast.core.transfers import Facts, HostProgress, Sent, SumPiece, TransferRoute, due
from holdfast.dataplane.memory.arena_view import ArenaView
from holdfast.dataplane.wire.packing import Buffers, Packer
from holdfast.transport.stream import Stream

__all__ = ["PeerQueue", "PeerRoute", "Sender", "SenderView"]


class PeerQueue(Protocol):
    """What goes to one other host in one generation."""

    host: int
    view: ArenaView
    packer: Packer

    def carry(self, sight: SenderView) -> bool:
        """Send the next load, if one is due. False: nothing more is, before somebody rings.

        Raises OSError when the other host is gone.
        """


class SenderView:
    """What the board shows in one round of turns: read once, for all legs that ask."""

    def __init__(self, view: ArenaView, rows: Sequence[int]) -> None:
        self._board, self._numbers = view.board, rows
        # Before any look: who is shown as arrived has nothing left to correct in it.
        self.rows = tuple(map(view.row, rows))
        self._views: dict[int, HostProgress] = {}

    def progress(self, step: int) -> HostProgress:
        """Of this step."""
        if step not in self._views:
            board = self._board
            # The version first: what is read after it is at least as new.
            version = min(board.versions())
            self._views[step] = HostProgress(
                version, board.known(step), board.nodes(step), board.work(step), board.gathered(), board.summed(),
                board.early(self._numbers, step),
            )
        return self._views[step]


@dataclass(slots=True)
class PeerRoute:
    """To one other host, where all keep step."""

    host: int
    view: ArenaView
    stream: Stream
    route: TransferRoute
    packer: Packer
    longest: Callable[[float], int]  #: bytes of slices in one frame, where the network carries so many in a second
    step: int  #: at which the route begins
    _sent: Sent = field(init=False)
    _loads: deque[Buffers] = field(default_factory=deque)  #: what is due, in order; each is sent in one go
    _new: bool = True  #: nobody has looked yet what of this step is due

    def __post_init__(self) -> None:
        self._sent = Sent(self.step)

    def carry(self, sight: SenderView) -> bool:
        """Send the next load, if one is due. False: nothing more is, before somebody rings.

        Whatever makes something due rings, so what was found at one look is all there is until then.
        """
        if not self._loads:
            self._look(sight)
        if self._loads:
            self.stream.send(*self._loads.popleft())
        return self._new or bool(self._loads)

    def _look(self, sight: SenderView) -> None:
        """Find out what is due."""
        if self._new:
            self.route = replace(self.route, most=self.longest(self.stream.rate()))
        sent, self._new = self._sent, False
        buffers = self.packer.changes()
        where = self.packer.where(sight.rows)
        progress = sight.progress(sent.step)
        transfer = due(self.route, progress, sent)
        for one in transfer:
            if not isinstance(one, Facts) and not (isinstance(one, SumPiece) and one.again):
                buffers += where
                where = []
            buffers += self.packer.transfer(one)
            sent.note(one)
            if not isinstance(one, Facts):
                self._loads.append(buffers)
                buffers = []
        buffers += where
        if buffers:
            self._loads.append(buffers)
        if progress.version > sent.step:
            self._sent, self._new = Sent(sent.step + 1), True  # all that was left of the last step is on its way


class Sender:
    """This host's sender, for one generation.

    `broke` is told of a host to which nothing goes any more, and why.

    Resources: owns `bell`, an eventfd; `close` closes it, after `run` has returned.
    """

    def __init__(self, me: int, closing: Callable[[], bool], broke: Callable[[int, Exception], None]) -> None:
        self.bell = os.eventfd(0, os.EFD_CLOEXEC)
        self._me, self._closing, self._broke = me, closing, broke
        self._legs: list[PeerQueue] = []
        self._lock = threading.Lock()

    def add(self, leg: PeerQueue) -> None:
        """From now on, carry to this host too."""
        with self._lock:
            legs = [*self._legs, leg]
            self._legs = sorted(legs, key=lambda one: (one.host < self._me, one.host))  # those after me come first
        self.ring()

    def ring(self) -> None:
        """Look again."""
        os.eventfd_write(self.bell, 1)

    def run(self) -> None:
        """Carry until the generation ends."""
        while not self._closing():
            busy = False
            legs = self._legs
            sight = SenderView(legs[0].view, legs[0].packer.rows) if legs else None
            for leg in legs:
                assert sight is not None
                try:
                    busy = leg.carry(sight) or busy
                except Exception as error:  # whatever it is: a sender that is gone is one that all wait for
                    with self._lock:
                        self._legs = [one for one in self._legs if one is not leg]
                    self._broke(leg.host, error)
            if not busy:
                os.eventfd_read(self.bell)

    def close(self) -> None:
        """Let go of the bell."""
        os.close(self.bell)
