"""`--on ray`: the same weights on the nodes of a Ray cluster, whatever happens to the nodes. On a real cluster."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.harness import ROOT, TRAIN, Launch, alive, golden, holdfast, until
from tests.process.raycluster import RAY, RealCluster
from tests.process.test_resume import crash, has_checkpoint_of

pytestmark = [pytest.mark.process, pytest.mark.sharing]


@pytest.fixture(scope="module")
def shared() -> Iterator[RealCluster]:
    with RealCluster(nodes=2, cpus=2) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: RealCluster) -> RealCluster:
    """A head without CPUs and two nodes with two each."""
    shared.restore()
    return shared


class RayLaunch(Launch):
    """A run on a cluster. Its agents are children of Ray's processes, so they are looked for by what the story says."""

    def __init__(self, tmp_path: Path, cluster: RealCluster, script: str, *options: object, args: str = "") -> None:
        super().__init__(
            tmp_path, script, "--on", "ray", "--set", f"ray.address={cluster.address}", *options, args=args
        )

    @property
    def agents(self) -> list[int]:
        """The pids of the agents that came up."""
        told = (re.search(r"agent \d+ runs on .*, as process (\d+)$", line) for line in self.story)
        return [int(found[1]) for found in told if found]

    def nothing_is_left(self) -> None:
        super().nothing_is_left()
        left = [pid for pid in self.agents if alive(pid)]
        assert not left, f"agents are left: {left}"


@RAY
@pytest.mark.chaos
@pytest.mark.parametrize("sync", ["exact", "async"])
def test_servers_on_a_node(tmp_path: Path, cluster: RealCluster, sync: str) -> None:
    crew = ("--hosts", 2, "--workers", 1, "--servers", 1, "--lanes", 4, "--sync", sync, "--set", "ray.most=2")
    with RayLaunch(tmp_path, cluster, "normed", *crew) as run:
        assert run.end() == 0, run.err
    assert any(re.search(r"server \d owns the parameters", line) for line in run.story), run.story
    assert sync != "exact" or run.sha256 == golden("normed", 4)


@RAY
@pytest.mark.parametrize(
    ("model", "hosts", "workers", "lanes"),
    [
        ("normed", 2, 1, 4),
        *(pytest.param(*case, marks=pytest.mark.chaos) for case in (("lenet", 1, 2, 4), ("transformer", 2, 2, 4))),
    ],
)
def test_weights_are_those_of_plain_python(
    tmp_path: Path, cluster: RealCluster, model: str, hosts: int, workers: int, lanes: int
) -> None:
    crew = ("--hosts", hosts, "--workers", workers, "--lanes", lanes, "--set", f"ray.most={hosts}")
    with RayLaunch(tmp_path, cluster, model, *crew) as run:
        assert run.end() == 0, run.err
        run.trace.audit(samples=484, steps_of_epoch=16, epochs=3)
    assert run.sha256 == golden(model, lanes)
    assert f"weights_sha256 {run.sha256}" in run.out, "the script sees other weights than the summary"
    assert run.summary["workers_lost"] == 0
    assert len(run.agents) == hosts
    ends = [line for line in run.story if line.startswith("agent ") and "is gone" in line]
    assert len(ends) == hosts and all("it ended with status 0" in line for line in ends), ends
    assert "joined run" in (run.dir / "logs" / "agent-0.log").read_text()


@RAY
def test_a_new_node_joins_and_a_killed_one_is_survived(tmp_path: Path, cluster: RealCluster) -> None:
    crew = ("--hosts", 2, "--workers", 1, "--lanes", 4)
    # Slow until both have happened: Ray has to start a node, and Python and torch have to start there.
    with RayLaunch(tmp_path, cluster, "normed", *crew, args=f"--epochs 12 --linger {tmp_path}/go") as run:
        run.at_step(2)
        secret = (run.dir / "token").read_bytes().strip()
        cluster.add()
        run.crew_of(3, 60)
        cluster.kill()
        run.crew_of(2, 60)
        (tmp_path / "go").touch()
        assert run.end(120) == 0, run.err
    assert run.sha256 == golden("normed", 4, "--epochs", "12")
    assert len(run.agents) == 3
    assert run.summary["workers_lost"] == 1
    assert any("lost" in line and "host" in line for line in run.story)
    kept = list(cluster.files())
    assert any(path.suffix == ".log" for path in kept)
    assert secret and not [path for path in kept if secret in path.read_bytes()], "Ray has written the token down"


