"""The models of a server by their names, and what it tells clients of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.model.library import Version
from holdfast.model.manifest import EXAMPLE
from holdfast.serve.models.answers import Unanswered
from holdfast.serve.models.model_service import ModelService
from holdfast.serve.models.statistics import Duration
from holdfast.serve.protocol import metadata
from holdfast.serve.protocol.metadata import BatchStatistics, ModelIndex, ModelStatistics, StatisticDuration

__all__ = ["Catalog"]

_MOST_EXAMPLE = 4 << 20


class Catalog:
    """All models that are served."""

    def __init__(self) -> None:
        self.services: dict[str, ModelService] = {}
        self.unloaded: set[str] = set()  #: names of models that an operator has taken away for now
        self.draining = False
        self.closed = False  #: everything is answered, and nobody listens any more

    def add(self, service: ModelService) -> None:
        """A model is served from now on."""
        self.services[service.name] = service
        self.unloaded.discard(service.name)

    def remove(self, name: str) -> None:
        """A model is not served any more."""
        del self.services[name]
        self.unloaded.add(name)

    def held_versions(self, name: str) -> set[int]:
        """The versions of a model that replicas hold."""
        return self.services[name].held_versions if name in self.services else set()

    def service(self, name: str, version: str = "") -> ModelService:
        """The model of that name, if it answers with that version. Raises Unanswered: it does not."""
        service = self.services.get(name)
        if service is None:
            if name in self.unloaded:
                raise Unanswered(404, f"{name} is not loaded: an operator has unloaded it.")
            raise Unanswered(404, f"There is no model {name!r}; there is {', '.join(self.services) or 'none'}.")
        if version and version != str(service.current):
            raise Unanswered(
                404, f"Version {version!r} of {name} is not served; version {service.current or 'none'} is."
            )
        return service

    def only(self) -> ModelService:
        """The one model there is. Raises Unanswered."""
        if len(self.services) != 1:
            names = ", ".join(self.services) or "none"
            raise Unanswered(404, f"Say which model: there is {names}. Ask /predict/NAME.")
        return next(iter(self.services.values()))

    @property
    def ready(self) -> bool:
        """Does every model answer?"""
        return not self.draining and all(service.ready for service in self.services.values())

    # ------------------------------------------------------------ views

    def model_metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """What goes into a model and comes out of it."""
        service = self._loaded(name, version)
        assert service.manifest is not None
        manifest = service.manifest
        return metadata.model_metadata(name, [str(service.current)], manifest.platform, manifest.signature)

    def config(self, name: str, version: str = "") -> dict[str, Any]:
        """A model's configuration, in Triton's words; and what the page needs besides."""
        service = self._loaded(name, version)
        assert service.manifest is not None
        manifest = service.manifest
        told = metadata.model_config(name, manifest.platform, manifest.signature, service.limits.batch)
        return {
            **told, "version": str(service.current), "classes": list(manifest.classes), "kind": manifest.kind,
            "objective_ms": 1000 * service.limits.objective, "source": manifest.source,
        }  # fmt: skip

    def overview(self) -> dict[str, Any]:
        """All models and how they are doing, as the page shows it."""
        return {"models": [_overview(service) for service in self.services.values()]}

    def example(self, name: str) -> Callable[[], memoryview]:
        """What reads the request that lies beside a model as an example. Raises Unanswered where there is none."""
        service = self._loaded(name, "")
        if not _has_example(service):
            raise Unanswered(404, f"{name} has no example of at most {_MOST_EXAMPLE >> 20} MiB.")
        version = service.versions[service.current]
        return partial(Version(version.path, version.manifest).read, EXAMPLE)

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """What versions have done; of one model or of all, of one version or of those that are known."""
        services = [self.service(name)] if name else list(self.services.values())
        found = [
            _statistics(service, number)
            for service in services
            for number in sorted(service.statistics)
            if not version or version == str(number)
        ]
        if version and not found:
            raise Unanswered(404, f"Nothing is known of version {version!r} of {name}.")
        return metadata.statistics(found)

    def index(self, *, ready: bool = False) -> list[dict[str, Any]]:
        """All versions of all models, and in which state they are."""
        entries = []
        for name, service in self.services.items():
            for number in sorted(service.versions):
                if number == service.current:
                    state, reason = ("READY", "") if service.ready else ("UNAVAILABLE", "no replica is ready")
                elif number in service.refused_versions:
                    state, reason = "UNAVAILABLE", service.refused_versions[number]
                else:
                    state, reason = ("LOADING", "") if number == service.coming else ("UNAVAILABLE", "unloaded")
                entries.append(ModelIndex(name, str(number), state, reason))
        return metadata.repository_index(entries, ready=ready)

    def _loaded(self, name: str, version: str) -> ModelService:
        service = self.service(name, version)
        if service.manifest is None:
            raise Unanswered(503, f"{name} is not ready: no version of it has been loaded yet.", 1.0)
        return service


def _has_example(service: ModelService) -> bool:
    file = service.manifest.files.get(EXAMPLE) if service.manifest is not None else None
    return file is not None and file.bytes <= _MOST_EXAMPLE


def _overview(service: ModelService) -> dict[str, Any]:
    stats = service.statistics.values()
    now = service.statistics.get(service.current)
    return {
        "name": service.name, "version": str(service.current) if service.current else "", "ready": service.ready,
        "newest": str(max(service.versions, default=0)), "rejected": sorted(service.refused_versions),
        "waiting": service.waiting, "objective_ms": 1000 * service.limits.objective,
        "requests": sum(one.succeeded.count for one in stats), "failed": sum(one.failed.count for one in stats),
        "refused": service.refusals, "example": _has_example(service),
        "replicas": [
            {key: told for key, told in replica.items() if key in ("replica", "version", "stage", "busy", "memory")}
            for replica in service.replicas()
        ],
        "batches": sorted((size, batch.count) for size, batch in now.batches.items()) if now is not None else [],
        "recent": [(round(1000 * one.seconds, 3), one.items, one.version) for one in service.recent],
    }  # fmt: skip


def _statistics(service: ModelService, number: int) -> ModelStatistics:
    stats = service.statistics[number]
    return ModelStatistics(
        name=service.name, version=str(number), last_inference=int(1000 * stats.last), inference_count=stats.items,
        execution_count=stats.executions, success=_told(stats.succeeded), fail=_told(stats.failed),
        queue=_told(stats.queued), compute_infer=_told(stats.computed),
        batches=tuple(
            BatchStatistics(size, compute_infer=_told(batch)) for size, batch in sorted(stats.batches.items())
        ),
    )  # fmt: skip


def _told(duration: Duration) -> StatisticDuration:
    return StatisticDuration(duration.count, int(1e9 * duration.seconds))
