"""The dispatcher of a server: which request is served when, and what comes of it. No sockets here.

Requests stand in the line of their key (see `key_queue`). A push of a whole value is taken up while its bytes still
come, if the handler allows it; it is published when all of them are here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from holdfast.errors import HandlerFailed, HoldfastError
from holdfast.store.dedup import DedupVerdict
from holdfast.store.handlers import Handler, is_elementwise
from holdfast.store.heap import Extent
from holdfast.store.messages import (
    Answer,
    Done,
    Failed,
    Grown,
    Init,
    JoinRound,
    Meta,
    Open,
    Partly,
    Pull,
    PushRequest,
    ReleaseView,
    Request,
    Say,
    ValueView,
    check_alike,
)
from holdfast.store.region import Owned, Region
from holdfast.store.server.barriers import Answers, Barriers
from holdfast.store.server.key_queue import KeyQueue
from holdfast.store.server.ledger import Ledger
from holdfast.store.server.partial_push import PartialPush
from holdfast.store.server.rounds import Clients
from holdfast.store.server.stored_value import StoredValue
from holdfast.store.server.values import Values
from holdfast.store.tensors import TensorCache, checked_rows

__all__ = ["ClientRecord", "Dispatcher"]


class ClientRecord:
    """A client that is connected: its name, its number in the ledger, its memory, and how it is answered."""

    def __init__(self, name: str, number: int, memory: Region, answer: Callable[[Answer], None]) -> None:
        self.name, self.number, self.memory, self.answer = name, number, memory, answer
        self._values = TensorCache(memory)

    def value(self, place: Extent, meta: Meta) -> Tensor:
        """What lies at a place of its memory."""
        return self._values.at(place, meta)

    def close(self) -> None:
        """It is gone."""
        self._values.clear()
        self.memory.close()


class Job:
    """A request that stands in the line of its key."""

    def __init__(self, peer: ClientRecord, request: PushRequest | Pull | Init) -> None:
        self.peer, self.request = peer, request
        self.here = request.here if isinstance(request, PushRequest) else 0
        self.applying: PartialPush | None = None
        self.pushed: Tensor | None = None

    @property
    def whole(self) -> bool:
        return not isinstance(self.request, PushRequest) or self.here >= self.request.value.size


class Dispatcher:
    """All that one server does for its visitors."""

    def __init__(self, region: Owned, ledger: Ledger, handler: Handler, server: int) -> None:
        self._ledger = ledger
        self._values = Values(region, ledger, handler, server)
        self._room = Barriers(ledger, self._values)
        self._here: dict[str, ClientRecord] = {}
        self._lines: dict[str, KeyQueue[Job]] = {}
        self._growing: dict[tuple[str, int], Job] = {}

    def enter(self, client_record: ClientRecord, looks: tuple[tuple[str, int], ...]) -> None:
        """A client is here, and looks at these buffers since before."""
        self._here[client_record.name] = client_record
        self._values.came(client_record.name, looks)

    def leave(self, client_record: ClientRecord) -> None:
        """A client is gone. What it had pushed in whole counts; the rest never was."""
        del self._here[client_record.name]
        self._values.left(client_record.name)
        self._room.lose(client_record.name)
        for key, line in self._lines.items():
            for job in [job for job in line if job.peer is client_record]:
                if not job.whole or isinstance(job.request, Pull):
                    line.leave(job)
                    self._growing.pop((client_record.name, job.request.id), None)
            self._serve(key)

    def close(self) -> None:
        """Look away from all memory, so that it can be unmapped."""
        self._lines.clear()
        self._growing.clear()
        self._room.close()
        self._values.close()

    def heed(self, client_record: ClientRecord, message: Say) -> None:
        """Do what a client asks for, or put it in line."""
        try:
            self._heed(client_record, message)
        except HoldfastError as error:
            self._fail(client_record, getattr(message, "id", -1), error)

    def _heed(self, peer: ClientRecord, message: Say) -> None:
        match message:
            case PushRequest() | Pull() | Init():
                self._queue(peer, message)
            case Grown():
                self._grown(peer, message)
            case ReleaseView():
                self._values.release(message.key, message.buffer, peer.name)
            case Open():
                self._open(peer, message)
            case JoinRound():
                self._meet(peer, message)

    def _fail(self, peer: ClientRecord, id_: int, error: HoldfastError) -> None:
        peer.answer(Failed(id_, type(error).__name__, str(error)))

    def _open(self, peer: ClientRecord, message: Open) -> None:
        if message.key.startswith("\0"):
            done, here, awaited = self._room.stands(message.key)
            peer.answer(Done(message.id, None, done, here, awaited=awaited))
            return
        held = self._values.get(message.key)
        dedup = self._ledger.dedup(held.number, peer.number)
        peer.answer(Done(message.id, held.meta, dedup.last, counted=dedup.counted))

    def _queue(self, peer: ClientRecord, message: PushRequest | Pull | Init) -> None:
        job = Job(peer, message)
        line = self._lines.get(message.key)
        if line is None:
            line = self._lines[message.key] = KeyQueue(lambda job: job.peer.name, lambda job: job.whole)
        line.join(job)
        if not job.whole:
            self._growing[peer.name, message.id] = job
        self._serve(message.key)

    def _grown(self, peer: ClientRecord, message: Grown) -> None:
        job = self._growing.get((peer.name, message.id))
        if job is not None:
            job.here = message.here
            if job.whole:
                del self._growing[peer.name, message.id]
            self._serve(job.request.key)

    def _meet(self, peer: ClientRecord, message: JoinRound) -> None:
        value = None
        if message.value is not None and message.meta is not None:
            value = peer.value(message.value, message.meta)
        self._tell(self._room.arrive(peer.name, message, value))

    def meets(self, crew: Clients) -> None:
        """Who belongs to the crew of the run has changed."""
        self._tell(self._room.meets(crew))

    def _tell(self, answers: Answers) -> None:
        for client, answer in answers:
            if (other := self._here.get(client)) is not None:
                other.answer(answer)

    # ------------------------------------------------------------ the line of a key

    def _serve(self, key: str) -> None:
        line = self._lines[key]
        while (job := line.next()) is not None:
            line.leave(job)
            try:
                self._do(job)
            except HoldfastError as error:
                self._settle_failed(job)
                self._fail(job.peer, job.request.id, error)
        first = line.first()
        if first is not None and first.here and is_elementwise(self._values.handler):
            try:
                self._begin(first)
                self._show_early(first)
            except HoldfastError as error:
                line.leave(first)
                self._growing.pop((first.peer.name, first.request.id), None)
                self._settle_failed(first)
                self._fail(first.peer, first.request.id, error)

    def _do(self, job: Job) -> None:
        peer, request = job.peer, job.request
        if isinstance(request, Init):
            held = self._values.init(request.key, request.meta, peer.value(request.value, request.meta))
            peer.answer(Done(request.id, held.meta, self._ledger.dedup(held.number, peer.number).last))
        elif isinstance(request, Pull):
            held = self._values.get(request.key)
            if request.rows is None or request.into is None:
                self._show(peer, held, request)
            else:
                self._gather(peer, held, request)
        else:
            self._push(job, request)

    def _push(self, job: Job, request: PushRequest) -> None:
        peer = job.peer
        held = self._values.get(request.key)
        verdict = self._judge(held, peer, request)
        if verdict is DedupVerdict.FAILED:
            raise HandlerFailed(
                f"A push of client {peer.name!r} on key {held.name!r} has failed, and was not applied; why was lost "
                "with the server that said so. Push it again to be told."
            )
        if verdict is DedupVerdict.NEW and request.rows is None:
            self._begin(job)
            assert job.applying is not None
            self._show_early(job)
            dedup = self._ledger.dedup(held.number, peer.number).settle(request.number, ok=True)
            self._values.publish(job.applying, peer.number, dedup)
        elif verdict is DedupVerdict.NEW:
            self._push_rows(peer, held, request)
        if request.pull:
            self._show(peer, held, request)
        else:
            peer.answer(Done(request.id))

    def _judge(self, held: StoredValue, peer: ClientRecord, request: PushRequest) -> DedupVerdict:
        """Is it to be applied? One that had failed is, if its client knows and tries again under the same number."""
        verdict = self._ledger.dedup(held.number, peer.number).judge(request.number)
        return DedupVerdict.NEW if verdict is DedupVerdict.FAILED and not request.again else verdict

    def _settle_failed(self, job: Job) -> None:
        """Write down that a push has failed, so that it is not taken for applied when later ones have been."""
        if isinstance(job.request, PushRequest) and (held := self._values.find(job.request.key)) is not None:
            dedup = self._ledger.dedup(held.number, job.peer.number)
            if dedup.judge(job.request.number) is DedupVerdict.NEW:
                self._values.fail(held, job.peer.number, dedup.settle(job.request.number, ok=False))

    def _begin(self, job: Job) -> None:
        """Take up a push of a whole value, as far as it is here."""
        peer, request = job.peer, job.request
        assert isinstance(request, PushRequest)
        held = self._values.get(request.key)
        if self._judge(held, peer, request) is not DedupVerdict.NEW:
            return
        if job.applying is None or job.pushed is None:
            check_alike(held.name, held.meta, request.meta, "pushes")
            job.pushed = peer.value(request.value, request.meta)
            job.applying = PartialPush(held, job.pushed, self._values.handler, self._values.spare)
        self._values.guarded(held, peer.number, job.pushed, partial(job.applying.advance, job.here))

    def _show_early(self, job: Job) -> None:
        """Say how far the next version is made, to somebody who can use it before it is published."""
        push, applying = job.request, job.applying
        if (
            isinstance(push, PushRequest)
            and push.early
            and applying is not None
            and is_elementwise(self._values.handler)
        ):
            meta = applying.held.meta
            job.peer.answer(Partly(push.id, meta, applying.place, applying.made, applying.attempt))

    def _push_rows(self, peer: ClientRecord, held: StoredValue, request: PushRequest) -> None:
        assert request.rows is not None
        indices = peer.value(request.rows, Meta("int64", (request.rows.size // 8,), peer.name))
        checked_rows(indices, held.meta, held.name)
        alike = Meta(request.meta.dtype, held.meta.shape[:1] + request.meta.shape[1:], peer.name, request.meta.rows)
        check_alike(held.name, held.meta, alike, "pushes rows of")
        values = peer.value(request.value, request.meta)
        dedup = self._ledger.dedup(held.number, peer.number).settle(request.number, ok=True)
        act = partial(self._values.push_rows, held, indices, values, peer.number, dedup)
        self._values.guarded(held, peer.number, values, act)

    def _gather(self, peer: ClientRecord, held: StoredValue, request: Pull) -> None:
        assert request.rows is not None
        assert request.into is not None
        indices = peer.value(request.rows, Meta("int64", (request.rows.size // 8,), peer.name))
        checked_rows(indices, held.meta, held.name)
        meta = Meta(held.meta.dtype, (len(indices), *held.meta.shape[1:]), held.meta.by, held.meta.rows)
        torch.index_select(held.value, 0, indices, out=peer.value(request.into, meta))
        peer.answer(Done(request.id, meta))

    def _show(self, peer: ClientRecord, held: StoredValue, request: Request) -> None:
        if self._here.get(peer.name) is not peer:
            return  # it is gone: nobody would release it
        place = held.places[held.current]
        assert place is not None
        buffer = self._values.look(held, peer.name)
        peer.answer(ValueView(request.id, held.name, held.meta, place, buffer, held.version))