@RAY
@pytest.mark.chaos
def test_ctrl_c_ends_the_run_and_leaves_nothing(tmp_path: Path, cluster: RealCluster) -> None:
    with RayLaunch(tmp_path, cluster, "lenet", "--hosts", 2, args="--epochs 50 --pace 0.02") as run:
        run.at_step(5)
        run.send(signal.SIGINT)
        assert run.end(30) == 130, run.err
        assert run.summary["outcome"] == "stopped"


@RAY
@pytest.mark.chaos
def test_a_killed_launcher_takes_its_agents_along(tmp_path: Path, cluster: RealCluster) -> None:
    with RayLaunch(tmp_path, cluster, "lenet", "--hosts", 2, args="--epochs 50 --pace 0.02") as run:
        run.at_step(5)
        pids = [*run.agents, *(worker["pid"] for worker in run.status()["workers"])]
        assert len(pids) == 4
        run.process.kill()
        run.process.wait()
        until(lambda: not any(map(alive, pids)), "agents and workers end with the launcher")
        until(lambda: not run.processes(), "the driver ends with the launcher")
        assert holdfast("status", run.dir).returncode == 0  # and sweeps up after it


@RAY
@pytest.mark.chaos
def test_a_run_whose_launcher_was_killed_goes_on_there(tmp_path: Path, cluster: RealCluster) -> None:
    crew = ("--hosts", 2, "--workers", 1, "--lanes", 4, "--checkpoint", "1step")
    with RayLaunch(tmp_path, cluster, "normed", *crew, args="--pace 0.02") as run:
        has_checkpoint_of(run, 4)
        crash(run)
        until(lambda: not [pid for pid in run.agents if alive(pid)], "the end of the agents", 20.0)
    with RayLaunch(tmp_path, cluster, "normed", "--resume", run.dir, args="") as run:
        assert run.end() == 0, run.err
    assert run.sha256 == golden("normed", 4) and run.summary["resumed"]["step"] >= 4


@RAY
def test_a_cluster_that_is_too_small(tmp_path: Path, cluster: RealCluster) -> None:
    where = ("--on", "ray", "--set", f"ray.address={cluster.address}", "--dir", tmp_path / "run")
    done = holdfast("run", *where, "--hosts", 3, "--workers", 4, TRAIN, "lenet")
    assert done.returncode == 7
    told = " ".join(done.stderr.split())
    assert "is too small: 3 nodes with 4 CPUs each are wanted (for 4 workers with 1 CPU each)" in told
    assert told.count("with 2 CPUs: 2 CPUs missing") == 2
    assert "--set ray.wait=10m" in told


@RAY
def test_no_cluster_at_that_address(tmp_path: Path) -> None:
    done = holdfast("run", "--on", "ray", "--set", "ray.address=127.0.0.1:1", "--dir", tmp_path / "r", TRAIN, "lenet")
    assert done.returncode == 10
    assert "There is no Ray cluster at 127.0.0.1:1: Connection refused. Start one there" in done.stderr


def test_no_ray_installed(tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError(\"No module named 'ray'\")\n")
    paths = f"{tmp_path}:{ROOT / 'src'}"
    done = holdfast("run", "--on", "ray", "--dir", tmp_path / "r", TRAIN, "lenet", PYTHONPATH=paths)
    assert done.returncode == 2, done.stderr
    assert "--on ray needs the package ray" in done.stderr
    assert "pip install 'holdfast[ray]'" in done.stderr
