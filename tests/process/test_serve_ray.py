"""`holdfast serve --on ray`: replicas on the nodes of a real Ray cluster, whatever happens to the nodes."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.harness import alive, holdfast, until
from tests.process.machines import end_servers, serve
from tests.process.models import marked
from tests.process.raycluster import RAY, RealCluster
from tests.process.test_serve import Load

pytestmark = [pytest.mark.process, pytest.mark.sharing]


@pytest.fixture(autouse=True)
def no_server_is_left() -> Iterator[None]:
    """However a test ends."""
    yield
    end_servers()


def replicas(address: str) -> dict[int, int]:
    """The replicas of a server, by their pids; of each the replica host that it is below."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"holdfast serve: replica" in (entry / "cmdline").read_bytes():
                forkserver = parent(int(entry.name))
                host = parent(forkserver)
                if address.encode() in Path(f"/proc/{host}/cmdline").read_bytes():
                    found[int(entry.name)] = host
        except (OSError, ValueError):
            continue
    return found


def two_each(address: str) -> bool:
    """Has each of two hosts two replicas?"""
    return sorted(Counter(replicas(address).values()).values()) == [2, 2]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@RAY
def test_replicas_on_two_nodes_of_which_one_is_killed_and_replaced(tmp_path: Path) -> None:
    marked(tmp_path / "marked")
    with RealCluster(nodes=2, cpus=2) as cluster:
        served = serve(
            tmp_path / "marked", tmp_path / "served", "--on", "ray", "--hosts", "2", "--replicas", "4", "--slo", "10s",
            "--hang", "60s", RAY_ADDRESS=cluster.address, listen="",
        )  # fmt: skip
        address = (served.directory / "address").read_text().strip()
        until(lambda: served.addresses and two_each(address), "two on each node", 120)
        there = replicas(address)
        with Load(served) as load:
            load.at(50)
            cluster.kill()
            until(lambda: len([pid for pid in there if alive(pid)]) == 2, "those of one node are gone", 60)
            until(lambda: len(replicas(address)) == 4, "four again, on the node that is left", 60)
            load.at(50)
            cluster.add()
            until(lambda: two_each(address), "two are on the new node", 120)
            load.at(50)
        assert load.wrong == []
        there = replicas(address)
        secret = (served.directory / "token").read_bytes().strip()
        served.stop(signal.SIGTERM)
        assert served.process.returncode == 0, served.output
        until(lambda: not any(map(alive, [*there, *there.values()])), "nothing is left on the nodes")
        assert not [path for path in cluster.files() if secret in path.read_bytes()], "Ray has written the token down"
        assert "Ray has started machine 2" in served.output
        logs = os.listdir(served.directory / "logs")
        assert {"machine-0.log", "machine-1.log", "machine-2.log"} <= set(logs)


@RAY
def test_a_cluster_without_room_and_no_cluster_are_said(tmp_path: Path) -> None:
    marked(tmp_path / "marked")
    with RealCluster(nodes=1, cpus=1) as cluster:
        small = holdfast("serve", tmp_path / "marked", "--on", "ray", "--replicas", "3", RAY_ADDRESS=cluster.address,
                         cwd=tmp_path)  # fmt: skip
    assert small.returncode == 7, small.stderr
    assert "is too small: 1 node with 3 CPUs is wanted" in small.stderr
    none = holdfast("serve", tmp_path / "marked", "--on", "ray", RAY_ADDRESS="127.0.0.1:1", cwd=tmp_path)
    assert none.returncode == 10
    assert "There is no Ray cluster at 127.0.0.1:1" in none.stderr
