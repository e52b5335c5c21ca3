"""What a server counts, in the words of Prometheus (text exposition, version 0.0.4).

    holdfast_requests_total{model="lenet",version="3",outcome="ok"} 1200

Nothing is counted here: a scrape reads the plain numbers that services keep anyway.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from holdfast.serve.endpoints.authorization import Authorization
from holdfast.serve.endpoints.http_connection import HttpRequest
from holdfast.serve.models.catalog import Catalog
from holdfast.serve.models.model_service import ModelService
from holdfast.serve.models.statistics import BUCKETS, Duration, Histogram, VersionStatistics
from holdfast.serve.protocol.errors import error_body

__all__ = ["CONTENT_TYPE", "MetricsApp", "exposition"]

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # items of a batch
_STAGES = ("starting", "ready", "leaving", "gone")

Labels = Mapping[str, str]
#: Labels and a value; the suffix is of a histogram's parts.
Sample = tuple[str, Labels, float]
Of = Callable[[ModelService, VersionStatistics], Iterable[Sample]]


def exposition(catalog: Catalog, *, connections: int, responses: Mapping[int, int], version: str) -> bytes:
    """Everything, as one page. `responses` are answers over HTTP by their status."""
    lines: list[str] = []

    def tell(name: str, kind: str, what: str, samples: Iterable[Sample]) -> None:
        lines.append(f"# HELP holdfast_{name} {what}")
        lines.append(f"# TYPE holdfast_{name} {kind}")
        for suffix, labels, value in samples:
            told = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            lines.append(f"holdfast_{name}{suffix}{{{told}}} {_number(value)}" if told else
                         f"holdfast_{name}{suffix} {_number(value)}")  # fmt: skip

    services = list(catalog.services.values())
    tell("server_info", "gauge", "The server.", [("", {"version": version}, 1)])
    tell("ready", "gauge", "Whether every model answers.", [("", {}, catalog.ready)])
    tell("http_connections", "gauge", "Connections of clients.", [("", {}, connections)])
    tell("http_responses_total", "counter", "Answers over HTTP by their status.",
         [("", {"code": str(code)}, count) for code, count in sorted(responses.items())])  # fmt: skip
    tell("requests_total", "counter", "Requests for inference by what became of them.", _each(services, _outcomes))
    for name, what, chosen in (
        ("request_seconds", "From the coming of a request to its answer.", "latency"),
        ("queue_seconds", "Until a replica began with a request.", "queue_times"),
        ("compute_seconds", "From there to its answer.", "compute_times"),
    ):
        tell(name, "histogram", what, _each(services, _histogram(chosen)))
    tell("batch_items", "histogram", "Items that were computed together.", _each(services, _batches))
    tell("items_total", "counter", "Items that were answered.", _each(services, _items))
    of_model: tuple[tuple[str, str, str, Callable[[ModelService], float]], ...] = (
        ("waiting_items", "gauge", "Items that no replica has begun.", lambda one: one.waiting),
        ("serving_version", "gauge", "The version that answers; 0: none.", lambda one: one.current),
        ("refused_versions", "gauge", "Versions that are not used.", lambda one: len(one.refused_versions)),
        ("objective_seconds", "gauge", "Within which answers are to be given.", lambda one: one.limits.objective),
        ("replica_starts_total", "counter", "Replicas that were started.", lambda one: one.starts),
        (
            "replica_losses_total",
            "counter",
            "Replicas lost: killed, hung, stopped, not loaded.",
            lambda one: one.losses,
        ),
    )
    for name, kind, what, value in of_model:
        tell(name, kind, what, [("", {"model": one.name}, value(one)) for one in services])
    stages = (sample for one in services for sample in _replicas(one))
    tell("replicas", "gauge", "Replicas by version and stage.", stages)
    memory = (sample for one in services for sample in _memory(one))
    tell("replica_memory_bytes", "gauge", "Memory that a replica has.", memory)
    return ("\n".join(lines) + "\n").encode()


class MetricsApp:
    """Answers /metrics, and nothing else, on a port of its own."""

    def __init__(self, authorization: Authorization, metrics: Callable[[], bytes]) -> None:
        self._authorization, self._metrics = authorization, metrics

    def look(self, request: HttpRequest) -> None:
        """Turn away who may not ask."""
        if not self._authorization.permits(request.headers.get(b"authorization")):
            told = ((b"content-type", b"application/json"), (b"www-authenticate", b"Bearer"))
            request.refusal = 401, error_body("This server asks for its token: Authorization: Bearer TOKEN."), told

    def handle(self, request: HttpRequest) -> None:
        """Answer a request."""
        if request.path != b"/metrics":
            request.refuse(404, "There is nothing here but /metrics.")
        elif request.method not in ("GET", "HEAD"):
            request.refuse(405, "/metrics is asked with GET.")
        else:
            request.respond(200, [self._metrics()], ((b"content-type", CONTENT_TYPE),))

    def answered(self, request: HttpRequest, status: int) -> None:
        """Scrapes are not counted."""


def _each(services: Iterable[ModelService], samples: Of) -> Iterator[Sample]:
    """Samples of every version of every model."""
    for service in services:
        for number in sorted(service.statistics):
            own = {"model": service.name, "version": str(number)}
            for suffix, labels, value in samples(service, service.statistics[number]):
                yield suffix, {**own, **labels}, value


def _outcomes(_: ModelService, stats: VersionStatistics) -> Iterator[Sample]:
    for outcome, count in (
        ("ok", stats.succeeded.count), ("refused", stats.refused), ("failed", stats.failed.count),
        ("cancelled", stats.cancelled), ("timed_out", stats.timed_out),
    ):  # fmt: skip
        yield "", {"outcome": outcome}, count


def _histogram(field: str) -> Of:
    return lambda _, stats: _times(getattr(stats, field))


def _times(times: Histogram) -> Iterator[Sample]:
    seen = 0
    for end, count in zip((*BUCKETS, None), times.counts, strict=True):
        seen += count
        yield "_bucket", {"le": "+Inf" if end is None else _number(end)}, seen
    yield "_sum", {}, times.seconds
    yield "_count", {}, seen


def _items(_: ModelService, stats: VersionStatistics) -> Iterator[Sample]:
    yield "", {}, stats.items


def _batches(_: ModelService, stats: VersionStatistics) -> Iterator[Sample]:
    return sizes(stats.batches)


def sizes(batches: Mapping[int, Duration]) -> Iterator[Sample]:
    """Batches by their number of items, as a histogram."""
    for end in _SIZES:
        yield "_bucket", {"le": str(end)}, sum(one.count for size, one in batches.items() if size <= end)
    count = sum(one.count for one in batches.values())
    yield "_bucket", {"le": "+Inf"}, count
    yield "_sum", {}, sum(size * one.count for size, one in batches.items())
    yield "_count", {}, count


def _replicas(service: ModelService) -> Iterator[Sample]:
    found = Counter((str(one["version"]), str(one["stage"])) for one in service.replicas())
    for version in sorted({version for version, _ in found} | {str(service.current)}):
        for stage in _STAGES:
            labels = {"model": service.name, "version": version, "stage": stage}
            yield "", labels, found[version, stage]


def _memory(service: ModelService) -> Iterator[Sample]:
    for one in service.replicas():
        labels = {"model": service.name, "version": str(one["version"]), "replica": str(one["replica"])}
        yield "", labels, int(str(one["memory"]))


def _escaped(text: str) -> str:
    """A label's value.

    >>> print(_escaped('a"b' + chr(10)))
    a\\"b\\n
    """
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    """
    >>> _number(3), _number(0.25), _number(True)
    ('3', '0.25', '1')
    """
    return str(int(value)) if value == int(value) else repr(float(value))
