"""Doorbells: how a worker that waits is woken by a worker that has done its part.

One eventfd per worker, made by the launcher. Ringing is one system call; waiting is one `poll` on the
own bell and on the link to the coordinator, so a death elsewhere (which the coordinator sees as a
closed descriptor and answers with a new generation) ends every wait at once. A wait also looks again
after its `seconds`, but for what matters somebody rings.

Ordering: the data behind a cell (a gradient, a slice) is written before the cell, and read after it. That
stores are seen in the order they were made is a promise of x86-64; a crew of several workers is therefore
refused on other machines (`ordered_stores`), where each of these places would need a barrier.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Sequence

__all__ = ["Doorbells", "ordered_stores", "spin_seconds"]


def ordered_stores(machine: str) -> bool:
    """Does this kind of machine (`platform.machine()`) show the stores of one core to others in their order?"""
    return machine in ("x86_64", "AMD64")


def spin_seconds(num_workers: int, cores: int) -> float:
    """How long to look before sleeping: only where every worker has a core to itself."""
    return 100e-6 if num_workers <= cores else 0.0


class Doorbells:
    """The bells of a generation's members, as one worker uses them. A worker keeps its bell for life.

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

    def replace(self, fds: Sequence[int], mine: int, workers: int | None = None) -> None:
        """Use the bells of a new generation; `mine` is the place of this worker among them.

        The first `workers` of them (by default all) are workers' bells; who has the others moves bytes, and sleeps.
        """
        self.close()
        self._fds = tuple(fds)
        self._mine = self._fds[mine]
        self._others = tuple(fd for fd in self._fds if fd != self._mine)
        self._poll.register(self._mine, select.POLLIN)
        # Who waits for other hosts waits for the network: looking would only take the core from those who carry.
        alone = workers is None or workers == len(self._fds)
        self.spin = spin_seconds(len(self._fds), os.cpu_count() or 1) if alone else 0.0

    def ring(self) -> None:
        """Wake everybody else."""
        for fd in self._others:
            os.eventfd_write(fd, 1)

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
