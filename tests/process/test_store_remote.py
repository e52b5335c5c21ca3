"""The store over TCP, on real processes with real kills: what holds on one host holds between hosts."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from holdfast import store
from holdfast.errors import ServerLost
from tests.process.harness import environment
from tests.process.test_store import found, going, kill_servers, total, worker

pytestmark = [pytest.mark.process, pytest.mark.sharing]


@pytest.fixture
def credentials(tmp_path: Path) -> Path:
    return tmp_path / "credentials"


KINDS = ["both", *(pytest.param(kind, marks=pytest.mark.chaos) for kind in ("dense", "rows", "spread", "several"))]


@pytest.mark.parametrize("kind", KINDS)
def test_servers_are_killed_and_every_push_of_a_far_worker_counts_once(kind: str, credentials: Path) -> None:
    dice, pushes = random.Random(kind), {"dense": 100, "both": 100, "several": 200}.get(kind, 1000)
    with store.local(servers=2, clients=2, listen="127.0.0.1") as group:
        group.write_credentials(credentials)
        near = "dense" if kind == "both" else kind
        with worker(group, "far", kind, pushes, credentials) as one, worker(group, "near", near, pushes) as two:
            for child in (one, two):
                going(child)
            kill_servers(group, dice, (one, two), most=2, nap=(0.02, 0.2))
            assert [child.wait(60) for child in (one, two)] == [0, 0]
        assert group.replaced >= 1, "a fast machine may be through before the second"
        with group.connect("reader") as mine:
            assert torch.equal(found(mine, near), total(near, 2 * pushes))


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["dense", "both", "rows", "spread", "several"])
def test_far_workers_are_killed_and_every_push_counts_once(kind: str, credentials: Path) -> None:
    dice, pushes, kills = random.Random(kind), 120, 0
    with store.local(servers=2, clients=2, listen="127.0.0.1") as group:
        group.write_credentials(credentials)
        while True:
            with worker(group, "far", kind, pushes, credentials) as one:
                going(one)
                time.sleep(dice.uniform(0.0, 0.3))
                if kills < 3 and one.poll() is None:
                    one.kill()
                    one.wait()
                    kills += 1
                    continue
                assert one.wait(60) == 0
                break
        with group.connect("reader") as mine:
            same = "dense" if kind == "both" else kind
            assert torch.equal(found(mine, same), total(same, pushes))
    assert kills >= 1, "a fast machine may be through before the third"


def test_a_far_client_is_told_when_whoever_keeps_the_servers_is_killed(credentials: Path) -> None:
    code = (
        "from holdfast import store; import sys, time\n"
        "with store.local(listen='127.0.0.1') as group:\n"
        "    group.write_credentials(sys.argv[1]); print(group.far_address, flush=True); time.sleep(60)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(credentials)], env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    mine = store.connect(child.stdout.readline().strip(), "far", credentials=credentials)
    mine.init("w", torch.zeros(3)).wait()
    place = mine._keyed_requests.wires[0]._place  # type: ignore[attr-defined]
    child.kill()
    child.wait()
    child.stdout.close()
    with pytest.raises(ServerLost) as caught:
        mine.push("w", torch.ones(3)).wait(timeout=20.0)
    assert str(caught.value) == (
        f"Server 0 of the store is gone, and nobody takes over (Nothing listens at {place[0]}:{place[1]}). What was "
        "not answered may or may not have been applied. See how the process that keeps the servers ended."
    )
    mine.close()
