"""What a worker and the coordinator say to each other. The whole vocabulary, and nothing else.

Messages travel as msgpack with a tag, over a link that keeps their boundaries. They may be lost,
doubled or reordered: every message states a *level* ("I am quiet for generation 7"), never an edge,
and is said again until it is answered. A message about an old generation is refused.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.core.placement import unbundled
from holdfast.core.roles import Assignment, primary_of
from holdfast.core.sync.modes import parse

__all__ = [
    "SCRIPT",
    "AtBoundary",
    "Failed",
    "Finished",
    "FromWorker",
    "Install",
    "Leave",
    "Leaving",
    "Pause",
    "Paused",
    "Reached",
    "Ready",
    "Refuse",
    "Seeded",
    "StaysExact",
    "Stop",
    "StoreAt",
    "StoreWanted",
    "ToWorker",
    "Welcome",
    "decode_from_worker",
    "decode_to_worker",
    "encode",
]


#: Stands for the script's own path in the name of a handler: it lies somewhere else on every host.
SCRIPT = "<script>"


class _Message(msgspec.Struct, frozen=True, tag=True):
    """A message. Subclasses are tagged by their class name on the wire."""


# ---------------------------------------------------------------- worker -> coordinator


class Ready(_Message, frozen=True):
    """The script has reached its first step: this worker could take lanes.

    `numerics` is what decides the bits (torch build, instruction set, threads, ...), `golden` the
    hash of a small fixed computation, `model` a fingerprint of model, optimizer and loader, and `parts` what those are
    made of, as far as it fits (`blueprint`). `push_bytes` is how much memory one push takes, in modes that keep some,
    and `state_bytes` what the optimizer keeps. `sizes` are the bytes of the parameters' slices, or of bundles of them
    (`core.placement`). `wholly` is why the optimizer cannot take a part of a step; empty where it can.
    """

    worker: int
    numerics: dict[str, str]
    golden: str
    model: str
    arena_bytes: int
    lanes: int = 0
    push_bytes: int = 0
    sizes: list[int] = []
    parts: bytes = b""
    num_parts: int = 0
    state_bytes: int = 0
    wholly: str = ""


class Seeded(_Message, frozen=True):
    """The arena holds this worker's weights; it may be used."""

    worker: int


class Paused(_Message, frozen=True):
    """This worker touches nothing until `generation` is installed."""

    worker: int
    generation: int
    step: int


class AtBoundary(_Message, frozen=True):
    """This worker stands at a step boundary, because the mode is to change, and goes on in a later generation only.

    There the parameters are at `version`, and the run has made so many steps.
    """

    worker: int
    generation: int
    version: int
    step: int


class StaysExact(_Message, frozen=True):
    """The script does what only the mode `exact` has, such as a loop by steps; `why` says what, as a clause."""

    worker: int
    why: str


class Leaving(_Message, frozen=True):
    """This worker was asked by its machine to leave (SIGTERM); it goes on until it is let go."""

    worker: int
    reason: str


class Finished(_Message, frozen=True):
    """The script came to its end, or to that of a training. `result` goes into the summary.

    Where the script joins `again`, for another training, that is what it has in its simple variables there.
    """

    worker: int
    generation: int
    result: dict[str, str | int | float | bool | list[int] | None]
    again: dict[str, str] | None = None


class Failed(_Message, frozen=True):
    """The script raised. `kind` names the class of error, `unit` the (step, lane) it was in, if any.

    `step` is how many steps this worker knows to be committed. In relaxed modes, its unit may be ahead.
    With `idle`, its newest loop over a loader was over without a batch for it, which what follows may have missed.
    """

    worker: int
    generation: int
    kind: str
    message: str
    where: str
    trace: str
    unit: tuple[int, int] | None = None
    samples: list[int] = []
    step: int = -1
    idle: bool = False


class StoreWanted(_Message, frozen=True):
    """The script asks for the store of this run, and says what kind. `handler` is a function by its name."""

    worker: int
    servers: int
    handler: str
    memory: int = 0  #: bytes for each server; 0: as many as there are


FromWorker = Ready | Seeded | Paused | AtBoundary | StaysExact | Leaving | Finished | Failed | StoreWanted

# ---------------------------------------------------------------- coordinator -> worker


class Welcome(_Message, frozen=True):
    """Answer to Ready; the arena's descriptor travels with it. With `seed`, fill it from your weights."""

    worker: int
    seed: bool


class Pause(_Message, frozen=True):
    """Come to rest at the end of your unit, or at once if you wait; then say Paused(generation)."""

    generation: int


class Reached(msgspec.Struct, frozen=True):
    """A way of keeping step, and from which version, and step, on lanes keep it; `serial` counts the changes."""

    serial: int = 0
    sync: str = "exact"
    version: int = 0
    step: int = 0


