"""What /metrics says, read by the parser of Prometheus' own client."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.serve.door.prometheus import exposition
from holdfast.serve.models.catalog import Catalog
from holdfast.serve.models.statistics import Duration, VersionStatistics

parser = pytest.importorskip("prometheus_client.parser")

NAME = 'a"b\\c\nd'


def service(name: str, stats: VersionStatistics) -> Any:
    """What an exposition looks at of a service."""
    replicas = [
        {"replica": 0, "pid": 5, "version": 3, "stage": "ready", "memory": 1000, "busy": True},
        {"replica": 1, "pid": 6, "version": 3, "stage": "ready", "memory": 2000, "busy": False},
        {"replica": 2, "pid": 7, "version": 4, "stage": "starting", "memory": 0, "busy": False},
    ]
    return SimpleNamespace(
        name=name, statistics={3: stats}, waiting=7, current=3, refused_versions={2: "no"}, starts=5, losses=2,
        limits=SimpleNamespace(objective=0.05), replicas=lambda: replicas, ready=True,
    )  # fmt: skip


def read(page: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parser.text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def test_everything_is_there_and_adds_up() -> None:
    stats = VersionStatistics(refused=3, cancelled=4, timed_out=5)
    for seconds in (0.0001, 0.003, 99.0):
        stats.succeeded.add(seconds)
        stats.latency.add(seconds)
        stats.queue_times.add(seconds / 2)
        stats.compute_times.add(seconds / 2)
    stats.failed.add(1.0)
    stats.batches = {1: Duration(2, 0.1), 3: Duration(1, 0.1), 1000: Duration(1, 9.0)}
    catalog = Catalog()
    catalog.services[NAME] = service(NAME, stats)
    found = read(exposition(catalog, connections=9, responses={200: 3, 503: 1}, version="1.2"))

    def value(name: str, **labels: str) -> float:
        return found[f"holdfast_{name}", frozenset(labels.items())]

    own = {"model": NAME, "version": "3"}
    outcomes = {"ok": 3, "refused": 3, "failed": 1, "cancelled": 4, "timed_out": 5}
    assert {one: value("requests_total", outcome=one, **own) for one in outcomes} == outcomes
    assert value("request_seconds_bucket", le="0.0005", **own) == 1
    assert value("request_seconds_bucket", le="0.005", **own) == 2
    assert value("request_seconds_bucket", le="10", **own) == 2
    assert value("request_seconds_bucket", le="+Inf", **own) == value("request_seconds_count", **own) == 3
    assert value("request_seconds_sum", **own) == pytest.approx(99.0031)
    assert value("queue_seconds_sum", **own) == pytest.approx(99.0031 / 2)
    assert value("batch_items_bucket", le="2", **own) == 2 and value("batch_items_bucket", le="512", **own) == 3
    assert value("batch_items_count", **own) == 4 and value("batch_items_sum", **own) == 1005
    assert value("waiting_items", model=NAME) == 7 and value("serving_version", model=NAME) == 3
    assert value("refused_versions", model=NAME) == 1 and value("replica_losses_total", model=NAME) == 2
    assert value("replicas", stage="ready", **own) == 2
    assert value("replicas", model=NAME, version="4", stage="starting") == 1
    assert value("replica_memory_bytes", replica="1", **own) == 2000
    assert value("http_connections") == 9 and value("http_responses_total", code="503") == 1
    assert value("server_info", version="1.2") == 1 and value("ready") == 1


def test_a_server_that_has_done_nothing() -> None:
    found = read(exposition(Catalog(), connections=0, responses={}, version="1"))
    assert found["holdfast_http_connections", frozenset()] == 0
