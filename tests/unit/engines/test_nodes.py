"""Which machines get an agent, and what is said when there are too few."""

from __future__ import annotations

import math

import pytest

from holdfast.config.limits import CLUSTER
from holdfast.config.ray_config import RayConfig, check, resources
from holdfast.engines.nodes import AgentPlace, ClusterNode, Needs, Strikes, again, agent_places, room, shortage
from holdfast.errors import ConfigError

TWO = Needs(workers=2)


def node(name: str, cpus: float, free: float | None = None, **more: float) -> ClusterNode:
    total = {"CPU": cpus, **more}
    return ClusterNode(name * 8, f"10.0.0.{name}", total, {**total, "CPU": cpus if free is None else free})


def cluster(*nodes: ClusterNode) -> dict[str, ClusterNode]:
    return {node.id: node for node in nodes}


def test_needs_are_per_worker() -> None:
    needs = Needs(2, 1.5, 0.5, (("TPU", 4.0),))
    assert needs.bundle() == {"CPU": 3.0, "GPU": 1.0, "TPU": 8.0}
    assert str(needs) == "2 workers with 1.5 CPUs, 0.5 GPUs, 4 TPU each"
    assert str(Needs()) == "1 worker with 1 CPU"


def test_a_server_takes_the_cpus_of_a_worker() -> None:
    needs = Needs(2, 1.5, 0.5, (("TPU", 4.0),), servers=1)
    assert needs.bundle() == {"CPU": 4.5, "GPU": 1.0, "TPU": 8.0}
    assert str(needs) == "2 workers with 1.5 CPUs, 0.5 GPUs, 4 TPU each and room for 1 server with 1.5 CPUs"
    assert str(Needs(servers=2)) == "1 worker with 1 CPU and room for 2 servers with 1 CPU each"


def test_reserved_places_come_first_then_those_with_room() -> None:
    nodes = cluster(node("1", 2), node("2", 2, free=0), node("3", 2), node("4", 1))
    group = {0: "2" * 8}
    assert agent_places(nodes, group, [], [], 9, TWO) == [
        AgentPlace("2" * 8, 0),
        AgentPlace("1" * 8, -1),
        AgentPlace("3" * 8, -1),
    ]
    assert agent_places(nodes, group, [], [], 2, TWO) == [AgentPlace("2" * 8, 0), AgentPlace("1" * 8, -1)]


def test_one_agent_is_enough_for_a_machine() -> None:
    nodes = cluster(node("1", 8), node("2", 8))
    # A bundle that moved to a machine which has an agent stays unused.
    assert agent_places(nodes, {0: "1" * 8, 1: "1" * 8}, ["1" * 8], [], 9, TWO) == [AgentPlace("2" * 8, -1)]
    assert agent_places(nodes, {}, ["1" * 8, "2" * 8], [], 9, TWO) == []
    assert agent_places(nodes, {0: "1" * 8, 1: "1" * 8}, [], [], 9, TWO) == [
        AgentPlace("1" * 8, 0),
        AgentPlace("2" * 8, -1),
    ]


def test_machines_that_are_barred_or_gone_get_nobody() -> None:
    nodes = cluster(node("1", 8), node("2", 8))
    assert agent_places(nodes, {0: "1" * 8, 1: "9" * 8}, [], ["1" * 8], 9, TWO) == [AgentPlace("2" * 8, -1)]
    assert agent_places(nodes, {0: "1" * 8}, ["2" * 8], [], 1, TWO) == []


def test_an_agent_that_fails_is_tried_again_later_each_time_and_not_for_ever() -> None:
    first = again(Strikes(), 1, 0.5, 100.0)
    assert first == Strikes(1, 101.0)
    second = again(first, None, 0.5, 110.0)
    assert second == Strikes(2, 112.0)
    assert again(second, -9, 0.5, 120.0).until == math.inf
    assert again(second, 1, CLUSTER.healthy, 120.0) == Strikes(1, 121.0), "it was well for a while: that begins anew"


@pytest.mark.parametrize("code", [0, 11])
def test_an_agent_that_left_or_was_refused_is_not_replaced(code: int) -> None:
    assert again(Strikes(), code, 1000.0, 0.0).until == math.inf


def test_no_shortage() -> None:
    assert shortage([node("1", 2), node("2", 4, free=2)], 2, TWO, "c") is None
    assert room([node("1", 2), node("2", 4, free=1), node("3", 0)], TWO) == 1


def test_too_small_names_what_is_there_and_what_is_missing() -> None:
    short = shortage([node("1", 4), node("2", 1)], 3, Needs(2, gpus=1.0), "10.0.0.1:6379")
    assert short is not None and short.small
    assert short.sentence == (
        "The Ray cluster at 10.0.0.1:6379 is too small: 3 nodes with 2 CPUs, 2 GPUs each are wanted (for 2 workers "
        "with 1 CPU, 1 GPU each), and none have that. There is 10.0.0.1 (node 11111111) with 4 CPUs, 0 GPUs: 2 GPUs "
        "missing; 10.0.0.2 (node 22222222) with 1 CPU, 0 GPUs: 1 CPU, 2 GPUs missing; 1 node more is missing."
    )


def test_busy_is_not_too_small() -> None:
    short = shortage([node("1", 4, free=1), node("2", 1)], 1, TWO, "c:1")
    assert short is not None and not short.small
    assert short.sentence == (
        "The Ray cluster at c:1 is busy: 1 node with 2 CPUs is wanted (for 2 workers with 1 CPU each), and none have "
        "that free. There is 10.0.0.1 (node 11111111) with 1 of 4 CPUs free: 1 CPU missing; 10.0.0.2 (node 22222222) "
        "with 1 CPU: 1 CPU missing."
    )
    empty = shortage([], 2, Needs(), "c:1")
    assert empty is not None and empty.sentence.endswith("There is no node at all; 2 nodes more are missing.")


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (RayConfig(cpus=-1), "ray.cpus = -1: must be 0 or more (set by --set)."),
        (RayConfig(wait=float("inf")), "ray.wait = inf: must be 0 or more (set by --set)."),
        (
            RayConfig(resources="GPU=1"),
            "ray.resources = GPU=1: GPU has a setting of its own (set by --set). Use --set ray.gpus=1.",
        ),
        (
            RayConfig(resources="TPU"),
            "ray.resources = TPU: 'TPU' is not name=amount with an amount above 0 (set by --set). For example: --set "
            "ray.resources=TPU=4,spot=0.5 (for each worker).",
        ),
        (
            RayConfig(address="ray://a:1"),
            "ray.address = ray://a:1: a Ray client is not part of the cluster, so the hosts cannot reach it (set by "
            "--set). Run on a machine of the cluster, or with: ray job submit -- holdfast run --on ray ...",
        ),
    ],
)
def test_settings_that_cannot_be(config: RayConfig, told: str) -> None:
    sources = {f"ray.{name}": "--set" for name in RayConfig.__struct_fields__}
    with pytest.raises(ConfigError) as error:
        check(config, sources)
    assert str(error.value) == told


def test_settings_that_can_be() -> None:
    check(RayConfig(), {})
    assert resources(RayConfig(resources=" TPU=4 , spot=0.5,"), {}) == (("TPU", 4.0), ("spot", 0.5))
