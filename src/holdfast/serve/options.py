"""What `holdfast serve` was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

__all__ = ["ServeOptions"]


class ServeOptions(NamedTuple):
    """All settings of a server."""

    models: tuple[Path, ...]
    name: str = ""  #: of the only model; else its folder's
    replicas: int = 1  #: at first, and at the least
    most_replicas: int = 0  #: to which their number may grow; 0: it stays
    objective: float = 0.05  #: seconds within which nearly all answers are to be given
    host: str = "127.0.0.1"
    port: int = 0  #: 0: the system chooses one
    grpc_port: int | None = 0  #: None: no gRPC
    token: str | None = None
    certificate: Path | None = None  #: with its key, for TLS
    key: Path | None = None
    admin_port: int | None = None  #: None: there is no control plane
    admin_grpc_port: int | None = None  #: of the same over gRPC
    admin_token: str | None = None
    metrics_port: int | None = None  #: None: beside everything else, at /metrics
    listen: str = ""  #: address for other machines that compute; empty: none may
    machine_secret: Path | None = None  #: what lets them in; None: made
    tls: bool = False  #: between machines
    here: int | None = None  #: replicas that this machine has room for, beside others; None: one for every CPU
    on: str = "local"  #: or `ray`, which starts machines
    hosts: int = 1  #: that it starts
    threads: int = 1  #: of torch, in each replica
    batch: int = 256  #: items that are computed together at the most
    body: int = 64 << 20  #: bytes of a request
    memory: int = 0  #: bytes that a replica may have; 0: what the machine has
    hang: float = 10.0  #: seconds after which a replica that computes one batch is taken for hung
    prove: float = 10.0  #: seconds for which the version before a new one is kept
    drain: float = 30.0  #: seconds that requests are waited for at the end
    log_requests: bool = False  #: all of them, not only those that went wrong
    directory: Path | None = None  #: for logs
