"""What is said where there is no Ray, or no cluster. None of this needs Ray."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from holdfast.engines import ray_cluster
from holdfast.engines.nodes import Needs
from holdfast.engines.ray import RayFleet
from holdfast.engines.ray_cluster import RayCluster
from holdfast.errors import HoldfastError, Unreachable, UsageError


def test_no_ray_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError) as error:
        RayCluster("")
    told = str(error.value)
    assert told.startswith(f"--on ray needs the package ray, and {sys.executable} has none that works (")
    assert told.endswith("). Install it, here and on every node of the cluster: pip install 'holdfast[ray]'.")


@pytest.mark.parametrize(
    ("address", "kind", "told"),
    [
        (
            "ray://10.0.0.1:10001", UsageError,
            "--on ray works on a machine that is part of a Ray cluster, and 'ray://10.0.0.1:10001' (ray.address or "
            "RAY_ADDRESS) is not the address of one. Give host:port or auto, or use: ray job submit -- holdfast run "
            "--on ray ...",
        ),
        (
            "6379", UsageError,
            "'6379' (ray.address or RAY_ADDRESS) is not the address of a Ray cluster. Give host:port, as `ray start "
            "--head` printed it, or auto.",
        ),
        (
            "10.0.0.1:99999", UsageError,
            "'10.0.0.1:99999' (ray.address or RAY_ADDRESS) is not the address of a Ray cluster. Give host:port, as "
            "`ray start --head` printed it, or auto.",
        ),
        (
            "127.0.0.1:1", Unreachable,
            "There is no Ray cluster at 127.0.0.1:1: Connection refused. Start one there (`ray start --head`), or say "
            "where it is: --set ray.address=HOST:PORT.",
        ),
    ],
)
def test_addresses_where_there_is_no_cluster(address: str, kind: type[HoldfastError], told: str) -> None:
    with pytest.raises(kind) as error:
        ray_cluster._resolve(address)
    assert str(error.value) == told


def test_an_address_where_somebody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert ray_cluster._resolve(address) == address


def test_long_errors_are_told_by_their_best_line() -> None:
    trace = "\x1b[36mray::Post()\x1b[39m (pid=7)\n  ^\nRuntimeError: failed\n\n  ^\nModuleNotFoundError: no holdfast.\n"
    assert ray_cluster._gist(RuntimeError(trace)) == "ModuleNotFoundError: no holdfast"
    assert ray_cluster._gist(RuntimeError("\x1b[36mThe actor died.\nIts class: Post")) == "The actor died"
    assert ray_cluster._gist(RuntimeError()) == "RuntimeError"


def test_a_driver_that_dies_is_told_with_its_last_words(tmp_path: Path) -> None:
    fleet = RayFleet("", Needs(), wait=0.0, logs=tmp_path, cluster="holdfast.no_such_module:RayCluster")
    with pytest.raises(HoldfastError) as error:
        fleet.connect()
    fleet.close()
    assert str(error.value) == (
        "The connection to Ray has ended (ModuleNotFoundError: No module named 'holdfast.no_such_module'). Ray ends "
        "the hosts that it started; no new ones are started. Look at "
        f"{tmp_path / 'ray.log'}, and at the cluster: `ray status`."
    )
