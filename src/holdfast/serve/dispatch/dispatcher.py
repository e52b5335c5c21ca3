"""The dispatcher of a model: which replica computes which requests, and which requests are refused. Pure.

Everything waits in one queue, and a replica that is free takes from it what it can compute in half of the objective: so
an answer waits for at most one other batch, and a slow machine takes smaller batches. Nobody waits for a batch to
become full: where requests come faster than they are computed, batches grow by themselves.

A request that was taken is answered. If its replica is lost, it goes back to the head of the queue. So what cannot be
answered in time is refused when it comes (`admit`), before anything was done for it. Where requests wait too long all
the same, fewer may wait (`_share`).

Lives here: all that changes when a request, a batch or a replica comes or goes. Which replicas there should be is
decided in `rollout`.
"""

from __future__ import annotations

import math
from typing import Generic, NamedTuple

from holdfast.config.limits import SERVING
from holdfast.serve.dispatch.cost import Cost
from holdfast.serve.dispatch.waiting import R, Waiting

__all__ = ["Batch", "DispatchLimits", "Dispatcher", "Lost", "Refusal"]


class DispatchLimits(NamedTuple):
    """What a model's queue and batches may grow to."""

    objective: float = 0.05  #: seconds within which nearly all answers are to be given
    batch: int = 256  #: items that are computed together at the most; 1 where a model takes no batches
    items: int = 10_000  #: that may wait
    bytes: int = 1 << 30  #: that may wait
    tries: int = 3  #: replicas that may be lost over a request before it fails
    hang: float = 10.0  #: seconds after which a replica that computes one batch is taken for hung, at the least
    retry: bool = True  #: may a request be computed again whose replica was lost?


class Refusal(NamedTuple):
    """Why a request is not taken, and when it may be tried again."""

    reason: str
    retry_after: float


class Batch(NamedTuple, Generic[R]):
    """What one replica computes at once."""

    replica: int
    requests: list[R]
    items: int
    since: float


class Lost(NamedTuple, Generic[R]):
    """Requests that fail because of their replica's loss, each for the same reason."""

    requests: list[R]
    reason: str


class _Replica(Generic[R]):
    __slots__ = ("batch", "cap", "cost", "rate", "routed", "way")

    def __init__(self, cost: Cost) -> None:
        self.cost, self.routed = cost, False
        self.batch: Batch[R] | None = None
        self.cap, self.rate = 1, 0.0
        self.way = 0.0  # seconds that a batch takes besides: to the replica, back, and until the answer is looked at

    def slow(self, items: int) -> float:
        """Seconds after which a batch that is given to it now is nearly always answered."""
        return self.cost.slow(items) + self.way


_LEAST_SHARE = 0.25  # of the room, however late answers are


