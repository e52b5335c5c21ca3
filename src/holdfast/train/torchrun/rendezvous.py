"""The rendezvous: ranks of a launcher learn who is there and where, through a store they all can reach.

That is a store of short texts at MASTER_ADDR:MASTER_PORT (torch's TCPStore: torchrun serves it, or rank 0 does):

    SCOPE/session            made by rank 0, new each time
    SCOPE/SESSION/entry/R    what rank R says of itself (`ranks.RankEntry`)
    SCOPE/SESSION/roll       all of them, once all are there: written by rank 0
    SCOPE/SESSION/door/R     where the helper of the node led by R is met (see `rank_worker`)
    SCOPE/SESSION/place      where the run listens, and its token; only where there are several nodes
    SCOPE/SESSION/done       how many need the store no more; then `place` is removed

A launcher may start ranks anew with the same store, so what lies there may be of an earlier time. A rank believes
only a roll that has its own mark in it; until then it looks whether the session has become another. Nothing waits in
silence: who is awaited is said after a while, and an error names them in the end.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from holdfast.config.limits import TORCHRUN
from holdfast.errors import NetworkError, OtherVersion
from holdfast.train.torchrun.ranks import RankEntry, Roll, World, named

__all__ = ["Deadline", "Rendezvous", "RunAddress", "TextStore"]

T = TypeVar("T")


class TextStore(Protocol):
    """Short texts by name, the same for all ranks. Nothing here waits. Raises NetworkError where it is gone."""

    def put(self, key: str, text: str) -> None:
        """Write it, over what was there."""

    def look(self, key: str) -> str | None:
        """Read it, if it is there."""

    def count(self, key: str, more: int) -> int:
        """Add to a number, which begins at 0; the sum."""

    def drop(self, key: str) -> None:
        """Remove it, if it is there."""


class RunAddress(msgspec.Struct, frozen=True):
    """Where a run can be joined, the likeliest address first, and with what."""

    addresses: list[str]
    port: int
    token: str


class Deadline:
    """Waits for something, says for whom, and not for ever."""

    def __init__(
        self, say: Callable[[str], None], *, limit: float = TORCHRUN.rendezvous,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._say, self._limit, self._clock, self._sleep = say, limit, clock, sleep

    def until(self, look: Callable[[], T | None], whom: Callable[[], str], limit: float | None = None) -> T:
        """What `look` sees, once it is not None.

        Raises:
            NetworkError: it was None for too long; `whom` says what was waited for, as the end of a sentence.
        """
        began, nap, due = self._clock(), 0.002, TORCHRUN.report
        most = self._limit if limit is None else limit
        while (found := look()) is None:
            waited = self._clock() - began
            if waited >= most:
                raise NetworkError(
                    f"Waited {waited:.0f} s for {whom()}. Look at the output of what is missing: it may have ended, or "
                    "stand still before its first step."
                )
            if waited >= due:
                self._say(f"waiting for {whom()} ({waited:.0f} s so far, {most:.0f} s at most)")
                due *= 2
            self._sleep(nap)
            nap = min(2 * nap, TORCHRUN.poll)
        return found


class Rendezvous:
    """One rank's part in it.

    Args:
        store: of all ranks.
        me: what this rank says of itself.
    """

    def __init__(self, store: TextStore, world: World, me: RankEntry, deadline: Deadline) -> None:
        self._store, self._world, self._me, self._deadline = store, world, me, deadline
        self._session = ""
        self._present: set[int] = set()

    def call(self) -> Roll:
        """Everybody, once everybody is there."""
        if self._me.rank == 0:
            self._session = secrets.token_hex(8)
            self._store.put(f"{self._scope}/session", self._session)
            roll = self._deadline.until(self._gather, self._missing)
            self._store.put(self._key("roll"), msgspec.json.encode(list(roll.values())).decode())
        else:
            roll = self._deadline.until(self._listen, self._missing)
        first = roll[0]
        if first.version != self._me.version:
            place = f"{self._world.address}:{self._world.port}"
            raise OtherVersion(place, theirs=first.version, ours=self._me.version)
        return roll

    # ------------------------------------------------------------ where things are

    def open_door(self, name: str) -> None:
        """Say where the helper of this rank's node is met."""
        self._store.put(self._key(f"door/{self._me.rank}"), name)

    def door(self, leader: int) -> str:
        """Where the helper of the node led by this rank is met."""
        key = self._key(f"door/{leader}")
        return self._deadline.until(
            lambda: self._store.look(key), lambda: f"{named([leader])} to start what its machine needs to take part"
        )

    def invite(self, place: RunAddress) -> None:
        """Say where the run can be joined."""
        self._store.put(self._key("place"), msgspec.json.encode(place).decode())

    def place(self) -> RunAddress:
        """Where the run can be joined."""
        key = self._key("place")
        text = self._deadline.until(lambda: self._store.look(key), lambda: "rank 0 to say where the run can be joined")
        return msgspec.json.decode(text, type=RunAddress)

    def done(self) -> None:
        """This rank has no need of the store any more. Rank 0 waits for all, and takes the token away."""
        self._store.count(self._key("done"), 1)
        if self._me.rank:
            return

        def all_done() -> bool | None:
            return self._store.count(self._key("done"), 0) >= self._world.size or None

        try:
            self._deadline.until(all_done, lambda: "the other ranks to find the run", TORCHRUN.linger)
        except NetworkError:
            pass  # somebody was lost meanwhile; the run can do without
        self._store.drop(self._key("place"))

    # ------------------------------------------------------------ the call

    @property
    def _scope(self) -> str:
        return f"holdfast/{self._world.scope}"

    def _key(self, name: str) -> str:
        return f"{self._scope}/{self._session}/{name}"

    def _enter(self) -> None:
        self._store.put(self._key(f"entry/{self._me.rank}"), msgspec.json.encode(self._me).decode())

    def _gather(self) -> Roll | None:
        """Rank 0: is everybody there?"""
        if not self._present:
            self._enter()
        found: Roll = {}
        for rank in range(self._world.size):
            text = self._store.look(self._key(f"entry/{rank}"))
            if text is not None:
                found[rank] = msgspec.json.decode(text, type=RankEntry)
        self._present = set(found)
        return found if len(found) == self._world.size else None

    def _listen(self) -> Roll | None:
        """The others: has the roll been called, with this very process in it?"""
        session = self._store.look(f"{self._scope}/session") or ""
        if session != self._session:
            self._session = session
            self._enter()
        if not session or (text := self._store.look(self._key("roll"))) is None:
            return None
        roll = {entry.rank: entry for entry in msgspec.json.decode(text, type=list[RankEntry])}
        return roll if roll.get(self._me.rank) == self._me else None

    def _missing(self) -> str:
        if self._me.rank == 0:
            gone = set(range(self._world.size)) - self._present
            return f"{named(gone)} of {self._world.size} to come to hf.join()"
        return f"all {self._world.size} ranks to come to hf.join()" if self._session else "rank 0 to come to hf.join()"
