"""What a rank of a launcher and its node's helper say to each other. The whole vocabulary, and nothing else.

The helper is the process that speaks for a node: it coordinates the run, or is the agent of its machine (see
`cli.launch.torchrun_helper`). It is told its charge on its standard input, where no other user can read along. Ranks
reach it over a socket without a name in any file system, and only ranks of the same user are heard.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.config.worker_spec import WorkerSpec

__all__ = [
    "Announced",
    "Barred",
    "Enlisted",
    "FromRank",
    "HelperTask",
    "Listening",
    "Parted",
    "RunOver",
    "SignalAsked",
    "ToRank",
    "decode_from_rank",
    "decode_task",
    "decode_to_rank",
    "encode",
]  # fmt: skip


class HelperTask(msgspec.Struct, frozen=True):
    """What a helper is to do. With `places` it joins the run that listens there; without, it coordinates it."""

    ranks: tuple[int, ...]  #: of this node, in order
    script: str
    args: tuple[str, ...] = ()
    lanes: int = 0
    seed: int = 0
    threads: int = 0
    nodes: int = 1
    listen: str = ""  #: where other nodes can reach it; empty: there are none
    dir: str = ""  #: the run's directory; empty: a new one under runs/
    restart: int = 0
    places: tuple[tuple[str, int], ...] = ()
    token: str = ""


class _RankMessage(msgspec.Struct, frozen=True, tag=True):
    """Subclasses are tagged by their class name on the wire."""


# ---------------------------------------------------------------- rank -> helper


class Announced(_RankMessage, frozen=True):
    """I am here. A pidfd of the rank travels with it. `index` is its place among the ranks of the node."""

    index: int
    rank: int
    pid: int


class SignalAsked(_RankMessage, frozen=True):
    """The launcher, or somebody at a terminal, sent me this signal: I am to end."""

    signal: str


class Parted(_RankMessage, frozen=True):
    """I have said my last word to the run and touch nothing of it any more."""


FromRank = Announced | SignalAsked | Parted

# ---------------------------------------------------------------- helper -> rank


class Listening(_RankMessage, frozen=True):
    """To the leader of the first node: other nodes can reach the run here, and with this token."""

    addresses: list[str]
    port: int
    token: str


class Enlisted(_RankMessage, frozen=True):
    """You are this worker. The link to the coordinator travels with it."""

    spec: WorkerSpec


class Barred(_RankMessage, frozen=True):
    """There is no run for you; `kind` is a class of `errors`."""

    kind: str
    message: str


class RunOver(_RankMessage, frozen=True):
    """The run has ended; what is still to be written is being written."""


ToRank = Listening | Enlisted | Barred | RunOver

#: The message's bytes.
encode: Callable[[FromRank | ToRank | HelperTask], bytes] = msgspec.msgpack.Encoder().encode
#: What a rank said, what the helper said, and what it is to do. Raise `msgspec.MsgspecError` on anything else.
decode_from_rank: Callable[[bytes], FromRank] = msgspec.msgpack.Decoder(FromRank).decode
decode_to_rank: Callable[[bytes], ToRank] = msgspec.msgpack.Decoder(ToRank).decode
decode_task: Callable[[bytes], HelperTask] = msgspec.msgpack.Decoder(HelperTask).decode
