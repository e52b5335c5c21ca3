"""A replica host: this machine computes for a front door elsewhere (`holdfast replica`).

It has replicas as a front door has its own: forked by a forkserver, with links and shared memory. Whatever the server
asks for is asked over its control connection; each replica has a connection of its own. A replica that the system does
not let run (SIGSTOP) is ended here, where that can be seen; a server that is silent is lost, and looked for again.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.config.limits import AGENT, SERVING
from holdfast.errors import NetworkError
from holdfast.observe.directory import host
from holdfast.serve.models.replica_processes import ReplicaProcesses
from holdfast.serve.remote import messages as say
from holdfast.serve.remote.hosted_replica import HostedReplica
from holdfast.serve.remote.version_files import VersionFiles
from holdfast.transport.auth.credentials import Credentials
from holdfast.transport.auth.dial import connect
from holdfast.transport.auth.handshake import Hello
from holdfast.transport.channel import Channel
from holdfast.transport.frames import Frame, Kind
from holdfast.transport.processes import stat
from holdfast.transport.stream import Stream

__all__ = ["ReplicaHost"]

_KINDS = frozenset({Kind.CONTROL})


@dataclass(slots=True)
class _Hosted:
    process: int
    pid: int = 0
    carried: HostedReplica | None = None


class ReplicaHost:
    """The replicas of this machine.

    Args:
        place: where the server listens for machines.
        slots: replicas that this machine has room for.
        directory: for logs, and for the files of models.

    Resources: `close` ends all replicas; the directory is the caller's.
    """

    def __init__(
        self, place: tuple[str, int], credentials: Credentials, *, slots: int, threads: int, directory: Path,
        say_it: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._place, self._credentials, self._slots, self._tell = place, credentials, slots, say_it
        self._files = VersionFiles(directory / "models")
        self._processes = ReplicaProcesses(directory, str(directory), threads)
        self._hosted: dict[int, _Hosted] = {}
        self._numbers = 0
        self._channel: Channel | None = None
        self._leaving = self._over = False
        self.joined = False  #: is it with a server now?
        self.visits = 0  #: until now

    def close(self) -> None:
        """End every replica, and the forkserver."""
        self._processes.close()
        for one in self._hosted.values():
            if one.carried is not None:
                one.carried.close("this machine has left")

    async def visit(self) -> str:
        """Serve until the server ends or lets go; what is said of it then. Raises Refused, NetworkError: it is lost."""
        loop = asyncio.get_running_loop()
        hello = Hello("machine", facts={"name": host(), "slots": self._slots, "id": secrets.token_hex(8)})
        stream = await asyncio.to_thread(connect, self._place, hello, self._credentials, AGENT.dial)
        ended: asyncio.Future[str] = loop.create_future()
        self._over = False
        self._channel = Channel(
            stream, lambda frame: self._later(loop, self._heard, frame),
            lambda reason: self._later(loop, _settle, ended, reason), kinds=_KINDS,
        )  # fmt: skip
        self.joined, self.visits = True, self.visits + 1
        self._tell(f"joined the server at {stream.peer}, with room for {self._slots} replicas")
        try:
            return await self._stay(self._channel, ended)
        finally:
            channel, self._channel, self.joined = self._channel, None, False
            await asyncio.to_thread(channel.close)
            for number in list(self._hosted):
                self._end(number, "the server is gone")

    def leave(self) -> None:
        """Have the replicas replaced elsewhere, and leave."""
        self._leaving = True
        if self._channel is not None:
            self._channel.send(say.encode(say.Withdraw()))

    async def _stay(self, channel: Channel, ended: asyncio.Future[str]) -> str:
        beat, left_at, trimmed = say.encode(say.Beat()), 0.0, 0.0
        while not ended.done():
            await asyncio.wait([ended], timeout=SERVING.look)
            now = time.monotonic()
            channel.send(beat)
            self._end_stopped()
            if now > trimmed + SERVING.trim:
                trimmed = now
                await asyncio.to_thread(self._processes.trim_logs)
            if now - channel.heard > SERVING.silence:
                raise NetworkError(
                    f"The server at {channel.peer} has been silent for {SERVING.silence:.0f} s. Check its machine, and "
                    "the network between the two."
                )
            if self._leaving:
                left_at = left_at or now
                if not self._hosted:
                    return "left the server; its replicas are elsewhere"
                if now - left_at > SERVING.leave:
                    return f"left the server after {SERVING.leave:.0f} s, with {len(self._hosted)} replicas"
        if self._over:
            return "the server has ended"
        raise NetworkError(f"The server at {channel.peer} is lost: {ended.result()}. Check that it is still going.")

    # ------------------------------------------------------------ replicas

    def _later(self, loop: asyncio.AbstractEventLoop, work: Callable[..., None], *words: object) -> None:
        try:
            loop.call_soon_threadsafe(work, *words)
        except RuntimeError:
            pass  # the loop is closed: everything has ended

    def _heard(self, frame: Frame) -> None:
        message = say.decode_to_host(frame.body)
        if isinstance(message, say.OpenReplica):
            self._open(message.ticket)
        elif isinstance(message, say.Over):
            self._over = True

    def _open(self, ticket: str) -> None:
        number, self._numbers = self._numbers, self._numbers + 1
        loop = asyncio.get_running_loop()
        process, link = self._processes.start(
            lambda pid: self._started(number, pid), lambda how: self._gone(number, how)
        )
        one = self._hosted[number] = _Hosted(process)
        link.setblocking(True)  # threads wait for it

        def dial() -> Stream:
            return connect(self._place, Hello("replica", facts={"ticket": ticket}), self._credentials, AGENT.dial)

        one.carried = HostedReplica(
            link, dial, self._files, lambda reason: self._later(loop, self._let_go, number, reason)
        )

    def _started(self, number: int, pid: int) -> None:
        if number in self._hosted:
            self._hosted[number].pid = pid

    def _gone(self, number: int, how: str) -> None:
        """Its process has ended, for certain."""
        one = self._hosted.pop(number, None)
        if one is not None and one.carried is not None:
            one.carried.gone(how)

    def _let_go(self, number: int, reason: str) -> None:
        """Its connection has ended: it is of no use to anybody."""
        if number in self._hosted:
            self._processes.kill(self._hosted[number].process)

    def _end(self, number: int, reason: str) -> None:
        one = self._hosted[number]
        if one.carried is not None:
            one.carried.close(reason)
        self._processes.kill(one.process)

    def _end_stopped(self) -> None:
        for one in self._hosted.values():
            if one.pid and stat(one.pid).state in ("t", "T"):
                self._processes.kill(one.process)


def _settle(ended: asyncio.Future[str], reason: str) -> None:
    if not ended.done():
        ended.set_result(reason)
