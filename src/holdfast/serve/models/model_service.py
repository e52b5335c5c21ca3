"""A model as it is served: its requests, its replicas and its versions. What is decided is decided in `dispatch`.

It holds every request until it is answered. All of it runs in the event loop; nothing here waits.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast.config.limits import SERVING
from holdfast.errors import HoldfastError
from holdfast.model.manifest import ModelManifest
from holdfast.model.signature import Signature
from holdfast.serve.dispatch.dispatcher import Dispatcher, DispatchLimits
from holdfast.serve.dispatch.rollout import Command, End, Flip, Note, Rejected, Rollout, RolloutLimits, Start
from holdfast.serve.dispatch.waiting import WaitingRequest
from holdfast.serve.models.answers import Answer, Unanswered
from holdfast.serve.models.replica_pool import Replica, ReplicaPool
from holdfast.serve.models.replica_processes import ReplicaStarter
from holdfast.serve.models.statistics import RECENT, Duration, Recent, VersionStatistics
from holdfast.serve.protocol.requests import InferInput
from holdfast.serve.replica import messages as say

__all__ = ["ModelService", "VersionOnDisk"]

_GROWN = 0.9  # of the memory that a replica may have, at which it is replaced


class VersionOnDisk(NamedTuple):
    """A version that may be served."""

    path: Path
    manifest: ModelManifest


class _Held(WaitingRequest):
    """A request that a client waits for."""

    __slots__ = ("begun", "future", "id", "inputs", "version")

    def __init__(
        self, inputs: Sequence[InferInput], items: int, came: float, deadline: float, version: int,
        future: asyncio.Future[Answer], key: object,
    ) -> None:  # fmt: skip
        super().__init__(items, came, deadline, key, sum(len(tensor.data) for tensor in inputs))
        self.inputs, self.version, self.future = inputs, version, future
        self.begun, self.id = came, ""


class ModelService:
    """Serves one model under one name."""

    def __init__(
        self, name: str, processes: ReplicaStarter, note: Callable[[str], None], *, replicas: int,
        limits: DispatchLimits, rollout: RolloutLimits, memory: int = 0,
    ) -> None:  # fmt: skip
        self.name, self._memory = name, memory
        self._tell = note
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._now = time.monotonic  # the clock of uvloop counts milliseconds
        self._dispatcher = Dispatcher[_Held](limits)
        self._rollout = Rollout(rollout, limits.objective, replicas)
        self.versions: dict[int, VersionOnDisk] = {}
        self.manifest: ModelManifest | None = None  #: of the version that answers
        self.statistics: dict[int, VersionStatistics] = {}
        self.recent: deque[Recent] = deque(maxlen=RECENT)  #: the newest answers, the oldest of them first
        self.refusals = 0
        self.items = 0  #: that have come, taken or not
        self.closed = False  #: it takes nothing, for ever
        self.losses = 0  #: of replicas
        self._pool = ReplicaPool(processes, self)
        self._noted, self._not_noted = -math.inf, 0
        self._assigning = False
        self._draining = False
        self._idle = asyncio.Event()
        self._held = 0
        self.changed = asyncio.Event()  #: set when a version begins to answer, or is rejected
        self._timer = self._loop.call_later(SERVING.idle_look, self._tick)

    def _note(self, sentence: str) -> None:
        self._tell(f"{self.name}: {sentence}")

    def _note_failure(self, sentence: str) -> None:
        """What may be said of any request, and so is said once a second: the log of requests has them all."""
        now = self._now()
        if now - self._noted < 1.0:
            self._not_noted += 1
            return
        more = f" ({self._not_noted} more failed since the last such line)" if self._not_noted else ""
        self._noted, self._not_noted = now, 0
        self._note(sentence + more)

    # ------------------------------------------------------------ versions

    def offer(self, version: VersionOnDisk) -> str:
        """There is a version that may be served. Why it is not, if so."""
        if why := self._other(version.manifest):
            return why
        number = version.manifest.version
        if number not in self.versions:
            self._know(version)
            self._do(self._rollout.offer(number, self._now()))
        return self._rollout.refused.get(number, "")

    def demand(self, version: VersionOnDisk, *, only: bool) -> str:
        """An operator wants that version; `only`: and no other until the next demand. Why it cannot be, if so."""
        if why := self._other(version.manifest):
            return why
        self._know(version)
        self._do(self._rollout.demand(version.manifest.version, self._now(), only=only))
        return ""

    def _other(self, manifest: ModelManifest) -> str:
        if self.manifest is None or manifest.signature == self.manifest.signature:
            return ""
        return (
            f"version {manifest.version} of {self.name} takes or gives something else than version "
            f"{self.manifest.version}, which is served; serve it under another name"
        )

    def _know(self, version: VersionOnDisk) -> None:
        manifest = version.manifest
        self.versions[manifest.version] = version
        if not manifest.signature.batched:
            self._dispatcher.limits = self._limits._replace(batch=1)
        self._dispatcher.limits = self._dispatcher.limits._replace(retry=manifest.idempotent)

    @property
    def limits(self) -> DispatchLimits:
        """What holds for its queue and its batches."""
        return self._dispatcher.limits

    @property
    def current(self) -> int:
        """The version that answers; 0: none."""
        return self._rollout.current.number if self._rollout.current is not None else 0

    @property
    def coming(self) -> int:
        """The version that is being loaded, and would answer next; 0: none."""
        return self._rollout.candidate.number if self._rollout.candidate is not None else 0

    @property
    def ready(self) -> bool:
        """Does a replica answer?"""
        return bool(self._dispatcher.routed()) and not self._draining

    @property
    def waiting(self) -> int:
        """Items that no replica has begun."""
        return self._dispatcher.waiting.items

    @property
    def held_versions(self) -> set[int]:
        """Versions that replicas hold."""
        return {one.version for one in self._pool.replicas.values()}

    @property
    def starts(self) -> int:
        """How many replicas were started."""
        return self._pool.starts

    @property
    def refused_versions(self) -> dict[int, str]:
        """Versions that are not used, and why."""
        return self._rollout.refused

    @property
    def rate(self) -> float:
        """Items a second that its replicas can compute; 0: not known."""
        return self._dispatcher.rate

    @property
    def answering(self) -> int:
        """Replicas that take requests."""
        return len(self._dispatcher.routed())

    @property
    def oldest_wait(self) -> float:
        """Seconds for which the oldest request has waited that no replica has begun."""
        oldest = self._dispatcher.waiting.oldest()
        return self._now() - oldest.came if oldest is not None else 0.0

    def replicas(self) -> list[dict[str, object]]:
        """What there is to say of every replica."""
        return [
            {
                "replica": number, "pid": one.pid, "version": one.version, "stage": self._rollout.stage(number),
                "memory": one.memory, "busy": one.computing > 0,
            }
            for number, one in self._pool.replicas.items()
        ]  # fmt: skip

    def want(self, replicas: int) -> None:
        """Have so many replicas from now on."""
        self._do(self._rollout.want(replicas, self._now()))

    def replace(self, process: int, reason: str) -> bool:
        """Have another replica in the place of this one, which goes when that is ready. Whether it is going to be."""
        number = self._pool.numbered(process)
        if number is None or self._rollout.stage(number) != "ready":
            return False
        self._do(self._rollout.leave(number, self._now(), reason))
        return True

    # ------------------------------------------------------------ requests

    def check_room(self, version: int = 0, deadline: float = math.inf) -> None:
        """Raise Unanswered where a request would not be taken, before its body is read. `deadline`: monotonic time."""
        if self._draining:
            raise Unanswered(503, f"{self.name} is being shut down. Try another server.", 1.0)
        if version and version != self.current:
            raise Unanswered(404, f"Version {version} of {self.name} is not served; version {self.current} is.")
        if not self.current:
            raise Unanswered(503, f"{self.name} is not ready: no version of it has been loaded yet.", 1.0)
        if (refusal := self._dispatcher.refuses(1, deadline, self._now())) is not None:
            self._refuse(refusal.reason, refusal.retry_after)

    def infer(
        self, inputs: Sequence[InferInput], items: int, *, version: int = 0, deadline: float = math.inf, id: str = ""
    ) -> asyncio.Future[Answer]:
        """Take a request; its answer comes later. Raises Unanswered where it is not taken.

        The inputs are in the order of the signature, and fit it. A future that is cancelled is a client that is gone.
        """
        now = self._now()
        key = tuple([
            None if spec.padding is not None else tensor.shape[1:]
            for spec, tensor in zip(self._signature().inputs, inputs, strict=True)
        ])  # fmt: skip
        future: asyncio.Future[Answer] = self._loop.create_future()
        request = _Held(inputs, items, now, deadline, version, future, key)
        self.items += items
        request.id = id
        if (refusal := self._dispatcher.admit(request, now)) is not None:
            self._refuse(refusal.reason, refusal.retry_after)
        self._held += 1
        future.add_done_callback(lambda _: self._settled(request))
        self._assign_soon()
        return future

    def _signature(self) -> Signature:
        assert self.manifest is not None
        return self.manifest.signature

    def _refuse(self, reason: str, retry_after: float) -> None:
        self.refusals += 1
        if (stats := self.statistics.get(self.current)) is not None:
            stats.refused += 1
        raise Unanswered(503, f"{self.name} does not take this request: {reason}.", max(0.0, retry_after))

    def _settled(self, request: _Held) -> None:
        request.given_up = request.future.cancelled()
        if request.given_up and (stats := self.statistics.get(self.current)) is not None:
            stats.cancelled += 1
        self._held -= 1
        if self._draining and not self._held:
            self._idle.set()

    def _assign_soon(self) -> None:
        """Give out what waits, once all that has come with this turn of the event loop is in the queue."""
        if not self._assigning:
            self._assigning = True
            self._loop.call_soon(self._assign)

    def _assign(self) -> None:
        self._assigning = False
        now = self._now()
        for batch in self._dispatcher.assign(now):
            for request in batch.requests:
                request.begun = now
            try:
                self._pool.compute(batch.replica, [request.inputs for request in batch.requests])
            except HoldfastError as error:  # no memory for the batch: each request is tried alone, or fails
                self._note(f"a batch of {batch.items} items was not begun: {error}")
                failing = self._dispatcher.failed(batch.replica)
                self._fail(failing, Unanswered(503, f"{self.name} has no memory for this request now.", 1.0))
                self._assign_soon()

    def _fail(self, requests: Sequence[_Held], why: Unanswered, version: int = 0) -> None:
        """These have no answer; `version` is the one that failed, where it was one."""
        stats = self.statistics.get(version or self.current)
        now = self._now()
        for request in requests:
            if request.future.done():
                continue
            request.future.set_exception(why)
            if stats is None:
                continue
            if why.status == 503:
                stats.refused += 1
            elif why.status == 504:
                stats.timed_out += 1
            else:
                stats.failed.add(now - request.came)

    # ------------------------------------------------------------ replicas

    def _do(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, Start):
                self._start(command)
            elif isinstance(command, End):
                self._end(command)
            elif isinstance(command, Flip):
                self._flip(command)
            elif isinstance(command, Rejected):
                self._note(f"version {command.version} is not used: {command.reason}")
                self.changed.set()
            else:
                assert isinstance(command, Note)
                self._note(command.sentence)

    def _start(self, wanted: Start) -> None:
        version = self.versions[wanted.version]
        title = f"holdfast serve: replica {wanted.replica} of {self.name}, version {wanted.version}"
        load = say.Load(str(version.path), title, self._dispatcher.limits.batch, self._memory)
        self._pool.start(wanted.replica, wanted.version, version.manifest.signature, load)

    def _end(self, wanted: End) -> None:
        self._dispatcher.route(set(self._dispatcher.routed()) - {wanted.replica})
        if self._pool.end(wanted.replica, wanted.reason):
            self._dispatcher.lose(wanted.replica)

    def _end_if_due(self, replica: Replica) -> bool:
        """It computes nothing now: was it to go?"""
        if not replica.ending:
            return False
        self._pool.let_go(replica.number)
        self._dispatcher.lose(replica.number)
        return True

    def _flip(self, flip: Flip) -> None:
        self._dispatcher.route(set(flip.replicas))
        if self.manifest is None or self.manifest.version != flip.version:
            self.manifest = self.versions[flip.version].manifest
            self.statistics.setdefault(flip.version, VersionStatistics())
            for old in [number for number in self.versions if number < flip.version - 8]:
                self.versions.pop(old, None)
                self.statistics.pop(old, None)
        self.changed.set()
        self._assign_soon()

    def heard(self, replica: Replica, message: say.FromReplica) -> None:
        """A replica has said something."""
        number = replica.number
        if isinstance(message, say.Computed):
            self._computed(replica, message)
        elif isinstance(message, say.Raised):
            self._raised(replica, message)
        elif isinstance(message, say.Loaded):
            replica.loaded, replica.memory = True, message.memory
            self._dispatcher.join(number, list(message.measured))
            self._do(self._rollout.ready(number, self._now(), self._dispatcher.cost(number).expected(1)))
        elif isinstance(message, say.CannotLoad):
            self._pool.give_up(number, message.reason)
        else:
            assert isinstance(message, say.Leaving)
            self._do(self._rollout.leave(number, self._now(), "it was sent SIGTERM"))

    def _computed(self, one: Replica, message: say.Computed) -> None:
        number, now = one.number, self._now()
        one.memory = message.memory
        requests = self._dispatcher.computed(number, now, message.seconds)
        items = sum(request.items for request in requests)
        answers = one.link.answers(
            message, [request.inputs for request in requests], [request.items for request in requests]
        )
        bad = set(message.not_finite)
        stats = self.statistics.setdefault(one.version, VersionStatistics())
        stats.batches.setdefault(items, Duration()).add(message.seconds)
        stats.last = time.time()
        row, not_finite = 0, 0
        for request, outputs in zip(requests, answers, strict=True):
            mine = bad and not bad.isdisjoint(range(row, row + request.items))
            row += request.items
            if request.future.done():
                continue
            if request.version and request.version != one.version:
                text = f"Version {request.version} of {self.name} is not served any more; version {one.version} is."
                request.future.set_exception(Unanswered(404, text))
            elif mine:
                not_finite += 1
                text = "The model gave values that are not finite (NaN or infinite) for this request."
                self._fail([request], Unanswered(500, text), one.version)
            else:
                stats.succeeded.add(now - request.came)
                stats.latency.add(now - request.came)
                queued, computed = request.begun - request.came, now - request.begun
                stats.queued.add(queued)
                stats.queue_times.add(queued)
                stats.computed.add(computed)
                stats.compute_times.add(computed)
                stats.items += request.items
                self.recent.append(Recent(now - request.came, items, one.version))
                request.future.set_result(Answer(one.version, tuple(outputs), queued, computed))
        self._rollout.answered(one.version, answers=len(requests) - not_finite, not_finite=not_finite)
        if not_finite:
            self._do(self._rollout.look(now))
        if not self._end_if_due(one) and self._memory and one.memory > _GROWN * self._memory:
            reason = f"it has {one.memory >> 20} MiB of the {self._memory >> 20} that it may have"
            self._do(self._rollout.leave(number, now, reason))
        if self._dispatcher.waiting:
            self._assign()

    def _raised(self, one: Replica, message: say.Raised) -> None:
        failing = self._dispatcher.failed(one.number)
        if failing:
            ids = " ".join(request.id for request in failing if request.id)
            where = f" for request {ids}" if ids else ""
            self._note_failure(f"version {one.version} raised {message.kind}{where}: {message.message}")
            # What it said may tell of files and code: that is in the log, and the client learns the kind.
            told = f"The model raised {message.kind} for this request."
            self._fail(failing, Unanswered(500, told, detail=f"{message.kind}: {message.message}"), one.version)
            self._rollout.answered(one.version, failures=len(failing))
            self._do(self._rollout.look(self._now()))
        self._end_if_due(one)
        self._assign_soon()

    def gone(self, replica: Replica, how: str) -> None:
        """A process has ended, for certain: what it was computing is computed by another one."""
        number, one = replica.number, replica
        lost = self._dispatcher.lose(number)
        if lost.requests:
            text = f"{self.name} could not answer this request: {lost.reason}."
            self._fail(lost.requests, Unanswered(500, text), one.version)
            self._rollout.answered(one.version, failures=len(lost.requests))
        if not one.ending:
            self.losses += 1
            doing = f"; the {one.computing} requests it had go to others" if one.computing else ""
            self._note(f"replica {number} is lost: {one.reason or how}{doing}")
            self._do(self._rollout.lost(number, self._now(), one.reason or how))
        self._assign_soon()

    # ------------------------------------------------------------ time

    def _tick(self) -> None:
        now = self._now()
        self._pool.give_up_stopped(self._dispatcher.late(now))
        for number in self._dispatcher.hung(now):
            self._pool.give_up(number, f"it has computed one batch for more than {self._limits.hang:.0f} s")
        over = self._dispatcher.remove_if_over(now)
        self._fail(
            [request for request in over if not request.given_up],
            Unanswered(504, f"{self.name} could not answer within the time that the client has set."),
        )
        self._do(self._rollout.look(now))
        busy = bool(self._dispatcher.waiting) or self._dispatcher.busy
        self._timer = self._loop.call_later(SERVING.busy_look if busy else SERVING.idle_look, self._tick)
        if self._dispatcher.waiting:
            self._assign_soon()

    async def drain(self, seconds: float) -> None:
        """Take nothing more, and answer what was taken; wait for that so long at the most."""
        self._draining = True
        if self._held:
            self._idle.clear()
            try:
                await asyncio.wait_for(self._idle.wait(), seconds)
            except TimeoutError:
                self._note(f"{self._held} requests were not answered within {seconds:.0f} s")

    async def end(self, seconds: float) -> None:
        """Answer what was taken, within so many seconds; then end all replicas, which are gone when this returns."""
        await self.drain(seconds)
        for number in list(self._pool.replicas):
            self._dispatcher.lose(number)
            self._pool.let_go(number)
        self.close()
        await self._pool.until_gone()

    def close(self) -> None:
        """End it. The processes are ended by who has started them."""
        self.closed = True
        self._timer.cancel()
        self._pool.close()
        self._fail(list(self._dispatcher.waiting), Unanswered(503, f"{self.name} was shut down.", 1.0))
