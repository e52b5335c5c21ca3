"""The front door's end of the gateway (`serve.remote.gateway`): starts it, tells it, hears it, starts it again.

A gateway that is killed takes the connections of all machines along. They dial again, and the next one listens at the
same address. One that the system does not let run is ended, so that there can be a next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from holdfast.config.limits import SERVING
from holdfast.errors import ResourceError, RunError, by_name
from holdfast.serve.remote import messages as say
from holdfast.transport.link import Link
from holdfast.transport.processes import stat
from holdfast.transport.stream import name_of

__all__ = ["GatewayProcess"]


class GatewayProcess:
    """Connections to other machines.

    Args:
        listen: where, and for whom.
        told: hears what machines and replicas do.
        lost: the gateway is gone, with all machines and replicas; why.

    Resources: `close` ends the process.
    """

    def __init__(
        self, listen: say.Listen, log: Path, told: Callable[[say.FromGateway], None], lost: Callable[[str], None]
    ) -> None:
        self._listen, self._log, self._told, self._lost = listen, log, told, lost
        self._loop = asyncio.get_running_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Link | None = None
        self._listening: asyncio.Future[say.Listening] = self._loop.create_future()
        self._again: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int:
        """Of the process; 0: there is none."""
        return self._process.pid if self._process is not None else 0

    async def open(self) -> tuple[str, int]:
        """Start it; where it listens. Raises UsageError where it cannot."""
        self._start()
        try:
            async with asyncio.timeout(SERVING.gateway):
                place = await self._listening
        except TimeoutError:
            raise ResourceError(
                f"The process for connections to other machines did not start within {SERVING.gateway:.0f} s. What it "
                f"said is in {self._log}."
            ) from None
        # The next one, should this be lost, is to be found where this one was.
        self._listen = say.Listen(self._listen.host, place.port, self._listen.credentials, self._listen.run)
        return place.host, place.port

    def place(self, replica: int, machine: int, link: Link) -> None:
        """Have a replica on a machine. What becomes of it is told."""
        if not self._say(say.Place(replica, machine), link.fileno()):
            self.end_if_stopped(also_if_not=True)  # it takes nothing any more: its end is told soon
        link.close()

    def kill(self, replica: int) -> None:
        """End a replica at once."""
        self._say(say.Kill(replica))

    def end_if_stopped(self, *, also_if_not: bool = False) -> None:
        """A gateway that does not run is of no use."""
        if self._process is not None and (also_if_not or stat(self._process.pid).state in ("t", "T")):
            self._process.kill()

    def close(self) -> None:
        """End it; machines are told first."""
        if self._again is not None:
            self._again.cancel()
        if self._process is None:
            return
        process, self._process = self._process, None
        self._forget_link()
        try:
            process.wait(SERVING.farewell)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with contextlib.suppress(OSError):
            if self._log.stat().st_size == 0:
                self._log.unlink()

    # ------------------------------------------------------------ the process

    def _start(self) -> None:
        ours, theirs = Link.pair()
        command = [sys.executable, "-P", "-m", "holdfast.serve.remote.gateway", "--control", str(theirs.fileno())]
        with theirs, open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [*command, "--parent", str(os.getpid())], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                pass_fds=[theirs.fileno()], start_new_session=True,  # Ctrl-C is the front door's to hear
            )  # fmt: skip
        ours.setblocking(False)
        self._link = ours
        self._loop.add_reader(ours.fileno(), self._hear)
        self._say(self._listen)

    def _say(self, message: say.FromDoor, *fds: int) -> bool:
        return self._link is not None and self._link.send(say.encode(message), fds)

    def _hear(self) -> None:
        while self._link is not None:
            try:
                frame = self._link.recv()
            except BlockingIOError:
                return
            if frame is None:
                self._ended()
                return
            message = say.decode_from_gateway(frame.data)
            if isinstance(message, say.Listening):
                if not self._listening.done():
                    self._listening.set_result(message)
            elif isinstance(message, say.CannotListen):
                if not self._listening.done():
                    self._listening.set_exception((by_name(message.error) or RunError)(message.reason))
            else:
                self._told(message)

    def _ended(self) -> None:
        self._forget_link()
        assert self._process is not None
        code = self._process.wait()  # its link has ended, so it has, or will at once
        self._process = None
        how = f"the gateway ended {'by signal' if code < 0 else 'with status'} {abs(code)}"
        if not self._listening.done():
            self._listening.set_exception(RunError(f"{how} before it listened. What it said is in {self._log}."))
        elif self._listening.exception() is None:
            self._lost(f"{how}; {name_of((self._listen.host, self._listen.port))} is opened again")
            self._again = self._loop.call_later(SERVING.gateway_again, self._start)

    def _forget_link(self) -> None:
        if self._link is not None:
            self._loop.remove_reader(self._link.fileno())
            self._link.close()
            self._link = None
