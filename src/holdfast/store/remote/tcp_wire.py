"""A wire to a server on another host: the same as `wire`, over TCP.

There a proxy speaks for the client. Values travel in runs, both directions at once: one thread sends what is asked,
another one takes in what is answered, into memory of this client's own. When the connection ends, the second thread
makes another one, and all that is pending is sent again, in order. No torch here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import msgspec

from holdfast.config.limits import STORE
from holdfast.errors import (
    FrameError,
    HoldfastError,
    NetworkError,
    NobodyListens,
    ResourceError,
    ServerLost,
    StoreError,
)
from holdfast.store.client.pending import Pending, complaint, gone_text
from holdfast.store.dedup import WINDOW
from holdfast.store.heap import Extent
from holdfast.store.messages import Answer, Bytes, Done, Failed, Pull, PushRequest, Request, ValueView, Welcome
from holdfast.store.payload import is_light
from holdfast.store.region import Owned, Region, Tie, create
from holdfast.store.remote.framing import FramedMessages, head
from holdfast.store.remote.send_queue import SendQueue
from holdfast.transport.auth import dial
from holdfast.transport.auth.credentials import Credentials
from holdfast.transport.auth.handshake import Hello
from holdfast.transport.stream import Stream, name_of

__all__ = ["TcpWire"]


class _Coming(NamedTuple):
    """Where an answer's bytes go, and what holds the place."""

    place: Extent
    tie: Tie


