"""Rounds: barriers and broadcasts, one after the other. Pure.

A round is over when as many clients as it takes have arrived at it, and it has a value if it is a broadcast. That a
round is over is written down, in memory that outlives the server, before anybody is told; who is on its way is not:
whoever has no answer arrives again at the server that takes over. A client arrives at round n + 1 only after its round
n, so a round's value stays until everybody has it.

How many it takes is said by those who meet, or it takes the *crew* of a run, whoever that is at the moment: then a
round is over as soon as everybody is there who is still in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

__all__ = ["Clients", "Rounds", "client_of"]


def client_of(row: int) -> str:
    """The name of a worker or server in the store of its run: by its row, which whoever takes its place may have."""
    return f"worker-{row}"


class Clients(msgspec.Struct, frozen=True):
    """The clients that belong together because their processes are the crew of a run."""

    awaited: tuple[str, ...] = ()  #: they come to every meeting
    newcomers: tuple[str, ...] = ()  #: they will, once they are in; what was met for before is not for them
    complete: bool = False  #: all that are to be there at the beginning are known


class Rounds:
    """The round after `done` of one meeting.

    >>> meeting = BarrierRounds(done=0)
    >>> meeting.arrive("a", 1), meeting.over(2), meeting.arrive("b", 1), meeting.over(2)
    (True, False, True, True)
    >>> meeting.over(0, Clients(("a", "b", "c"), complete=True)), meeting.over(0, Clients(("b",), complete=True))
    (False, True)
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

    def over(self, parties: int, crew: Clients | None = None) -> bool:
        """Has everybody arrived? Without a number of parties it takes the crew."""
        if parties or crew is None:
            return len(self._here) >= parties
        return crew.complete and all(client in self._here for client in crew.awaited)

    def skips(self, client: str, crew: Clients) -> bool:
        """Has the crew met here before this client came to it, so that it need not wait for them?"""
        return self.done > 0 and client in crew.newcomers

    def lose(self, client: str) -> None:
        """It is gone, and will arrive again if it comes back."""
        self._here.pop(client, None)

    def close(self) -> int:
        """The round is over; its number."""
        self.done += 1
        self._here.clear()
        return self.done
