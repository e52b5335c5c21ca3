"""A host's memory, for tests of what becomes of it when the mode changes."""

from __future__ import annotations

import mmap
import os

from holdfast.exchange.premises import Premises
from tests.unit.exchange.crewed import Worker

__all__ = ["Ground"]


class Ground:
    """The memory of a host with one worker, in a run that was started in `exact`."""

    def __init__(self, worker: Worker | None = None) -> None:
        self.worker = worker or Worker(0, 0)
        source = self.worker.arena._map
        self.fd = os.memfd_create("test")
        os.ftruncate(self.fd, len(source))
        self.map = mmap.mmap(self.fd, len(source))
        self.map[:] = source[:]
        self.premises = Premises(self.map, self.fd)
