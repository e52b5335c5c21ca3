"""What is said about replicas on other machines, as msgpack.

    front door ── gateway       Listen, Place, Kill; Listening, MachineJoined, ReplicaGone, ...     over a link
    gateway ══ replica host     OpenReplica; Withdraw                     over its control connection
    gateway ══ replica host     Fetch, FilePiece, Gone                    over a replica's connection, beside what
                                                                          `serve.replica.messages` has

Tensors and pieces of files are not in them: they travel as raw bytes before them (`carrier`).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.serve.replica import messages as replica

__all__ = [
    "Beat", "CannotListen", "Complaint", "Fate", "Fetch", "FilePiece", "FromDoor", "FromGateway", "FromHost",
    "FromHosted", "Gone", "Kill", "Listen", "Listening", "MachineJoined", "MachineLeaving", "MachineLost",
    "OpenReplica", "Over", "Place", "ReplicaGone", "ToHost", "ToHosted", "Withdraw", "decode_from_door",
    "decode_from_gateway", "decode_from_host", "decode_from_hosted", "decode_to_host", "decode_to_hosted", "encode",
]  # fmt: skip


Fate = Literal["let go", "lost", "not started"]

# ------------------------------------------------------------ front door and gateway


class Listen(msgspec.Struct, frozen=True, tag=1, array_like=True):
    """To the gateway, first: listen there, and let in whoever has these credentials."""

    host: str
    port: int
    credentials: str  #: `Credentials.text`
    run: str


class Place(msgspec.Struct, frozen=True, tag=2, array_like=True):
    """To the gateway: this replica is to be on that machine; the other end of its link comes with this."""

    replica: int
    machine: int


class Kill(msgspec.Struct, frozen=True, tag=3, array_like=True):
    """To the gateway: end this replica at once."""

    replica: int


class Listening(msgspec.Struct, frozen=True, tag=1, array_like=True):
    """From the gateway: it listens there."""

    host: str
    port: int


class CannotListen(msgspec.Struct, frozen=True, tag=2, array_like=True):
    """From the gateway: it cannot, and ends. `error` is a class in `errors`."""

    error: str
    reason: str


class MachineJoined(msgspec.Struct, frozen=True, tag=3, array_like=True):
    """From the gateway: a machine with room for so many replicas. Its number is given to no other one."""

    machine: int
    name: str
    slots: int


class MachineLeaving(msgspec.Struct, frozen=True, tag=4, array_like=True):
    """From the gateway: it asks to be rid of its replicas."""

    machine: int


class MachineLost(msgspec.Struct, frozen=True, tag=5, array_like=True):
    """From the gateway: it is gone, for whatever reason."""

    machine: int
    reason: str


class ReplicaGone(msgspec.Struct, frozen=True, tag=6, array_like=True):
    """From the gateway: a replica is gone: let go by the front door, lost, or before it had loaded its version."""

    replica: int
    how: str
    fate: Fate


class Complaint(msgspec.Struct, frozen=True, tag=7, array_like=True):
    """From the gateway: whom it has turned away."""

    sentence: str


FromDoor = Listen | Place | Kill
FromGateway = Listening | CannotListen | MachineJoined | MachineLeaving | MachineLost | ReplicaGone | Complaint

# ------------------------------------------------------------ gateway and replica host


class OpenReplica(msgspec.Struct, frozen=True, tag=1, array_like=True):
    """To the host: have a process for one more replica, and connect for it, showing this ticket."""

    ticket: str


class Beat(msgspec.Struct, frozen=True, tag=2, array_like=True):
    """In both directions: a sign of life."""


class Over(msgspec.Struct, frozen=True, tag=4, array_like=True):
    """To the host, last: the server has ended."""


class Withdraw(msgspec.Struct, frozen=True, tag=3, array_like=True):
    """From the host: it is to leave, once its replicas have been replaced elsewhere."""


ToHost = OpenReplica | Beat | Over
FromHost = Beat | Withdraw

# ------------------------------------------------------------ on a replica's connection


class Fetch(msgspec.Struct, frozen=True, tag=20, array_like=True):
    """From the host: send this file of the version."""

    name: str


class FilePiece(msgspec.Struct, frozen=True, tag=21, array_like=True):
    """To the host: bytes of it are before this. `problem`: why there are no more."""

    last: bool
    problem: str = ""


class Gone(msgspec.Struct, frozen=True, tag=22, array_like=True):
    """From the host, last: how the replica has ended."""

    how: str


FromHosted = replica.FromReplica | Fetch | Gone
ToHosted = replica.ToReplica | FilePiece

AnyMessage = FromDoor | FromGateway | ToHost | FromHost | FromHosted | ToHosted


def encode(message: AnyMessage) -> bytes:
    """As it travels."""
    return msgspec.msgpack.encode(message)


decode_from_door = msgspec.msgpack.Decoder(FromDoor).decode
decode_from_gateway = msgspec.msgpack.Decoder(FromGateway).decode
decode_to_host = msgspec.msgpack.Decoder(ToHost).decode
decode_from_host = msgspec.msgpack.Decoder(FromHost).decode
decode_from_hosted = msgspec.msgpack.Decoder(FromHosted).decode
decode_to_hosted = msgspec.msgpack.Decoder(ToHosted).decode
