"""What every fleet must do (see `engines.fleet.Fleet`). A new fleet gets a place in `SITES`.

Ray's is held to it on a real cluster of several nodes; where Ray is not installed, and by `make chaos`, on one that is
pretended. What an agent does here is said by a few words of Python; the real one is `holdfast join`.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.engines.fleet import (
    AgentLost,
    AgentSaid,
    AgentUp,
    FleetEvent,
    FleetLost,
    FleetWaits,
    MachineOffer,
    NodeGone,
)
from holdfast.engines.nodes import Needs
from holdfast.engines.ray import RayFleet
from holdfast.errors import Unreachable
from tests.contract.pretend_cluster import FILE
from tests.process.harness import alive, environment, until
from tests.process.raycluster import INSTALLED, RAY, RealCluster

pytestmark = [pytest.mark.process, pytest.mark.sharing]
ROOT = Path(__file__).resolve().parents[2]
PRETEND = "tests.contract.pretend_cluster:PretendCluster"
#: Says what it got, starts a child that hides in a session of its own, and stays.
STAY = """
import os, subprocess, sys, time
token = sys.stdin.read()
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
print("token of", len(token), "letters", flush=True)
print("pids", os.getpid(), child.pid, flush=True)
time.sleep(600)
"""
SECRET = b"s" * 43


class Pretended:
    """Nodes in a file."""

    address = ""
    cluster = PRETEND

    def __init__(self, tmp_path: Path) -> None:
        self.file = tmp_path / "nodes"
        self.lines = ["head 0", "n1 2", "n2 2"]
        self.write()

    def write(self) -> None:
        new = self.file.with_suffix(".new")
        new.write_text("".join(f"{line}\n" for line in self.lines))
        new.rename(self.file)

    def kill(self) -> None:
        self.lines.remove("n2 2")
        self.write()

    def add(self) -> None:
        self.lines.append("n3 2")
        self.write()


@pytest.fixture(scope="module")
def real() -> Iterator[RealCluster]:
    with RealCluster() as cluster:
        yield cluster


PRETENDED = pytest.param("pretended", marks=[pytest.mark.chaos] if INSTALLED else [])


@pytest.fixture(params=[PRETENDED, pytest.param("ray", marks=RAY)])
def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretended | RealCluster:
    """A cluster with a head without CPUs and two nodes with two each."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    if request.param == "pretended":
        made = Pretended(tmp_path)
        monkeypatch.setenv(FILE, str(made.file))
        return made
    cluster: RealCluster = request.getfixturevalue("real")
    cluster.restore()
    return cluster


