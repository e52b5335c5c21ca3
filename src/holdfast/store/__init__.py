"""The parameter store: push, pull, push_pull, barrier and broadcast on keys, for algorithms of your own.

    from holdfast import store

    with store.local(servers=2) as group, group.connect("worker-0") as mine:
        mine.init("w", torch.zeros(1000)).wait()
        mine.push("w", torch.ones(1000))
        w = mine.pull("w").result(timeout=5.0)

On one host values never travel through a socket: what is pushed is written once into shared memory, and what is pulled
is a view of the version that the server has published. Clients of other hosts come in over TCP, where that was asked
for. docs/store.md tells the rest. Importing this package imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.store.client.handle import Handle, wait
    from holdfast.store.client.store import Store, connect
    from holdfast.store.group import Group, local
    from holdfast.store.handlers import elementwise, elementwise_into
    from holdfast.store.server.server import Server
    from holdfast.store.tensors import Rows

__all__ = ["Group", "Handle", "Rows", "Server", "Store", "connect", "elementwise", "elementwise_into", "local", "wait"]

_PARTS = {
    "Group": "group",
    "Handle": "client.handle",
    "Rows": "tensors",
    "Server": "server.server",
    "Store": "client.store",
    "connect": "client.store",
    "elementwise": "handlers",
    "elementwise_into": "handlers",
    "local": "group",
    "wait": "client.handle",
}


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return getattr(import_module(f"holdfast.store.{_PARTS[name]}"), name)
    raise AttributeError(f"module 'holdfast.store' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
