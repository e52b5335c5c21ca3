"""A proxy: speaks to one server of this host for one client of another host.

To the server it is a client like any other, with memory of its own: what the far client pushes is received straight
into it, and the server takes it up as it comes. What the server shows is sent from the server's memory. It remembers
nothing beyond its connections: when the server dies it ends, the client connects again, and repeats what was not
answered. Two threads, one for each direction. No torch here.

Bytes of a version may go out before that version is published (`Partly`), so both directions are busy at once. The
client counts them only when the version is; before that is said, the proxy makes sure that the server was alive until
they were out, since nobody else kept them from being written over.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from holdfast.config.limits import STORE
from holdfast.errors import FrameError, HoldfastError, ResourceError
from holdfast.store.diagnostics import complain
from holdfast.store.heap import Extent
from holdfast.store.messages import (
    Answer,
    Bytes,
    Done,
    Failed,
    Grown,
    Hello,
    Init,
    JoinRound,
    Open,
    Partly,
    Pull,
    PushRequest,
    ReleaseView,
    Request,
    ValueView,
    Welcome,
    answers,
    pack,
)
from holdfast.store.payload import moved, payload_of, run_length
from holdfast.store.region import Owned, Region, create
from holdfast.store.remote.framing import FramedMessages, head
from holdfast.transport.link import DescriptorsLost, Link
from holdfast.transport.stream import Stream

__all__ = ["ClientProxy"]

_ASKING = (Open, Init, PushRequest, Pull, JoinRound)


class _Kept(NamedTuple):
    """The request that a place belongs to, and its payload."""

    request: Request
    place: Extent


def _room(request: Request, size: int) -> int:
    """Bytes to set aside. Rows come in all numbers, so their places are rounded up: then they fit the next ones."""
    return 1 << size.bit_length() if isinstance(request, PushRequest | Pull) and request.rows is not None else size


class ClientProxy:
    """Between the client at the other end of `stream` and the server at the abstract socket `name`.

    `ended(proxy)` is called when it is over, in a thread of its own. Raises OSError where there is no server.

    Resources: owns the stream, its link to the server and its memory; all are closed when it is over. `close` ends it.
    """

    def __init__(self, stream: Stream, client: str, name: str, ended: Callable[[ClientProxy], None]) -> None:
        self.client, self._stream, self._ended = client, stream, ended
        self._link = Link.dial(name, STORE.dial)
        self._memory = Owned(create())
        self._region: Region | None = None  # the server's
        self._kept: dict[int, _Kept] = {}
        self._sending = threading.Lock()  # a letter is sent in one go
        self._sent: dict[int, tuple[int, int]] = {}  # of values on their way out: attempt, and bytes that are out
        self._link.send(pack(Hello(client, far=True)), [self._memory.fd])
        self._down = threading.Thread(target=self._answer, name="holdfast-store-proxy-out", daemon=True)
        self._up = threading.Thread(target=self._listen, name="holdfast-store-proxy-in", daemon=True)
        self._up.start()

    def close(self) -> None:
        """End it; waits for its threads."""
        self._end()
        self._up.join()

    def refuse(self, kind: str, text: str) -> None:
        """Tell the client why this is the end, if it still listens, and end."""
        if self._sending.acquire(timeout=STORE.last_words):  # a client that reads nothing hears nothing
            with contextlib.suppress(OSError):
                self._stream.settimeout(STORE.last_words)
                self._stream.send(head(Failed(-1, kind, text)))
            self._sending.release()
        self._end()

    def _end(self) -> None:
        self._link.end()
        self._stream.close()

    # ------------------------------------------------------------ from the client

    def _listen(self) -> None:
        self._down.start()
        try:
            box = FramedMessages(self._stream)
            while True:
                self._hear(box, *box.said())
        except (EOFError, OSError):
            pass  # it is gone, or the server is; it connects again
        except HoldfastError as error:
            why = f"{error.what}. Both sides must be of one version." if isinstance(error, FrameError) else error
            self.refuse("StoreError", f"What client {self.client!r} sent cannot be read: {why}")
        finally:
            self._end()
            self._down.join()
            self._link.close()
            self._memory.close()
            if self._region is not None:
                self._region.close()
            self._ended(self)

    def _hear(self, box: FramedMessages, message: object, size: int) -> None:
        if not isinstance(message, _ASKING):
            raise FrameError(f"{type(message).__name__} has no business on this connection")
        payload = payload_of(message)
        if payload is None:
            box.skip(size)
            self._say(message)
            return
        if not 0 <= size <= payload.sent <= payload.place.size:
            raise FrameError(f"{size} bytes come with a request that has {payload.sent}")
        try:
            whole = self._memory.take(_room(message, payload.place.size), f"A request of client {self.client!r}")
        except ResourceError as error:
            self._post(head(Failed(message.id, "ResourceError", str(error))))
            self._gather(box, message, size, payload.sent, None)
            return
        place = whole.part(0, payload.place.size)
        request = moved(message, payload.place, place)
        self._kept[message.id] = _Kept(request, whole)
        if isinstance(request, PushRequest) and request.rows is None:
            box.take(self._memory.bytes(place.part(0, size)))
            self._say(msgspec.structs.replace(request, here=size, early=request.pull))
            self._gather(box, message, size, payload.sent, place, lambda here: self._say(Grown(message.id, here)))
            return
        box.take(self._memory.bytes(place.part(0, size)))
        self._gather(box, message, size, payload.sent, place)
        self._say(request)

    def _gather(
        self, box: FramedMessages, message: Request, here: int, size: int, place: Extent | None,
        told: Callable[[int], None] = lambda here: None,
    ) -> None:  # fmt: skip
        """The rest of a request's bytes, of which `here` have come; they are thrown away where there is no place."""
        if place is None:
            box.skip(here)
        while here < size:
            more, length = box.said()
            if (
                not isinstance(more, Bytes)
                or (more.id, more.begin) != (message.id, here)
                or not 0 < length <= size - here
            ):
                raise FrameError(f"{length} bytes with {type(more).__name__} come where byte {here} of {size} is due")
            if place is None:
                box.skip(length)
            else:
                box.take(self._memory.bytes(place.part(here, length)))
            here += length
            told(here)

    def _say(self, message: Request | Grown | ReleaseView) -> None:
        if not self._link.send(pack(message)):
            raise EOFError  # the server is gone

    # ------------------------------------------------------------ from the server

    def _answer(self) -> None:
        try:
            while (frame := self._link.recv()) is not None:
                for answer in answers(frame.data):
                    if isinstance(answer, Welcome):
                        (fd,) = frame.fds
                        self._region = Region(fd, writable=False)
                    self._pass_on(answer)
        except DescriptorsLost as error:  # the client connects again
            complain(f"The connection of client {self.client!r} is let go. {error}")
        except (EOFError, OSError):
            pass  # the server is gone: the client connects again
        finally:
            self._end()

    def _pass_on(self, answer: Answer) -> None:
        if isinstance(answer, Partly):
            if self._sent.get(answer.id, (0, 0))[0] != answer.attempt:
                self._sent[answer.id] = answer.attempt, 0
            self._show(answer.id, self._region, answer.place, answer.here)
            return
        if isinstance(answer, ValueView):
            self._show(answer.id, self._region, answer.place, answer.place.size)
        kept = self._kept.pop(answer.id, None) if isinstance(answer, Done | ValueView | Failed) else None
        if isinstance(answer, Done) and kept is not None and isinstance(kept.request, Pull) and kept.request.into:
            self._show(answer.id, self._memory, kept.request.into, kept.request.into.size)
        if self._link.ended and not isinstance(answer, Failed):
            raise EOFError  # what was sent may have been written over meanwhile, and counts for nothing
        self._post(head(answer))
        if isinstance(answer, Done | ValueView | Failed):
            self._sent.pop(answer.id, None)
        if isinstance(answer, ValueView):
            self._say(ReleaseView(answer.key, answer.buffer))
        if kept is not None:
            self._memory.give(kept.place)

    def _show(self, id_: int, region: Region | None, place: Extent, here: int) -> None:
        """Send the bytes of a value that are not out yet, up to `here`."""
        assert region is not None
        attempt, sent = self._sent.get(id_, (0, 0))
        while sent < here:
            size = min(here - sent, run_length(place.size))
            self._post(head(Bytes(id_, sent, place.size), size), region.bytes(place.part(sent, size)))
            sent += size
            self._sent[id_] = attempt, sent

    def _post(self, *parts: bytes | memoryview) -> None:
        with self._sending:
            self._stream.send(*parts)
