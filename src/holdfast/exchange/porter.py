"""A porter: carries what one other host needs out of this host's arena, as soon as it is there.

One thread for every other host. It sleeps on a bell that the workers of this host ring beside their own; then it looks
at the board, asks `core.cargo` what is due, and sends all of it in one go: headers from here, bodies straight from the
arena.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.core.cargo import Facts, Piece, Route, Sent, View, due
from holdfast.exchange.hold import Hold
from holdfast.exchange.packing import Packer
from holdfast.transport.stream import Stream

__all__ = ["Porter"]


@dataclass(slots=True)
class Porter:
    """What goes to one other host in one generation."""

    hold: Hold
    stream: Stream
    route: Route
    packer: Packer
    bell: int  #: an eventfd that blocks
    closing: Callable[[], bool]
    step: int  #: at which the route begins

    def run(self) -> None:
        """Carry until the generation ends. Raises OSError when the other host is gone."""
        sent = Sent(self.step)
        while not self.closing():
            buffers = self.packer.changes()
            where = self.packer.where()  # before the view: who is shown as arrived has nothing left to correct in it
            view = self._view(sent.step)
            cargo = due(self.route, view, sent)
            for one in cargo:
                if not isinstance(one, Facts) and not (isinstance(one, Piece) and one.again):
                    buffers += where
                    where = []
                buffers += self.packer.cargo(one)
                sent.note(one)
            buffers += where
            if buffers:
                self.stream.send(*buffers)
            if view.version > sent.step:
                sent = Sent(sent.step + 1)  # all that was left of the last step is on its way
            elif not cargo:
                os.eventfd_read(self.bell)

    def _view(self, step: int) -> View:
        board = self.hold.board
        # The version first: what is read after it is at least as new.
        version = min(board.versions())
        return View(
            version, board.known(step), board.nodes(step), board.work(step), board.gathered(), board.summed(),
            board.early(self.packer.rows, step),
        )
