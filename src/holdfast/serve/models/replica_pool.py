"""The replicas of a model: their processes and links, from their start until they are gone for certain.

Which there should be is said by `dispatch.rollout`, and what they compute by `dispatch.dispatcher`; here both are done,
and what replicas say and how they end is told to the model's service.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from holdfast.config.limits import SERVING
from holdfast.model.signature import Signature
from holdfast.serve.models.replica_link import ReplicaLink
from holdfast.serve.models.replica_processes import ReplicaStarter
from holdfast.serve.protocol.requests import InferInput
from holdfast.serve.replica import messages as say

__all__ = ["PoolEvents", "Replica", "ReplicaPool"]


@dataclass(slots=True)
class Replica:
    """One replica, as far as the front door knows it."""

    number: int
    process: int
    version: int
    link: ReplicaLink
    pid: int = 0
    computing: int = 0  #: requests of the batch that it was given
    ending: bool = False  #: it goes as soon as it computes nothing
    loaded: bool = False
    memory: int = 0
    reason: str = ""  #: why it was ended, or given up


class PoolEvents(Protocol):
    """Whom the pool tells what happens."""

    def heard(self, replica: Replica, message: say.FromReplica) -> None:
        """A replica has said something."""

    def gone(self, replica: Replica, how: str) -> None:
        """A replica's process has ended, for certain."""


class ReplicaPool:
    """All replicas of one model."""

    def __init__(self, processes: ReplicaStarter, events: PoolEvents) -> None:
        self._processes, self._events = processes, events
        self._loop = asyncio.get_running_loop()
        self.replicas: dict[int, Replica] = {}
        self.starts = 0
        self._left: dict[int, int] = {}  # replicas that are not gone for certain, and their processes
        self._all_gone = asyncio.Event()
        self._all_looked_at = 0.0

    def start(self, number: int, version: int, signature: Signature, load: say.Load) -> None:
        """Start a replica, and have it load its version."""
        process, link = self._processes.start(
            lambda pid: self._started(number, pid), lambda how: self._gone(number, how)
        )
        self._left[number] = process
        self.starts += 1
        joined = ReplicaLink(link, signature.inputs, signature.outputs, batched=signature.batched)
        self.replicas[number] = Replica(number, process, version, joined)
        self._loop.add_reader(link.fileno(), self._hear, number)
        joined.load(load)

    def compute(self, number: int, requests: Sequence[Sequence[InferInput]]) -> None:
        """Give a replica a batch. Raises ResourceError: there is no memory for it."""
        replica = self.replicas[number]
        replica.computing = len(requests)
        try:
            replica.link.compute(requests)
        except BaseException:
            replica.computing = 0
            raise

    def end(self, number: int, reason: str) -> bool:
        """End a replica as soon as it computes nothing; whether that is now."""
        replica = self.replicas.get(number)
        if replica is None:
            return False
        replica.ending, replica.reason = True, reason
        if replica.computing:
            return False
        self.let_go(number)
        return True

    def let_go(self, number: int) -> None:
        """End a replica that computes nothing: it sees the end of its link, and ends."""
        replica = self.replicas.pop(number)
        self._close_link(replica)
        if not replica.loaded:
            self._processes.kill(replica.process)  # it may be loading for long, and hears nothing meanwhile

    def give_up(self, number: int, reason: str) -> None:
        """Kill a replica; `gone` follows."""
        replica = self.replicas[number]
        replica.reason = reason
        self._processes.kill(replica.process)

    def give_up_stopped(self, late: Iterable[int]) -> None:
        """Give up replicas that the system does not let run: those that are late, and now and then all of them."""
        now = time.monotonic()
        if now >= self._all_looked_at:
            self._all_looked_at = now + SERVING.idle_look
            late = list(self.replicas)
        for number in late:
            if _stopped(self.replicas[number].pid):
                self.give_up(number, "it was stopped")

    def numbered(self, process: int) -> int | None:
        """The replica that has this process."""
        return next((number for number, one in self.replicas.items() if one.process == process), None)

    async def until_gone(self) -> None:
        """Wait until all that were let go are gone; those that take too long are killed."""
        for _ in range(2):
            self._all_gone.clear()
            if not self._left:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), SERVING.replica_end)
            for process in self._left.values():  # it computes still, or was stopped
                self._processes.kill(process)

    def close(self) -> None:
        """Close all links. The processes are ended by who has started them."""
        for replica in self.replicas.values():
            self._close_link(replica)
        self.replicas.clear()

    # ------------------------------------------------------------ what happens

    def _started(self, number: int, pid: int) -> None:
        if number in self.replicas:
            self.replicas[number].pid = pid

    def _hear(self, number: int) -> None:
        replica = self.replicas[number]
        try:
            message = replica.link.hear()
        except BlockingIOError:
            return
        except (ValueError, msgspec.MsgspecError):  # the model's code can write to its link, if it looks for it
            replica.reason = "it said something that cannot be understood"
            message = None
        if message is None:
            self._loop.remove_reader(replica.link.link.fileno())
            self._processes.kill(replica.process)  # what holds its link no more is of no use; `_gone` follows
            return
        if isinstance(message, say.Computed | say.Raised):
            replica.computing = 0
        self._events.heard(replica, message)

    def _gone(self, number: int, how: str) -> None:
        self._left.pop(number, None)
        if not self._left:
            self._all_gone.set()
        replica = self.replicas.pop(number, None)
        if replica is not None:
            self._close_link(replica)
            self._events.gone(replica, how)

    def _close_link(self, replica: Replica) -> None:
        if replica.link.link.fileno() >= 0:
            self._loop.remove_reader(replica.link.link.fileno())
        replica.link.close()


def _stopped(pid: int) -> bool:
    """Does the system not let this process run (SIGSTOP, a debugger)?"""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] in b"TtZX"
    except OSError:
        return False