class Dispatcher(Generic[R]):
    """Queue and replicas of one model."""

    def __init__(self, limits: DispatchLimits) -> None:
        self.limits = limits
        self.waiting: Waiting[R] = Waiting()
        self._replicas: dict[int, _Replica[R]] = {}
        # Of all replicas that take requests: items a second, and items that they take at once. 0: not known yet.
        self._rate, self._room = 0.0, 0
        self._share = 1.0  # of that room that may be waited for

    # ------------------------------------------------------------ replicas

    def join(self, replica: int, measured: list[tuple[int, float]]) -> None:
        """A replica has loaded its version, and computed batches of these sizes in so many seconds."""
        cost = Cost()
        for items, seconds in measured:
            cost.learn(items, seconds)
        self._replicas[replica] = _Replica(cost)
        self._rated(self._replicas[replica])

    def route(self, replicas: set[int]) -> None:
        """From now on these take what is waiting, and no others: the flip from one version to the next."""
        for number, one in self._replicas.items():
            one.routed = number in replicas
        self._sum_rates()

    def routed(self) -> list[int]:
        """The replicas that take requests."""
        return [number for number, one in self._replicas.items() if one.routed]

    def lose(self, replica: int) -> Lost[R]:
        """A replica is gone. What it was computing goes first again; what may not be is to fail."""
        one = self._replicas.pop(replica, None)
        self._sum_rates()
        if one is None or one.batch is None:
            return Lost([], "")
        for request in one.batch.requests:
            request.tries += 1
            request.alone = request.alone or request.tries > 1  # it may be what replicas die of
        if not self.limits.retry:
            return Lost(one.batch.requests, "its replica was lost, and this model's requests may not be computed twice")
        failing = [request for request in one.batch.requests if request.tries >= self.limits.tries]
        self.waiting.put_back([request for request in one.batch.requests if request.tries < self.limits.tries])
        return Lost(failing, f"{self.limits.tries} replicas were lost while they computed it")

    # ------------------------------------------------------------ requests

    def admit(self, request: R, now: float) -> Refusal | None:
        """Take a request, or say why not."""
        if refusal := self.refuses(request.items, request.deadline, now):
            return refusal
        limits = self.limits
        if self.waiting.items + request.items > limits.items or self.waiting.bytes + request.size > limits.bytes:
            return Refusal(f"{self.waiting.items} items are waiting already", max(1.0, self.forecast(0, now)))
        self.waiting.append(request)
        return None

    def refuses(self, items: int, deadline: float, now: float) -> Refusal | None:
        """Would a request of so many items be answered too late? It can be asked before the request was read.

        What waits is to be begun within half of the objective, as a batch takes the other half: so much as replicas
        compute in that time, and at least the next batch of each. So there is always one for a replica that becomes
        free, however many are turned away.
        """
        if deadline < math.inf:
            forecast = self.forecast(items, now)
            if deadline <= now:
                return Refusal("its time is over", 0.0)
            if forecast <= deadline - now:
                return None
            allowed = f"and {1000 * (deadline - now):.0f} ms are allowed"
            return Refusal(f"it would be answered after {1000 * forecast:.0f} ms, {allowed}", forecast)
        room = max(self._room, self._rate * self.limits.objective / 2) * self._share
        if not self.waiting.items or not self._room or self.waiting.items + items <= room:
            return None
        late = f"it could not be answered within {1000 * self.limits.objective:.0f} ms"
        return Refusal(f"{late}, as {self.waiting.items} items are waiting already", self.forecast(items, now))

    def forecast(self, items: int, now: float) -> float:
        """In how many seconds a request that comes now is likely to be answered; 0 where nothing is known."""
        if not self._rate:
            return 0.0
        ahead, free, slowest = self.waiting.items, False, 0.0
        left, busy = 0.0, 0
        for one in self._replicas.values():
            if not one.routed:
                continue
            if one.batch is None:
                free = True
            else:
                left += max(0.0, one.batch.since + one.way + one.cost.expected(one.batch.items) - now)
                busy += 1
            slowest = max(slowest, one.slow(min(one.cap, ahead + items)))
        if free and not ahead:
            return slowest
        return left / max(1, busy) + ahead / self._rate + slowest

    def assign(self, now: float) -> list[Batch[R]]:
        """Give free replicas what is waiting. The shell sends each batch to its replica."""
        if not self.waiting:
            return []
        free = [(number, one) for number, one in self._replicas.items() if one.routed and one.batch is None]
        if len(free) > 1:
            free.sort(key=lambda item: item[1].way + item[1].cost.expected(1))
        given = []
        for at, (number, one) in enumerate(free):
            if not self.waiting:
                break
            share = -(-self.waiting.items // (len(free) - at))
            requests = self.waiting.take(min(one.cap, share))
            one.batch = Batch(number, requests, sum(request.items for request in requests), now)
            given.append(one.batch)
        return given

    def computed(self, replica: int, now: float, seconds: float) -> list[R]:
        """A replica has computed its batch, in so many seconds by its own clock. The requests in their order.

        What it took besides is learned apart: it does not grow with the batch, and where the front door itself is
        behind, small batches would be the wrong conclusion.
        """
        one = self._replicas[replica]
        batch = self._end(one)
        one.cost.learn(batch.items, seconds)
        one.way += 0.1 * (max(0.0, now - batch.since - seconds) - one.way)
        self._rated(one)
        # Half of the objective is for the batch. What the machine takes besides is not shorter with a shorter queue.
        late = batch.since - batch.requests[0].came > self.limits.objective / 2
        self._share = max(_LEAST_SHARE, 0.95 * self._share) if late else min(1.0, 1.01 * self._share)
        return batch.requests

    def failed(self, replica: int) -> list[R]:
        """The model has raised. The requests that fail: of a batch of several none, each of these is tried alone."""
        batch = self._end(self._replicas[replica])
        if len(batch.requests) == 1:
            return batch.requests
        for request in batch.requests:
            request.alone = True
        self.waiting.put_back(batch.requests)
        return []

    # ------------------------------------------------------------ time

    def late(self, now: float) -> list[int]:
        """Replicas whose batch takes longer than it should: they may have been stopped."""
        return [
            number for number, one in self._replicas.items()
            if one.batch is not None
            and now - one.batch.since > max(SERVING.late, 4.0 * one.slow(one.batch.items) if one.cost.known else 1.0)
        ]  # fmt: skip

    def hung(self, now: float) -> list[int]:
        """Replicas whose batch will not come any more."""
        return [
            number for number, one in self._replicas.items()
            if one.batch is not None
            and now - one.batch.since > max(self.limits.hang, 20.0 * one.slow(one.batch.items))
        ]  # fmt: skip

    def remove_if_over(self, now: float) -> list[R]:
        """Requests that nobody has begun and nobody waits for any more: they are out of the queue now."""
        return self.waiting.remove_if_over(now)

    # ------------------------------------------------------------ facts

    @property
    def busy(self) -> int:
        """How many replicas compute a batch."""
        return sum(one.batch is not None for one in self._replicas.values())

    @property
    def rate(self) -> float:
        """Items a second that all replicas which take requests can compute; 0: not known."""
        return self._rate

    def cost(self, replica: int) -> Cost:
        """What was learned of it."""
        return self._replicas[replica].cost

    def _end(self, one: _Replica[R]) -> Batch[R]:
        assert one.batch is not None, "a replica has answered a batch that it was not given"
        batch, one.batch = one.batch, None
        return batch

    def _rated(self, one: _Replica[R]) -> None:
        rate, cap = one.rate, one.cap
        one.cap = min(self.limits.batch, one.cost.fitting(self.limits.objective / 2))
        one.rate = one.cap / (one.cost.expected(one.cap) + one.way) if one.cost.known else 0.0
        if one.routed:
            self._rate += one.rate - rate
            self._room += one.cap - cap

    def _sum_rates(self) -> None:
        routed = [one for one in self._replicas.values() if one.routed]
        self._rate, self._room = sum(one.rate for one in routed), sum(one.cap for one in routed)
