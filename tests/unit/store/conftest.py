"""A store of two servers in threads, and two of its clients: on this host, and over TCP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast import store


@pytest.fixture(params=["near", "far"])
def reach(request: pytest.FixtureRequest) -> str:
    """On this host, or over TCP as from another one."""
    return str(request.param)


@pytest.fixture
def group(reach: str) -> Iterator[store.Group]:
    with store.local(servers=2, clients=2, threads=True, listen="127.0.0.1" if reach == "far" else None) as group:
        yield group


def connected(group: store.Group, reach: str, name: str) -> store.Store:
    if reach == "near":
        return group.connect(name, timeout=10.0)
    return store.Store(group.far_address, name, credentials=group.listener.credentials, timeout=10.0)


@pytest.fixture
def mine(group: store.Group, reach: str) -> Iterator[store.Store]:
    with connected(group, reach, "a") as one:
        yield one


@pytest.fixture
def other(group: store.Group, reach: str) -> Iterator[store.Store]:
    with connected(group, reach, "b") as one:
        yield one
