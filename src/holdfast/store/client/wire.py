"""A wire: what one client and one server have to say to each other, across the deaths of that server.

A request stays *pending* until it is answered. When the connection ends, the wire connects again (whoever keeps the
servers holds the listening socket, so this succeeds while a server is being replaced) and sends what is pending again,
in order. There is no thread behind it: answers are read when somebody waits or asks for something else. No torch here.
"""

from __future__ import annotations

import os
import select
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial

import msgspec

from holdfast.config.limits import STORE
from holdfast.errors import ServerLost, StoreError
from holdfast.store.client.pending import Pending, complaint, gone_text
from holdfast.store.dedup import WINDOW
from holdfast.store.messages import (
    Answer,
    Done,
    Failed,
    Grown,
    Hello,
    PushRequest,
    ReleaseView,
    Request,
    Say,
    ValueView,
    Welcome,
    answers,
    pack,
    packed,
)
from holdfast.store.payload import is_light
from holdfast.store.region import Region, Tie
from holdfast.store.waiting import Waiting
from holdfast.transport.link import MAX_MESSAGE, Link, Outcome

__all__ = ["Wire"]

#: Requests that travel together at most: the server begins with them while the next are written.
_TOGETHER = 32


class Wire:
    """The wire to server `index`, at the abstract socket `name`. `memory` is the client's own region.

    Resources: `close` ends the connection and closes the server's region; `memory` is not its own.
    """

    def __init__(self, index: int, name: str, client: str, memory: Region, *, spin: float = 0.0) -> None:
        self.index, self._name, self._client, self._memory = index, name, client, memory
        self._waiting = Waiting(spin)
        self.region: Region | None = None  #: the server's, once it has said welcome
        self.pid = 0  #: of the server, 0 while there is none
        self.failures: list[Pending] = []  #: that ended badly, perhaps unseen
        self._pending: dict[int, Pending] = {}
        self._last = 0
        self._link: Link | None = None
        self._gathered: list[Say] = []  # requests that wait for others to travel with
        self._gathering = False
        self._unsent: deque[bytes] = deque()
        self._looks: Counter[tuple[str, int]] = Counter()
        self._let_go: deque[tuple[str, int]] = deque()  # filled by finalizers, in whatever thread
        self._fatal: Exception | None = None
        self._poll, self._blocked = select.poll(), False  # blocked: there is more to send than the kernel takes
        self._connect()

    # ------------------------------------------------------------ asking

    def next_id(self) -> int:
        """The number of the next request."""
        self._last += 1
        return self._last

    def post(
        self, request: Request, what: str, *, deadline: float, settled: Callable[[], object] | None = None
    ) -> Pending:  # fmt: skip
        """Ask for something; `settled` is called when it has ended, whichever way."""
        pending = Pending(self, request, what, deadline, settled)
        while len(self._pending) >= WINDOW and self._fatal is None:
            self._pump_until(deadline, next(iter(self._pending.values())))
        if self._fatal is not None:
            self._end(pending, None, self._fatal)
            return pending
        self._pending[request.id] = pending
        self._tell(request)
        return pending

    def gather(self) -> None:
        """What is asked from now on may travel together, until `send_off`."""
        self._gathering = True

    def send_off(self) -> None:
        """All that was gathered is on its way, and nothing is gathered any more."""
        self._gathering = False
        self._flush()

    def grown(self, pending: Pending, here: int) -> None:
        """More bytes of a push are there."""
        assert isinstance(pending.request, PushRequest)
        pending.request = msgspec.structs.replace(pending.request, here=here)
        if not pending.done:
            self._tell(Grown(pending.request.id, here))

    def wait(self, pending: Pending, deadline: float) -> None:
        """Until it has ended. Raises StoreTimeout; how it ended is in `pending`."""
        while not pending.done:
            self._pump_until(deadline, pending)

    def poll(self) -> None:
        """Take in what has come, without waiting."""
        while self._pump(0.0):
            pass

    def under_way(self) -> list[Pending]:
        """What is not answered, in the order in which it was asked for."""
        return list(self._pending.values())

    def close(self) -> None:
        """End the connection. What is pending stays unanswered."""
        closed = StoreError(f"The store of client {self._client!r} is closed. Connect again.")
        self._give_up(self._fatal or closed)
        if self._link is not None:
            self._link.close()
            self._link = None
        if self.region is not None:
            self.region.close()

    def _give_up(self, error: Exception) -> None:
        """From now on every request ends with this."""
        self._fatal = error
        for pending in list(self._pending.values()):
            self._end(pending, None, error)

    # ------------------------------------------------------------ the connection

    def _connect(self) -> None:
        try:
            self._link, self.pid = Link.dial(self._name, STORE.dial, blocking=False), 0
        except OSError as error:
            self._give_up(ServerLost(gone_text(self.index, error.strerror or error)))
            return
        self._poll, self._blocked = select.poll(), False
        self._poll.register(self._link, select.POLLIN)
        self._collect()
        looks = tuple(self._looks.elements())
        self._link.offer(pack(Hello(self._client, looks)), [self._memory.fd])
        for pending in self._pending.values():
            if isinstance(pending.request, PushRequest):
                pending.request = msgspec.structs.replace(pending.request, again=True)
        self._gathered.clear()
        self._unsent = deque(pack(pending.request) for pending in self._pending.values())
        self._flush()

    def _collect(self) -> list[ReleaseView]:
        gone = []
        while self._let_go:
            look = self._let_go.popleft()
            self._looks[look] -= 1
            if not self._looks[look]:
                del self._looks[look]
            gone.append(ReleaseView(*look))
        return gone

    def _tell(self, message: Say) -> None:
        self._gathered += [*self._collect(), message]
        if not self._gathering or len(self._gathered) >= _TOGETHER or not is_light(message):
            self._flush()

    def _flush(self) -> None:
        if self._gathered:
            self._unsent.extend(packed(self._gathered, MAX_MESSAGE))
            self._gathered.clear()
        while self._unsent and self._link is not None:
            outcome = self._link.offer(self._unsent[0])
            if outcome is Outcome.FULL:
                return
            if outcome is Outcome.GONE:
                self._unsent.clear()  # its end is read next, and all that is pending is sent again
                return
            self._unsent.popleft()

    def _pump_until(self, deadline: float, pending: Pending) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            self.poll()
            if pending.done:
                return
            raise pending.too_late(self._client, self.pid)
        self._pump(left)

    def _pump(self, seconds: float) -> bool:
        """Take in one thing that has come, or wait for one. False: nothing came."""
        if self._let_go:
            self._gathered += self._collect()
        self._flush()
        if self._link is None:
            return False
        if bool(self._unsent) != self._blocked:
            self._blocked = bool(self._unsent)
            self._poll.modify(self._link.fileno(), select.POLLIN | (select.POLLOUT if self._blocked else 0))
        found = self._waiting.wait(self._poll, seconds)
        for _, event in found:
            if event & ~select.POLLOUT:
                self._read()
        return bool(found)

    def _read(self) -> None:
        assert self._link is not None
        try:
            frame = self._link.recv()
        except BlockingIOError:
            return
        if frame is not None:
            for answer in answers(frame.data):
                self._hear(answer, frame.fds)
            return
        self._link.close()
        self._link = None
        if not self.pid:
            time.sleep(STORE.dial_poll)  # it ended before it had said welcome: do not run in circles
        self._connect()

    def _hear(self, answer: Answer, fds: tuple[int, ...]) -> None:
        if isinstance(answer, Welcome):
            self.pid = answer.pid
            self._meet_memory(fds)
            return
        if isinstance(answer, Failed):
            error = complaint(answer)
            if answer.id < 0:
                self._give_up(error)
            elif answer.id in self._pending:
                self._end(self._pending[answer.id], None, error)
            return
        if not isinstance(answer, Done | ValueView):
            return  # of no use here: the version is looked at where it is made
        asked = self._pending.get(answer.id)
        if isinstance(answer, ValueView):
            self._looks[answer.key, answer.buffer] += 1
            tie = Tie(partial(self._let_go.append, (answer.key, answer.buffer)))
            if asked is not None:
                asked.tie = tie
        if asked is not None:
            self._end(asked, answer, None)

    def _meet_memory(self, fds: tuple[int, ...]) -> None:
        fd, *others = fds
        for other in others:
            os.close(other)
        if self.region is None:
            self.region = Region(fd, writable=False)
            return
        ours, theirs = os.fstat(self.region.fd), os.fstat(fd)
        os.close(fd)
        if (ours.st_dev, ours.st_ino) != (theirs.st_dev, theirs.st_ino):
            self._give_up(
                ServerLost(
                    f"Server {self.index} of the store has come back without its memory: all values are lost. Start "
                    "from a checkpoint."
                )
            )

    def _end(self, pending: Pending, answer: Done | ValueView | None, error: Exception | None) -> None:
        self._pending.pop(pending.request.id, None)
        pending.settle(answer, error)
        if error is not None:
            self.failures = [one for one in self.failures if not one.seen] + [pending]
