"""The autoscaler of a model: looks a few times a second what its service had to do, and does what `scaling` says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from holdfast.config.limits import SERVING
from holdfast.serve.dispatch.scaling import Load, Scaling
from holdfast.serve.models.model_service import ModelService

__all__ = ["autoscale"]


async def autoscale(service: ModelService, scaling: Scaling, say: Callable[[str], None]) -> None:
    """Keep the number of replicas right, until the service is closed."""
    meter = _Meter(service)
    while not service.closed:
        await asyncio.sleep(SERVING.scaling_look)
        decision = scaling.look(meter.read(), time.monotonic())
        if decision is not None:
            say(f"{service.name}: {decision.reason}")
            service.want(decision.replicas)


class _Meter:
    """What has happened since the last reading."""

    def __init__(self, service: ModelService) -> None:
        self._service = service
        self._items = self._refusals = self._begun = 0
        self._queued = 0.0

    def read(self) -> Load:
        service, stats = self._service, list(self._service.statistics.values())
        begun, queued = sum(one.queued.count for one in stats), sum(one.queued.seconds for one in stats)
        # What waits now counts as well: a queue from which nothing is taken has no average.
        waited = max(service.oldest_wait, (queued - self._queued) / max(1, begun - self._begun))
        refused = service.refusals - self._refusals
        load = Load(service.items - self._items, refused, max(0.0, waited), service.rate, service.answering)
        self._items, self._refusals, self._begun, self._queued = service.items, service.refusals, begun, queued
        return load
