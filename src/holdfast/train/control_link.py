"""How a worker is steered: `Alone` in a run of one process, `ControlLink` by the coordinator's link.

`ControlLink` is the worker's side of the generation protocol (see `control.protocol.messages`): it is asked to
pause, says that it is quiet, and gets the next generation. It repeats what was not answered, so a lost
message costs a moment and nothing else. When the launcher is gone, so is the run: the worker ends. Who was
told to end is told so at every further turn, in case the script has swallowed it.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from typing import NoReturn

from holdfast.config.limits import WORKER
from holdfast.control.protocol import messages as say
from holdfast.errors import RunError, Stopped
from holdfast.transport.doorbell import Doorbells
from holdfast.transport.link import Link

__all__ = ["Alone", "ControlLink", "LetGo"]



class LetGo(BaseException):
    """This worker is no longer needed and ends well. Not an Exception: user code must not swallow it."""


class Alone:
    """Nobody else: nothing to wait for, nobody to wake."""

    pausing = False

    def look(self) -> None:
        """Nobody speaks."""

    def rest(self, step: int) -> None:
        """Nobody asks for rest."""

    def wait(self, changed: Callable[[], bool]) -> None:
        """A worker alone has nobody to wait for."""
        raise AssertionError("alone, yet waiting")

    def ring(self) -> None:
        """Nobody to wake."""


class ControlLink:
    """Steered by the coordinator. Owns the link and the doorbells."""

    def __init__(self, worker: int, link: Link) -> None:
        self.worker, self._link = worker, link
        link.setblocking(False)
        self._poll = select.poll()
        self._poll.register(link.fileno(), select.POLLIN)
        self.bells = Doorbells(link.fileno())
        self._wanted = 0  # the generation we were asked to pause for
        self._generation = 0
        self._install: tuple[say.Install, tuple[int, ...]] | None = None
        self._welcome: tuple[say.Welcome, int] | None = None
        self._seeded = False
        self._stores: list[say.StoreAt] = []
        self._leaving: float | None = None  # when to say (again) that we were asked to leave
        self._told_to_end: tuple[type[BaseException], str] | None = None
        self.installed: Callable[[say.Install], None] = lambda _: None
        signal.signal(signal.SIGTERM, self._asked_to_leave)

    # ------------------------------------------------------------ Controls

    @property
    def pausing(self) -> bool:
        """The coordinator asked for quiet, and the generation after it has not come yet."""
        return self._wanted > self._generation

    @property
    def generation(self) -> int:
        """The generation this worker acts in."""
        return self._generation

    def look(self) -> None:
        """Read what the link has to say, without waiting; say what is due."""
        self._check_end()
        self._say_leaving()
        while self._poll.poll(0) and self._read():  # asked for every unit: a poll is cheaper than a vain read
            pass

    def rest(self, step: int) -> None:
        """Say that this worker is quiet until the next generation is there; then take its place."""
        self._check_end()
        while self.pausing:
            self.send(say.Paused(self.worker, self._wanted, step))
            self._await(lambda: not self.pausing or self._install is not None)
            self._take_install()

    def wait(self, changed: Callable[[], bool]) -> None:
        """Sleep until the board moves or the link speaks."""
        self._check_end()
        self.bells.wait(changed, WORKER.repeat)

    def ring(self) -> None:
        """Wake the others."""
        self.bells.ring()

    def attend(self, come: Callable[[], bool]) -> bool:
        """Wait until something is there; False when the coordinator asks for quiet before."""
        while not come():
            self.look()
            if self.pausing:
                return False
            self.bells.wait(come, WORKER.repeat)
        return True

    # ------------------------------------------------------------ joining

    def enlist(self, ready: say.Ready) -> tuple[say.Welcome, int]:
        """Say Ready until welcomed. Returns the welcome and the arena's descriptor."""
        while self._welcome is None:
            self.send(ready)
            self._await(lambda: self._welcome is not None)
        return self._welcome

    def seeded(self) -> None:
        """The arena holds my weights. Said again whenever the coordinator asks for them again."""
        self._seeded = True
        self.send(say.Seeded(self.worker))

    def cluster_hosts(self, ready: say.Ready) -> None:
        """Wait for the first generation that I am part of."""
        while self._install is None:
            self._await(lambda: self._install is not None)
            if self._install is None:
                self.send(ready)
        self._take_install()
        self.rest(0)  # the crew may have changed again while the state was on its way

    def ask_store(self, wanted: say.StoreWanted) -> say.StoreAt:
        """Ask for the store of this run until it is said where it is. Whoever keeps it says how long that may take."""
        self._stores.clear()
        while not self._stores:
            self.send(wanted)
            self._await(lambda: bool(self._stores))
        return self._stores[0]

    def send(self, message: say.FromWorker) -> None:
        """Say something to the coordinator, waiting for room if the link is full."""
        self._check_end()
        self.say_last(message)

    def say_last(self, message: say.FromWorker) -> None:
        """As `send`, for what is to be said even by a worker that was told to end."""
        data = say.encode(message)
        self._link.setblocking(True)
        try:
            self._link.send(data)
        finally:
            self._link.setblocking(False)

    def leave(self, reason: str) -> NoReturn:
        """This worker has said all that it had to say, and ends, also if the script swallows that."""
        self._end(LetGo, reason)

    # ------------------------------------------------------------ the link

    def _say_leaving(self) -> None:
        if self._leaving is not None and time.monotonic() >= self._leaving:
            self._leaving = time.monotonic() + WORKER.repeat  # until we are let go
            self.send(say.Leaving(self.worker, "SIGTERM"))

    def _await(self, done: Callable[[], bool], seconds: float = WORKER.repeat) -> None:
        self._say_leaving()
        if not done() and self._poll.poll(seconds * 1000):
            while self._read():
                pass

    def _read(self) -> bool:
        try:
            frame = self._link.recv()
        except BlockingIOError:
            return False
        if frame is None:
            os._exit(0)  # the launcher is gone: there is no run any more, and nobody to tell
        message = say.decode_to_worker(frame.data)
        match message:
            case say.Welcome():
                if self._welcome is None:
                    self._welcome = message, frame.fds[0]
                else:
                    _close(frame.fds)
                    if message.seed and self._seeded:  # it has not heard us
                        self.send(say.Seeded(self.worker))
            case say.Pause():
                self._wanted = max(self._wanted, message.generation)
            case say.Install():
                if message.generation > self._generation:
                    if self._install is not None:
                        _close(self._install[1])
                    self._install = message, frame.fds
                    self._wanted = max(self._wanted, message.generation)
                else:
                    _close(frame.fds)
            case say.StoreAt():
                self._stores.append(message)
            case say.Leave():
                self._end(LetGo, message.reason)
            case say.Refuse():
                self._end(RunError, message.reason)
            case say.Stop():
                self._end(Stopped, message.reason)
        return True

    def _end(self, kind: type[BaseException], reason: str) -> NoReturn:
        self._told_to_end = kind, reason
        raise kind(reason)

    def _check_end(self) -> None:
        if self._told_to_end is not None:
            self._end(*self._told_to_end)

    def _take_install(self) -> None:
        if self._install is None:
            return
        install, fds = self._install
        self._install = None
        self._generation = install.generation
        self._wanted = max(self._wanted, install.generation)
        here = install.hosts[install.members.index(self.worker)]
        on_host = [member for member, host in zip(install.members, install.hosts, strict=True) if host == here]
        self.bells.replace(fds, on_host.index(self.worker), len(on_host))
        self.installed(install)

    def _asked_to_leave(self, *_: object) -> None:
        if self._leaving is None:
            self._leaving = 0.0


def _close(fds: tuple[int, ...]) -> None:
    for fd in fds:
        os.close(fd)
