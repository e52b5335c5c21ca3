"""What a coordinator and the agent of a host elsewhere say to each other. The whole vocabulary, and nothing else.

Orders go to the agent, reports come from it. They travel as msgpack in CONTROL frames, over one connection that keeps
their order; when that connection ends, so does the host's part in the run, so nothing here is ever said again.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.config.limits import CrewConfig
from holdfast.config.worker_spec import WorkerSpec
from holdfast.control.protocol.events import Event
from holdfast.control.protocol.messages import Reached, ToWorker
from holdfast.control.protocol.ports import WatchOrder
from holdfast.core.routes import Offer
from holdfast.dataplane.memory.board_snapshot import BoardPlan, BoardRow

__all__ = [
    "Alive",
    "Brief",
    "Broke",
    "Deliver",
    "Dismiss",
    "FileData",
    "Forget",
    "Happened",
    "Kill",
    "LearnPeers",
    "Leave",
    "Order",
    "PassOn",
    "Report",
    "Reserve",
    "RunOver",
    "Said",
    "Settled",
    "Showed",
    "Start",
    "StateEnd",
    "StateHead",
    "StatePart",
    "TakeState",
    "WantState",
    "Wanting",
    "WatchWorkers",
    "decode_order",
    "decode_report",
    "encode",
]  # fmt: skip


class _Order(msgspec.Struct, frozen=True, tag=True):
    """An order, or a report. Subclasses are tagged by their class name on the wire."""


# ---------------------------------------------------------------- coordinator -> agent


class Brief(_Order, frozen=True):
    """The first order: what this run is, and what it takes to have a part in it.

    `spec` is what the launcher's own workers are told; `digests` are those of the script and of the Python files beside
    it, by name, the script's own first.
    """

    host: int
    run: str
    spec: WorkerSpec
    digests: dict[str, str]
    crew: CrewConfig  #: how patient to be with workers
    offers: dict[int, Offer]  #: how the hosts that are there can be reached
    beyond: bool  #: hosts of this run may be on other machines, so listen for them there
    resumed: Reached | None = None  #: the run goes on from a checkpoint, in this mode: see `WantState`


class Deliver(_Order, frozen=True):
    """One of the script's files, whole. `last`: there are no more."""

    name: str
    data: bytes
    last: bool


class Start(_Order, frozen=True):
    """Start a worker."""

    worker: int
    row: int


class Kill(_Order, frozen=True):
    """Kill a worker."""

    worker: int


class Reserve(_Order, frozen=True):
    """Make the arena."""

    size: int


class LearnPeers(_Order, frozen=True):
    """How hosts that came after this one can be reached."""

    offers: dict[int, Offer]


class Forget(_Order, frozen=True):
    """This host has no part in the run any more: nobody there is waited for or guided."""

    host: int


class PassOn(_Order, frozen=True):
    """Pass a message on to a worker."""

    worker: int
    message: ToWorker


class WatchWorkers(_Order, frozen=True):
    """Watch these workers. Said a few times a second: it is also the sign that the coordinator is there."""

    sight: WatchOrder


class Dismiss(_Order, frozen=True):
    """This host has no part in the run any more: leave. `kind` is that of `commands.ReleaseHost`."""

    reason: str
    kind: str = "released"


class RunOver(_Order, frozen=True):
    """The run has ended. `code` is its exit code."""

    sentence: str
    code: int


class TakeState(_Order, frozen=True):
    """Copy the state that this host holds, and send it: head, parts and end with this number; without one, the end."""

    number: int
    still: bool  #: the script has ended everywhere: no step will follow


# ---------------------------------------------------------------- both ways


class StateHead(_Order, frozen=True):
    """A state is coming: its sections and their bytes. What else is known of it is in `head` (`state_parts`)."""

    number: int
    head: bytes
    sizes: dict[str, int]


class StatePart(_Order, frozen=True):
    """Bytes of a section; without `data` they are zeros."""

    number: int
    name: str
    at: int
    size: int
    data: bytes
    checksum: int


class StateEnd(_Order, frozen=True):
    """All of it was sent."""

    number: int


Order = (
    Brief | Deliver | Start | Kill | Reserve | LearnPeers | Forget | PassOn | WatchWorkers | Dismiss | RunOver
    | TakeState | StateHead | StatePart | StateEnd
)  # fmt: skip

# ---------------------------------------------------------------- agent -> coordinator


class Wanting(_Order, frozen=True):
    """This machine has not the same script at the same path: send it."""


class Settled(_Order, frozen=True):
    """This host can take workers. `ways` says, in sentences, over which network it meets each other host."""

    offer: Offer
    ways: list[str]


class Happened(_Order, frozen=True):
    """Something happened here."""

    event: Event


class Showed(_Order, frozen=True):
    """What the board here shows."""

    rows: list[BoardRow]
    plan: BoardPlan


class Alive(_Order, frozen=True):
    """Nothing: a sign of life."""


class FileData(_Order, frozen=True):
    """What was added to a file of this host's that belongs into the run's directory."""

    name: str
    data: bytes


class Said(_Order, frozen=True):
    """A sentence for the run's story."""

    sentence: str


class Broke(_Order, frozen=True):
    """This host cannot go on; these are its last words."""

    reason: str


class Leave(_Order, frozen=True):
    """This host has ended every process of its own and is about to hang up: the answer to Release and Over."""


class WantState(_Order, frozen=True):
    """A worker here has laid out the arena: send the state that the run goes on with."""


Report = (
    Wanting | Settled | Happened | Showed | Alive | FileData | Said | Broke | Leave | WantState | StateHead | StatePart
    | StateEnd
)  # fmt: skip

#: The message's bytes.
encode: Callable[[Order | Report], bytes] = msgspec.msgpack.Encoder().encode
#: What the coordinator said, and what an agent said. Raise `msgspec.MsgspecError` on anything else.
decode_order: Callable[[bytes], Order] = msgspec.msgpack.Decoder(Order).decode
decode_report: Callable[[bytes], Report] = msgspec.msgpack.Decoder(Report).decode
