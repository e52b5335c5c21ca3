"""What a launcher makes of what a fleet tells."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec

from holdfast.cli.launch.cluster_hosts import ClusterHosts, needs
from holdfast.config.ray_config import RayConfig
from holdfast.config.run_config import RunConfig
from holdfast.engines.fleet import (
    AgentLost,
    AgentSaid,
    AgentUp,
    FleetEvent,
    FleetLost,
    FleetWaits,
    MachineOffer,
    NodeGone,
    Site,
)
from holdfast.engines.nodes import Needs
from holdfast.errors import HoldfastError, ResourceError


class FakeFleet:
    """Tells what it is told to tell."""

    def __init__(self) -> None:
        self.bell = os.eventfd(0, os.EFD_NONBLOCK)
        self.news: list[FleetEvent] = []
        self.offers: list[MachineOffer] = []
        self.rested = self.closed = 0

    def connect(self) -> Site:
        return Site("10.0.0.9", 3, "a cluster")

    def open(self, offer: MachineOffer) -> None:
        self.offers.append(offer)

    def rest(self) -> None:
        self.rested += 1

    def fileno(self) -> int:
        return self.bell

    def tell(self, *events: FleetEvent) -> None:
        self.news += events
        os.eventfd_write(self.bell, 1)

    def events(self) -> list[FleetEvent]:
        os.eventfd_read(self.bell)
        told, self.news = self.news, []
        return told

    def close(self) -> None:
        self.closed += 1


class Register:
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, bool]] = []
        self.kept: list[tuple[str, bytes]] = []
        self.errors: list[HoldfastError] = []

    def note(self, sentence: str, *, aloud: bool) -> None:
        self.notes.append((sentence, aloud))

    def keep(self, name: str, data: bytes) -> None:
        self.kept.append((name, data))

    def unattended(self, error: HoldfastError) -> None:
        self.errors.append(error)


def mustered(config: RunConfig, *events: FleetEvent) -> tuple[FakeFleet, Register]:
    fleet, register = FakeFleet(), Register()

    async def run() -> None:
        cluster_hosts = ClusterHosts(config, Path("."), fleet)
        cluster_hosts.connect(lambda _: None)
        cluster_hosts.open("192.168.0.9", 4000, "secret", register)
        fleet.tell(*events)
        await asyncio.sleep(0.01)
        await cluster_hosts.agent_end()
        cluster_hosts.close()
        cluster_hosts.close()

    asyncio.run(run())
    os.close(fleet.bell)
    return fleet, register


def test_the_launcher_only_coordinates_where_the_cluster_reaches_it() -> None:
    said: list[str] = []
    config = RunConfig("train.py", on="ray", workers=2)
    there = ClusterHosts(config, Path("."), FakeFleet()).connect(said.append)
    assert (there.workers, there.listen, said) == (0, "10.0.0.9", ["a cluster"])
    config = msgspec.structs.replace(config, listen="10.1.1.1:7000")
    assert ClusterHosts(config, Path("."), FakeFleet()).connect(said.append).listen == "10.1.1.1:7000"


def test_what_agents_are_told() -> None:
    fleet, _ = mustered(RunConfig("train.py", on="ray", workers=2, lanes=9, hosts=3))
    (offer,) = fleet.offers
    assert offer.words == ("-m", "holdfast.cli.main", "join", "10.0.0.9:4000", "--workers", "2")
    assert (offer.secret, offer.folder, offer.hosts, offer.most) == (b"secret", os.getcwd(), 3, 5)
    assert b"secret".decode() not in repr(offer).replace("secret=", "")
    assert fleet.rested == 1
    for config, most in [
        (RunConfig("train.py", on="ray"), 4),
        (RunConfig("train.py", on="ray", hosts=9), 9),
        (RunConfig("train.py", on="ray", ray=RayConfig(most=2)), 2),
    ]:
        assert mustered(config)[0].offers[0].most == most


def test_where_agents_find_the_run() -> None:
    for listen, place in [("", "10.0.0.9:4000"), ("0.0.0.0", "10.0.0.9:4000"), ("192.168.0.9", "192.168.0.9:4000")]:
        fleet, _ = mustered(RunConfig("train.py", on="ray", listen=listen))
        assert fleet.offers[0].words[3] == place


def test_what_a_host_takes() -> None:
    assert needs(RunConfig("train.py")) == Needs(1, 1.0, 0.0)
    config = RunConfig("train.py", workers=2, threads=3, ray=RayConfig(gpus=0.5, resources="TPU=1"))
    assert needs(config) == Needs(2, 3.0, 0.5, (("TPU", 1.0),))
    assert needs(RunConfig("train.py", servers=2)) == Needs(1, 1.0, 0.0, servers=2)


def test_the_story_of_agents() -> None:
    _, register = mustered(
        RunConfig("train.py", on="ray"),
        FleetWaits("The cluster is small."),
        AgentUp(0, "10.0.0.1 (node a)", 7),
        AgentSaid(0, ["one", "two"]),
        NodeGone("10.0.0.2 (node b)", "Ray says that it is dead"),
        AgentLost(0, "10.0.0.1 (node a)", 3, "it ended with status 3", ["one", "two"]),
        AgentUp(1, "10.0.0.1 (node a)", 8),
        AgentLost(1, "10.0.0.1 (node a)", 0, "it ended with status 0", ["bye"], final=True),
    )
    assert register.kept == [("logs/agent-0.log", b"one\ntwo\n")]
    assert register.notes == [
        ("The cluster is small.", True),
        ("agent 0 runs on 10.0.0.1 (node a), as process 7", False),
        ("10.0.0.2 (node b) has left the cluster (Ray says that it is dead)", False),
        (
            "agent 0 on 10.0.0.1 (node a) is gone: it ended with status 3; its last words: two (another one is started "
            "when there is room)",
            True,
        ),
        ("agent 1 runs on 10.0.0.1 (node a), as process 8", False),
        ("agent 1 on 10.0.0.1 (node a) is gone: it ended with status 0 (no other is started there)", False),
    ]


def test_a_lost_fleet_is_told_with_its_error() -> None:
    fleet, register = mustered(RunConfig("train.py", on="ray"), FleetLost("ResourceError", "It is too small."))
    (error,) = register.errors
    assert isinstance(error, ResourceError) and str(error) == "It is too small."
    assert fleet.closed == 2
