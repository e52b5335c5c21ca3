"""A client's rounds: it comes to barriers and broadcasts, and knows which round of each is its next one.

For one thread. What happens at the server is in `rounds` and `barriers`.
"""

from __future__ import annotations

import time

from torch import Tensor

from holdfast.errors import UsageError
from holdfast.store.address import GroupAddress
from holdfast.store.client.handle import Handle
from holdfast.store.client.keyed_requests import KeyedRequests
from holdfast.store.client.pending import Pending
from holdfast.store.messages import Done, JoinRound
from holdfast.store.owners import checked_name, owner
from holdfast.store.tensors import checked_tensor

__all__ = ["BarrierRounds"]


class BarrierRounds:
    """All meetings of one client."""

    def __init__(self, client: str, where: GroupAddress, keyed_requests: KeyedRequests) -> None:
        self._client, self._where, self._keyed_requests = client, where, keyed_requests
        self._met: dict[tuple[int, str], Pending] = {}  # the last round of each meeting that we came to

    def barrier(self, name: str, clients: int | None, deadline: float) -> Handle[None]:
        """Until all are at the barrier of this name."""
        if name != "":
            checked_name(name, "barrier")
        meeting = f"\0barrier {name}"
        server = owner(meeting, self._where.servers)
        turn, parties = self._come(server, meeting, clients, deadline)
        request = JoinRound(self._keyed_requests.wires[server].next_id(), meeting, turn, parties)
        pending = self._keyed_requests.post(server, request, f"{_all(parties)} at barrier {name!r}", deadline)
        self._await(server, meeting, pending)
        return Handle([pending], lambda: None, deadline)

    def check(self, key: str, value: Tensor | None, root: str) -> Tensor | None:
        """What a client gives to a broadcast. Raises UsageError."""
        checked_name(key, "key")
        checked_name(root, "client")
        if value is None and root == self._client:
            raise UsageError(f"Client {root!r} is the root of a broadcast of key {key!r}, but gave no value. Give one.")
        return None if value is None else checked_tensor(value, "broadcast", key)

    def broadcast(
        self, key: str, value: Tensor | None, root: str, clients: int | None, deadline: float
    ) -> Handle[Tensor]:
        """The root's value, when all have asked for it."""
        value = self.check(key, value, root)
        meeting, server = f"\0broadcast {key}", owner(key, self._where.servers)
        turn, parties = self._come(server, meeting, clients, deadline)
        meta = None if value is None else self._keyed_requests.meta(value)
        place = self._keyed_requests.write(value) if value is not None and root == self._client else None
        request = JoinRound(self._keyed_requests.wires[server].next_id(), meeting, turn, parties, key, meta, place)
        what = f"{_all(parties)} at the broadcast of key {key!r} by {root!r}"
        pending = self._keyed_requests.post(server, request, what, deadline, place)
        self._await(server, meeting, pending)
        return Handle([pending], lambda: self._keyed_requests.shown(pending), deadline)

    def _await(self, server: int, meeting: str, pending: Pending) -> None:
        pending.late = lambda: self._who_is_here(server, meeting)
        self._met[server, meeting] = pending

    def _come(self, server: int, name: str, clients: int | None, deadline: float) -> tuple[int, int]:
        """Make ready for a meeting: which round of it is ours, and how many meet."""
        crew = self._where.crew
        parties = clients if clients is not None else 0 if crew else self._where.clients
        what = name.strip("\0 ")
        if clients is None and not parties and not crew:
            verb = what.partition(" ")[0]
            raise UsageError(
                f"Client {self._client!r} is at {what!r}, and nobody knows for how many clients to wait. Say so when "
                f"the servers are started, store.local(clients=3), or here, {verb}(..., clients=3)."
            )
        if parties < 1 and (clients is not None or not crew):
            raise UsageError(f"Client {self._client!r} is at {what!r} with clients={parties}: there is at least one.")
        # Others take our arrival for the end of what we have pushed. What we have asked of this server before is done
        # before we arrive there, but of other servers it knows nothing.
        self._keyed_requests.await_writes(deadline, but=server)
        last = self._met.get((server, name))
        if last is not None:
            last.wire.poll()
        return _turn(last) or self._keyed_requests.ask(server, name, deadline).number + 1, parties

    def _who_is_here(self, server: int, name: str) -> str:
        found = self._keyed_requests.ask(server, name, time.monotonic() + 1.0)
        awaited = found.awaited if self._where.crew else ()
        here, away = (", ".join(map(repr, some)) for some in (found.here, awaited))
        missing = f", and {away} {'is' if len(awaited) == 1 else 'are'} not" if away else ""
        return f"Only {here} {'is' if len(found.here) == 1 else 'are'} there{missing}"


def _all(parties: int) -> str:
    return f"all {parties} clients" if parties else "the crew of the run"


def _turn(last: Pending | None) -> int | None:
    """The number of the next round of a meeting, by what became of the last one. Pure. None: the server has to say."""
    if last is None or last.error is not None:
        return None
    assert isinstance(last.request, JoinRound)
    turn = last.request.turn
    if isinstance(last.answer, Done):
        return last.answer.number + 1
    return turn if last.overdue and not last.done else turn + 1
