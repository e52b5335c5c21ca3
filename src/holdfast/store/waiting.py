"""How to wait for the other side: look for a moment, then sleep.

To be woken takes longer than most answers do, so where every process has a core to itself (`look_seconds`) whoever
waits first looks. Between two looks it offers its core to others, since whom it waits for may have been put on that
very core. When somebody takes the offer for long, the cores are not ours alone after all, and for a while we just
sleep. No torch here.
"""

from __future__ import annotations

import os
import select
import time

from holdfast.config.limits import STORE

__all__ = ["Waiting", "look_seconds"]


_SLEEPS = 64  #: so many times we do not look then


def look_seconds(processes: int, cores: int) -> float:
    """How long to look before sleeping: only where every process has a core to itself."""
    return STORE.spin if processes <= cores else 0.0


class Waiting:
    """Waits for descriptors; `spin` is for how many seconds it looks."""

    def __init__(self, spin: float = 0.0) -> None:
        self.spin = spin
        self._sleeps = 0

    def wait(self, poll: select.poll, seconds: float | None) -> list[tuple[int, int]]:
        """What has happened at the registered descriptors, within `seconds` (None: whenever it does)."""
        if self._sleeps:
            self._sleeps -= 1
        elif self.spin and seconds != 0.0:
            now = time.perf_counter()
            until = now + self.spin
            while now < until:
                if found := poll.poll(0):
                    return found
                os.sched_yield()
                before, now = now, time.perf_counter()
                if now - before > STORE.core_taken:
                    self._sleeps = _SLEEPS
                    break
        return poll.poll(None if seconds is None else seconds * 1000)
