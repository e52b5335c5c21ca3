"""Doorbells: how a worker that waits is woken by a worker that has done its part.

One eventfd per worker, made by the launcher. Ringing is one system call; waiting is one `poll` on the
own bell and on the link to the coordinator, so a death elsewhere (which the coordinator sees as a
closed descriptor and answers with a new generation) ends every wait at once. There is no timeout
that anything depends on.

Ordering: whoever rings has made its stores before the system call, whoever wakes reads after one, so
the data behind a cell is there on every architecture. Spinning (looking without a call) relies on
stores being seen in order, which x86-64 promises; elsewhere `spin_seconds` is zero.
"""

from __future__ import annotations

import os
import platform
import select
import time
from collections.abc import Callable, Sequence

__all__ = ["Doorbells", "spin_seconds"]


def spin_seconds(num_workers: int, cores: int) -> float:
    """How long to look before sleeping: only where every worker has a core to itself."""
    ordered = platform.machine() in ("x86_64", "AMD64")
    return 100e-6 if ordered and num_workers <= cores else 0.0


class Doorbells:
    """The bells of one generation, as one worker uses them.

    Resources: owns the descriptors it was given; `close` (or the next `replace`) closes them.
    """

    def __init__(self, link_fd: int) -> None:
        self._link_fd = link_fd
        self._fds: tuple[int, ...] = ()
        self._mine = -1
        self._others: tuple[int, ...] = ()
        self._poll = select.poll()
        self._poll.register(link_fd, select.POLLIN)
        self.spin = 0.0

    def replace(self, fds: Sequence[int], mine: int) -> None:
        """Use the bells of a new generation; `mine` is the place of this worker among them."""
        self.close()
        self._fds = tuple(fds)
        self._mine = self._fds[mine]
        self._others = tuple(fd for fd in self._fds if fd != self._mine)
        self._poll.register(self._mine, select.POLLIN)
        self.spin = spin_seconds(len(self._fds), os.cpu_count() or 1)

    def ring(self) -> None:
        """Wake everybody else."""
        for fd in self._others:
            os.eventfd_write(fd, 1)

    def fence(self) -> None:
        """Order my stores before my next loads (a system call that takes a lock)."""
        if self._others:
            os.eventfd_write(self._mine, 1)

    def wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Wait until `done()`; False when the link has something to say or `seconds` have passed."""
        if self.spin:
            until = time.perf_counter() + self.spin
            while time.perf_counter() < until:
                if done():
                    return True
                os.sched_yield()  # whoever we wait for may have been put on this very core
        while not done():
            ready = self._poll.poll(seconds * 1000)
            if not ready:
                return False
            for fd, _ in ready:
                if fd == self._link_fd:
                    return done()
                os.eventfd_read(fd)
        return True

    def close(self) -> None:
        """Close the bells."""
        if self._mine >= 0:
            self._poll.unregister(self._mine)
        for fd in self._fds:
            os.close(fd)
        self._fds, self._mine, self._others = (), -1, ()
