"""What the front door and a replica say to each other over their link, as msgpack. Tensors are in shared memory.

    door:     Load ──► ... Compute ──► Compute ──► ... End
    replica:  Loaded ──► ... Computed ──► Raised ──► ... (end of file)

A descriptor of new, larger memory travels with the first message that speaks of it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

__all__ = [
    "CannotLoad", "Compute", "Computed", "End", "FromReplica", "Leaving", "Load", "Loaded", "Placed", "Raised",
    "ToReplica", "decode_from_replica", "decode_to_replica", "encode",
]  # fmt: skip


class Placed(msgspec.Struct, frozen=True, array_like=True):
    """A tensor of a whole batch in shared memory."""

    begin: int
    size: int
    shape: tuple[int, ...]
    #: Where the bytes of each item end, from `begin` on; of strings only, whose items differ in length.
    ends: tuple[int, ...] = ()


class Load(msgspec.Struct, frozen=True, tag=1, array_like=True):
    """Serve this version: load it, and try it on a few batches of up to so many items."""

    path: str
    title: str  #: of the process, for people
    most: int
    memory: int = 0  #: bytes that the process may have at the most; 0: what the machine has


class Compute(msgspec.Struct, frozen=True, tag=2, array_like=True):
    """Compute this batch: its inputs in the order of the signature."""

    number: int
    inputs: tuple[Placed, ...]


class End(msgspec.Struct, frozen=True, tag=3, array_like=True):
    """There is nothing more to compute."""


class Loaded(msgspec.Struct, frozen=True, tag=4, array_like=True):
    """The version is ready; batches of so many items have taken so many seconds."""

    measured: tuple[tuple[int, float], ...]
    memory: int  #: bytes that the process has now


class CannotLoad(msgspec.Struct, frozen=True, tag=5, array_like=True):
    """The version cannot be served."""

    reason: str


class Computed(msgspec.Struct, frozen=True, tag=6, array_like=True):
    """A batch: its outputs in the order of the signature, and in which of its items values are not finite."""

    number: int
    seconds: float
    outputs: tuple[Placed, ...]
    not_finite: tuple[int, ...]
    memory: int


class Raised(msgspec.Struct, frozen=True, tag=7, array_like=True):
    """The model has raised, or given something else than its signature says."""

    number: int
    kind: str
    message: str


class Leaving(msgspec.Struct, frozen=True, tag=8, array_like=True):
    """The process was asked to end by somebody else, and goes on until it is told to."""


ToReplica = Load | Compute | End
FromReplica = Loaded | CannotLoad | Computed | Raised | Leaving

encode: Callable[[ToReplica | FromReplica], bytes] = msgspec.msgpack.Encoder().encode
decode_to_replica: Callable[[bytes], ToReplica] = msgspec.msgpack.Decoder(ToReplica).decode
decode_from_replica: Callable[[bytes], FromReplica] = msgspec.msgpack.Decoder(FromReplica).decode