class Watched:
    """A fleet, and what it has told."""

    def __init__(self, site: Pretended | RealCluster, logs: Path, workers: int, wait: float) -> None:
        needs = Needs(workers=workers)
        self.fleet = RayFleet(site.address, needs, wait=wait, logs=logs, cluster=site.cluster)
        self.told: list[FleetEvent] = []

    def hear(self, seconds: float) -> None:
        if self.lost is None and select.select([self.fleet], [], [], seconds)[0]:
            self.told += self.fleet.events()

    def until(self, condition: Callable[[], bool], seconds: float = 40.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not in {seconds:g} s: {self.told}"
            self.hear(0.2)

    @property
    def ups(self) -> list[AgentUp]:
        return [event for event in self.told if isinstance(event, AgentUp)]

    @property
    def losses(self) -> list[AgentLost]:
        return [event for event in self.told if isinstance(event, AgentLost)]

    @property
    def lost(self) -> FleetLost | None:
        return next((event for event in self.told if isinstance(event, FleetLost)), None)

    def lines(self, agent: int) -> list[str]:
        said = [event for event in self.told if isinstance(event, AgentSaid) and event.agent == agent]
        return [line for event in said for line in event.lines]

    def pids(self, agent: int) -> list[int]:
        """Of the agent and its child, once it has told them."""
        told = [line for line in self.lines(agent) if line.startswith("pids ")]
        return [int(word) for word in told[0].split()[1:]] if told else []


@pytest.fixture
def fleet(site: Pretended | RealCluster, tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    made: list[Watched] = []

    def make(workers: int = 2, wait: float = 0.0) -> Watched:
        made.append(Watched(site, tmp_path, workers, wait))
        return made[-1]

    yield make
    for watched in made:
        watched.fleet.close()
        for event in watched.ups:
            assert not [pid for pid in watched.pids(event.agent) if alive(pid)], "an agent outlives its fleet"


def offer(code: str, *args: str, hosts: int = 2, most: int = 0) -> MachineOffer:
    return MachineOffer(("-c", code, *args), SECRET, hosts=hosts, most=most or hosts)


def test_agents_come_up_one_on_each_node(fleet: Callable[..., Watched]) -> None:
    it = fleet()
    found = it.fleet.connect()
    assert found.room == 2
    assert "2 of 2 CPUs free" in found.told
    assert found.address
    it.fleet.open(offer(STAY, hosts=2, most=5))
    it.until(lambda: len(it.ups) == 2 and all(it.pids(event.agent) for event in it.ups))
    assert len({event.node for event in it.ups}) == 2
    for event in it.ups:
        assert it.lines(event.agent)[0] == f"token of {len(SECRET)} letters"
        assert it.pids(event.agent)[0] == event.pid
        for what in ("cmdline", "environ"):
            assert SECRET not in Path(f"/proc/{event.pid}/{what}").read_bytes(), f"the secret is in {what}"
    it.fleet.close()
    assert not [pid for event in it.ups for pid in it.pids(event.agent) if alive(pid)]
    it.fleet.close()
    assert it.losses == []


def test_no_more_agents_than_wanted(fleet: Callable[..., Watched]) -> None:
    it = fleet(workers=1)
    it.fleet.connect()
    it.fleet.open(offer(STAY, hosts=1, most=1))
    it.until(lambda: bool(it.ups))
    it.hear(2.5)
    it.hear(0.5)
    assert len(it.ups) == 1


def test_output_and_exit_code_come_back_in_order(fleet: Callable[..., Watched]) -> None:
    it = fleet()
    it.fleet.connect()
    it.fleet.open(offer("import sys; [print(n) for n in range(5000)]; print('last', end='', file=sys.stderr)", hosts=1))
    it.until(lambda: bool(it.losses))
    loss = it.losses[0]
    said = it.lines(loss.agent)
    assert [event for event in it.told if getattr(event, "agent", -1) == loss.agent][-1] is loss
    assert isinstance(it.told[0], AgentUp)
    assert said[-1] == "last"
    numbers = [int(line) for line in said if line.isdigit()]
    assert numbers == sorted(set(numbers)) and numbers[-1] == 4999
    assert numbers[0] == 0 or any("lines are left out" in line for line in said)
    assert (loss.code, loss.final, loss.reason) == (0, True, "it ended with status 0")
    assert loss.last[-1] == "last" and len(loss.last) == 20


def test_an_agent_that_fails_is_tried_again_but_not_for_ever(fleet: Callable[..., Watched]) -> None:
    it = fleet()
    it.fleet.connect()
    it.fleet.open(offer("import sys; print('no way'); sys.exit(3)", hosts=1, most=1))
    # Each node has its three tries, and then there is nobody left to try.
    it.until(lambda: it.lost is not None)
    assert [loss.code for loss in it.losses] == [3] * 6
    assert [loss.final for loss in it.losses].count(True) == 2
    assert it.lost is not None and it.lost.error == "ResourceError"
    assert it.lost.reason.startswith("No agent is left, and none can be started: on every node that is large enough,")
    assert f"The last one was on {it.losses[-1].node}, it ended with status 3." in it.lost.reason
    assert len({loss.agent for loss in it.losses}) == 6


def test_a_killed_agent_is_lost_with_its_signal(fleet: Callable[..., Watched]) -> None:
    it = fleet()
    it.fleet.connect()
    it.fleet.open(offer(STAY, hosts=2))
    it.until(lambda: len(it.ups) == 2 and all(it.pids(event.agent) for event in it.ups))
    first, child = it.pids(it.ups[0].agent)
    os.kill(first, signal.SIGKILL)
    it.until(lambda: bool(it.losses))
    assert (it.losses[0].code, it.losses[0].reason) == (-9, "it ended with signal 9 (Killed)")
    assert not alive(child), "what the agent started is there after it was told to be lost"
    it.until(lambda: len(it.ups) == 3)
    assert it.ups[2].node == it.ups[0].node


def test_nobody_is_started_any_more_after_a_rest(fleet: Callable[..., Watched]) -> None:
    it = fleet()
    it.fleet.connect()
    it.fleet.open(offer(STAY, hosts=2))
    it.until(lambda: len(it.ups) == 2 and all(it.pids(event.agent) for event in it.ups))
    it.fleet.rest()
    os.kill(it.ups[0].pid, signal.SIGKILL)
    it.until(lambda: bool(it.losses))
    deadline = time.monotonic() + 3.0  # it would be there after one
    while time.monotonic() < deadline:
        it.hear(0.5)
    assert len(it.ups) == 2
    assert alive(it.ups[1].pid)


def test_a_lost_node_takes_its_agent_and_a_new_one_brings_one(
    site: Pretended | RealCluster, fleet: Callable[..., Watched]
) -> None:
    it = fleet()
    it.fleet.connect()
    it.fleet.open(offer(STAY, hosts=2, most=3))
    it.until(lambda: len(it.ups) == 2 and all(it.pids(event.agent) for event in it.ups))
    site.kill()
    it.until(lambda: bool(it.losses) and any(isinstance(event, NodeGone) for event in it.told))
    gone = it.losses[0]
    assert gone.code is None
    until(lambda: not any(alive(pid) for pid in it.pids(gone.agent)), "the lost node's agent is gone")
    assert all(alive(pid) for event in it.ups if event.agent != gone.agent for pid in it.pids(event.agent))
    site.add()
    it.until(lambda: len(it.ups) == 3 and bool(it.pids(it.ups[2].agent)))
    assert it.ups[2].node not in (it.ups[0].node, it.ups[1].node)


def test_nothing_outlives_a_killed_holder(site: Pretended | RealCluster, tmp_path: Path) -> None:
    holder = f"""
import select, time
from pathlib import Path
from holdfast.engines.fleet import MachineOffer
from holdfast.engines.nodes import Needs
from holdfast.engines.ray import RayFleet
fleet = RayFleet({site.address!r}, Needs(2), wait=0.0, logs=Path({str(tmp_path)!r}), cluster={site.cluster!r})
fleet.connect()
fleet.open(MachineOffer(("-c", {STAY!r}), b"s" * 43, hosts=2, most=2))
while True:
    select.select([fleet], [], [])
    for event in fleet.events():
        for line in getattr(event, "lines", []):
            print(line, flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE, text=True, env=environment())
    assert process.stdout is not None
    pids: list[int] = []
    while len(pids) < 4:
        line = process.stdout.readline()
        assert line, "the holder has ended"
        if line.startswith("pids"):
            pids += map(int, line.split()[1:])
    assert all(map(alive, pids))
    process.kill()
    process.wait()
    process.stdout.close()
    until(lambda: not any(map(alive, pids)), "agents end with the holder of their fleet")


def test_a_cluster_that_is_too_small_says_what_is_missing(fleet: Callable[..., Watched]) -> None:
    it = fleet(workers=3)
    assert it.fleet.connect().room == 0
    it.fleet.open(offer(STAY, hosts=4))
    it.until(lambda: it.lost is not None)
    assert it.lost is not None and it.lost.error == "ResourceError"
    assert "is too small: 4 nodes with 3 CPUs each are wanted (for 3 workers with 1 CPU each)" in it.lost.reason
    assert it.lost.reason.count("with 2 CPUs: 1 CPU missing") == 2
    assert "1 node more is missing. Add nodes, or ask for less:" in it.lost.reason
    assert it.lost.reason.endswith("say how long that may take: --set ray.wait=10m.")


def test_a_cluster_that_grows_is_waited_for(site: Pretended | RealCluster, fleet: Callable[..., Watched]) -> None:
    it = fleet(wait=60.0)
    it.fleet.connect()
    it.fleet.open(offer(STAY, hosts=3))
    it.until(lambda: bool(it.told))
    assert isinstance(it.told[0], FleetWaits) and "is too small: 3 nodes with 2 CPUs each" in it.told[0].sentence
    it.hear(1.5)
    assert it.ups == [], "all at first, or none"
    site.add()
    it.until(lambda: len(it.ups) == 3)


def test_no_cluster_there(site: Pretended | RealCluster, tmp_path: Path) -> None:
    address = "nowhere:1" if isinstance(site, Pretended) else "127.0.0.1:1"
    fleet = RayFleet(address, Needs(), wait=0.0, logs=tmp_path, cluster=site.cluster)
    began = time.monotonic()
    with pytest.raises(Unreachable, match=rf"There is no .*cluster at {address}"):
        fleet.connect()
    fleet.close()
    assert time.monotonic() - began < 15.0