class Install(_Message, frozen=True):
    """The new generation. `drivers[lane]` is a worker; `rows[i]` is the row of `members[i]` on every board.

    `hosts[i]` is where it is; members are ordered by host, so that each host drives one run of lanes. Members of
    the old generation that leave are not in `members`: they get Leave instead, and exit.
    `sources` says which host a host gets the state of the run from before it goes on (it lags behind, or is new);
    hosts that are not in it have all they need. With `stop`, end the training loop before that step (0: go on).
    The wake-up descriptors of the members on the worker's own host travel with it, in their order.

    With `summed`, steps are finished from sums also on one host, because another one follows. With a `donor`, this is
    what the workers of such a host are told: they drive nothing and are waited for by nobody, and get the state and
    then every step of the crew from that host, until a later generation takes them in.

    `servers` are the members that own slices and drive no lanes. Where a host has some, its other members own none;
    and slices are summed only on hosts that have some. Without any, all members own. `owners` are runs of bundles of
    slices, in order: (server, how many). Without them, owners share by bytes. With `sums_only` servers sum, and the
    other members own.
    In relaxed modes, one host holds the state, and `replicas` a copy of it, in the order in which it is
    passed on. Hosts in `abreast` have one already of just what the primary begins with.

    `reached` is how lanes keep step in this generation, and since when. A host for which that is news takes it up
    before any of its workers hears of the generation. `sync` is how they are to keep step. Where that is another way,
    the members go to a step boundary and stand there; when all of them do, the next generation is one of that mode.
    From `exact` and from local steps they stand before the version `turn`, which is beyond any step, or round, that
    somebody may have begun; elsewhere no lane goes beyond the furthest one.

    In a plain loop of mode `exact`, `given` are the shares that have come of the step at hand, which begins with
    version `at_hand`: the first lane of each -> the host that holds it. Where there are any, the step consists of them.
    """

    generation: int
    members: list[int]
    rows: list[int]
    drivers: list[int]
    hosts: list[int]
    sources: dict[int, int]
    stop: int = 0
    summed: bool = False
    donor: int = -1
    servers: list[int] = []
    owners: list[tuple[int, int]] = []
    replicas: list[int] = []
    abreast: list[int] = []
    sums_only: bool = False
    sync: str = "exact"
    turn: int = 0
    reached: Reached = Reached()
    at_hand: int = -1
    given: dict[int, int] = {}

    def given_on(self, host: int) -> frozenset[int]:
        """The first lanes of the shares of the step at hand that this host holds."""
        return frozenset(lane for lane, holder in self.given.items() if holder == host)

    def assignment(self, slices: int) -> Assignment:
        """The same as a worker stands in it, for a model of so many slices."""
        return Assignment(
            self.members, self.rows, self.drivers, self.hosts, summed=self.summed, following=self.donor >= 0,
            servers=self.servers, owners=unbundled(self.owners, slices) if self.owners else (),
            primary=None if parse(self.reached.sync).exact else primary_of(self.hosts, self.sources),
            sums_only=self.sums_only, at_hand=self.at_hand, given=self.given,
        )  # fmt: skip


class Leave(_Message, frozen=True):
    """You are not part of the crew any more (scaled down or drained): end now, all is well."""

    worker: int
    reason: str


class Refuse(_Message, frozen=True):
    """You cannot be part of this run; `reason` says why."""

    worker: int
    reason: str


class Stop(_Message, frozen=True):
    """The run has failed because of something elsewhere: end now. Who does not is killed a moment later."""

    reason: str


class StoreAt(_Message, frozen=True):
    """Answer to StoreWanted: where it is, and what lets you in; or, with `problem`, why there is none.

    What lets a worker in never travels: to one elsewhere the coordinator says `far`, and the agent of its machine,
    which holds the same credentials, adds them when it passes this on.
    """

    worker: int
    address: str
    far: bool = False
    credentials: str = ""
    problem: str = ""

    def __repr__(self) -> str:
        return f"StoreAt(worker={self.worker}, address={self.address!r}, problem={self.problem!r})"


ToWorker = Welcome | Pause | Install | Leave | Refuse | Stop | StoreAt

#: The message's bytes.
encode: Callable[[FromWorker | ToWorker], bytes] = msgspec.msgpack.Encoder().encode
#: What a worker said, and what the coordinator said. Raise `msgspec.MsgspecError` on anything else.
decode_from_worker: Callable[[bytes], FromWorker] = msgspec.msgpack.Decoder(FromWorker).decode
decode_to_worker: Callable[[bytes], ToWorker] = msgspec.msgpack.Decoder(ToWorker).decode
