"""Meetings: barriers and broadcasts, round after round. Pure.

A round is over when as many clients as it takes have arrived at it, and it has a value if it is a broadcast. That a
round is over is written down, in memory that outlives the server, before anybody is told; who is on its way is not:
whoever has no answer arrives again at the server that takes over. A client arrives at round n + 1 only after its round
n, so a round's value stays until everybody has it.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Meeting"]


class Meeting:
    """The round after `done` of one meeting.

    >>> meeting = Meeting(done=0)
    >>> meeting.arrive("a", 1), meeting.over(2), meeting.arrive("b", 1), meeting.over(2)
    (True, False, True, True)
    """

    def __init__(self, done: int) -> None:
        self.done = done
        self._here: dict[str, None] = {}  # in order of arrival

    @property
    def here(self) -> Sequence[str]:
        """Who has arrived at the round that is not over."""
        return list(self._here)

    def arrive(self, client: str, turn: int) -> bool:
        """Does this client have to wait? Not if its round is over; twice is once."""
        if turn <= self.done:
            return False
        self._here[client] = None
        return True

    def over(self, parties: int) -> bool:
        """Has everybody arrived?"""
        return len(self._here) >= parties

    def lose(self, client: str) -> None:
        """It is gone, and will arrive again if it comes back."""
        self._here.pop(client, None)

    def close(self) -> int:
        """The round is over; its number."""
        self.done += 1
        self._here.clear()
        return self.done