class TcpWire:
    """The wire to server `index` of the group that listens at `place`. `memory` is the client's own region.

    Raises what keeps it from connecting at first: NetworkError, Refused, UsageError.

    Resources: `close` ends the connection and its threads; `memory` is not its own.
    """

    def __init__(
        self, index: int, place: tuple[str, int], client: str, memory: Region, credentials: Credentials
    ) -> None:  # fmt: skip
        self.index, self._place, self._client, self._memory = index, place, client, memory
        self._credentials = credentials
        self.pid = 0  #: of the server, 0 while there is none
        self._trouble = ""  # why there is no connection, if there is none
        self.failures: list[Pending] = []  #: that ended badly, perhaps unseen
        self._changed = threading.Condition()
        self._pending: dict[int, Pending] = {}
        self._send_queue = SendQueue()
        self._gathering = False
        self._last, self._turn, self._closed = 0, 0, False
        self._fatal: Exception | None = None
        self._coming: dict[int, _Coming] = {}  # only the thread that receives looks into it
        self._stream = self._connect()
        self.region: Owned = Owned(create())
        self._thread = threading.Thread(target=self._live, name=f"holdfast-store-wire-{index}", daemon=True)
        self._thread.start()

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
        with self._changed:
            first = next(iter(self._pending.values()), pending)
            room = self._wait_for(lambda: len(self._pending) < WINDOW or self._fatal is not None, deadline)
            if self._fatal is not None:
                self._end(pending, None, self._fatal)
                return pending
            if room:
                self._pending[request.id] = pending
                self._send_queue.add(pending)
                if not self._gathering or not is_light(request):
                    self._changed.notify_all()
                return pending
        raise first.too_late(self._client, self.pid)

    def gather(self) -> None:
        """What is asked from now on may travel together, until `send_off`."""
        self._gathering = True

    def send_off(self) -> None:
        """All that was gathered is on its way, and nothing is gathered any more."""
        with self._changed:
            self._gathering = False
            self._changed.notify_all()

    def grown(self, pending: Pending, here: int) -> None:
        """More bytes of a push are there."""
        assert isinstance(pending.request, PushRequest)
        with self._changed:
            pending.request = msgspec.structs.replace(pending.request, here=here)
            self._changed.notify_all()

    def wait(self, pending: Pending, deadline: float) -> None:
        """Until it has ended. Raises StoreTimeout; how it ended is in `pending`."""
        with self._changed:
            if self._wait_for(lambda: pending.done, deadline):
                return
        raise pending.too_late(self._client, self.pid, self._trouble)

    def poll(self) -> None:
        """There is a thread that takes in what has come."""

    def under_way(self) -> list[Pending]:
        """What is not answered, in the order in which it was asked for."""
        with self._changed:
            return list(self._pending.values())

    def close(self) -> None:
        """End the connection. What is pending stays unanswered."""
        with self._changed:
            self._closed = True
            self._give_up(StoreError(f"The store of client {self._client!r} is closed. Connect again."))
        self._stream.close()
        self._thread.join()
        self.region.close()

    def _wait_for(self, so: Callable[[], bool], deadline: float) -> bool:
        if self._gathering:
            self._changed.notify_all()  # nobody waits for what is not sent
        return self._changed.wait_for(so, max(0.0, deadline - time.monotonic()))

    def _give_up(self, error: Exception) -> None:
        """From now on every request ends with this, unless there was another reason before."""
        self._fatal = self._fatal or error
        for pending in list(self._pending.values()):
            self._end(pending, None, self._fatal)
        self._changed.notify_all()

    def _end(self, pending: Pending, answer: Done | ValueView | None, error: Exception | None) -> None:
        self._pending.pop(pending.request.id, None)
        pending.settle(answer, error)
        if error is not None:
            self.failures = [one for one in self.failures if not one.seen] + [pending]

    # ------------------------------------------------------------ the connection

    def _connect(self) -> Stream:
        hello = Hello("store", facts={"server": self.index, "client": self._client})
        return dial.connect(self._place, hello, self._credentials, STORE.dial)

    def _live(self) -> None:
        """The thread that receives: a connection after the other."""
        stream: Stream | None = self._stream
        while stream is not None:
            with self._changed:
                turn = self._turn
            sender = threading.Thread(target=self._send, args=(stream, turn), daemon=True)
            sender.start()
            try:
                self._receive(stream)
            except (EOFError, OSError):
                pass  # whatever ended it, there will be another one
            except FrameError as error:
                why = f"Server {self.index} at {name_of(self._place)} said what nobody understands: {error.what}"
                with self._changed:
                    self._give_up(StoreError(f"{why}. Both sides must be of one version."))
            with self._changed:
                if not self.pid:  # it ended before it had said welcome: do not run in circles
                    self._changed.wait_for(lambda: self._fatal is not None, STORE.dial_again)
                self._turn, self.pid = self._turn + 1, 0  # the sender of before has nothing to say any more
                self._changed.notify_all()
            stream.close()
            sender.join()
            self._coming.clear()
            stream = self._reconnect()

    def _reconnect(self) -> Stream | None:
        """Another connection, with all that is pending to be sent again; None: there will be none."""
        while True:
            with self._changed:
                if self._fatal is not None:
                    return None
            try:
                stream = self._connect()
            except NobodyListens as error:
                with self._changed:
                    self._give_up(ServerLost(gone_text(self.index, str(error).partition(". ")[0])))
                return None
            except NetworkError as error:  # its verbs have deadlines, and say why: nobody waits for ever
                with self._changed:
                    self._trouble = str(error).partition(". ")[0]
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._fatal is not None, STORE.dial_again)
                continue
            except HoldfastError as error:
                with self._changed:
                    self._give_up(StoreError(str(error)))
                return None
            with self._changed:
                self._stream, self._trouble = stream, ""
                for pending in self._pending.values():
                    if isinstance(pending.request, PushRequest):
                        pending.request = msgspec.structs.replace(pending.request, again=True)
                self._send_queue.renew(self._pending.values())
                if self._closed:
                    stream.close()
                return stream

    # ------------------------------------------------------------ the thread that sends

    def _send(self, stream: Stream, turn: int) -> None:
        try:
            while letter := self._next(turn):
                stream.send(*letter)
        except OSError:
            stream.close()  # the thread that receives sees it

    def _next(self, turn: int) -> list[bytes | memoryview] | None:
        """What is to be sent next; waits for it. None: this connection is over."""
        letters: list[bytes | memoryview] = []
        with self._changed:
            while self._turn == turn and not self._closed:
                for message, place in self._send_queue.several():
                    body = memoryview(b"") if place is None else self._memory.bytes(place)
                    letters += head(message, body.nbytes), body
                if letters:
                    return letters
                self._changed.wait()
        return None

    # ------------------------------------------------------------ the thread that receives

    def _receive(self, stream: Stream) -> None:
        box = FramedMessages(stream)
        while True:
            answer, size = box.answered()
            if isinstance(answer, Bytes):
                self._take(box, answer, size)
            elif size:
                raise FrameError(f"{size} bytes come with {type(answer).__name__}")
            else:
                self._hear(answer)

    def _take(self, box: FramedMessages, answer: Bytes, size: int) -> None:
        """Bytes of an answer: into the place that its request has for them, or into one of ours."""
        with self._changed:
            asked = self._pending.get(answer.id)
        if asked is None:
            box.skip(size)
            return
        request = asked.request
        if isinstance(request, Pull) and request.into is not None:
            place, region = request.into, self._memory
        else:
            if answer.id not in self._coming:
                try:
                    place = self.region.take(answer.size, f"The answer to {asked.what}")
                except ResourceError as error:
                    with self._changed:
                        self._end(asked, None, error)
                        self._changed.notify_all()
                    box.skip(size)
                    return
                self._coming[answer.id] = _Coming(place, Tie(partial(self.region.give, place)))
            place, region = self._coming[answer.id].place, self.region
        if answer.size != place.size or not 0 <= answer.begin <= answer.begin + size <= place.size:
            raise FrameError(f"{size} bytes at {answer.begin} of {answer.size} do not fit {place.size}")
        box.take(region.bytes(place.part(answer.begin, size)))

    def _hear(self, answer: Answer) -> None:
        with self._changed:
            if isinstance(answer, Welcome):
                self.pid = answer.pid
            elif isinstance(answer, Failed):
                error = complaint(answer)
                self._coming.pop(answer.id, None)
                if answer.id < 0:
                    self._give_up(error)
                elif (asked := self._pending.get(answer.id)) is not None:
                    self._end(asked, None, error)
            elif isinstance(answer, ValueView | Done):
                asked = self._pending.get(answer.id)
                if isinstance(answer, ValueView) and asked is not None:
                    coming = self._coming.pop(answer.id, None)
                    place = coming.place if coming is not None else Extent(0, 0, 0, 0)  # of an empty value
                    asked.tie = coming.tie if coming is not None else None
                    answer = msgspec.structs.replace(answer, place=place)
                if asked is not None:
                    self._end(asked, answer, None)
            self._changed.notify_all()
