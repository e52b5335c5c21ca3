"""What the machine knows about a run. Data only; `machine` fills it in, `reconcile` acts on it.

Besides the facts it holds what one event leads to: the commands (`crew.out`), and the sentence for the
story in two halves, what happened and what follows from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from holdfast.control.blame import Blame
from holdfast.control.lane_balance import LaneBalance, LaneChange
from holdfast.control.membership.crew import Crew
from holdfast.control.membership.hosts import Hosts
from holdfast.control.membership.roster import CrewLimits
from holdfast.control.protocol.commands import EndRun, FailRun
from holdfast.control.protocol.messages import Failed, Reached, Ready
from holdfast.control.slice_balance import OwnerChange, SliceBalance
from holdfast.core.endings import Ending
from holdfast.core.sync.modes import parse

__all__ = ["Result", "RunState", "WorkerRefusal"]

Result = dict[str, str | int | float | bool | list[int] | None]


@dataclass(frozen=True, slots=True)
class WorkerRefusal:
    """Why a worker was refused, as a class of error and a sentence, and where it was."""

    kind: str
    why: str
    host: int


@dataclass(slots=True)
class RunState:
    """Everything that is known."""

    limits: CrewLimits
    crew: Crew
    blame: Blame
    balance: LaneBalance = field(default_factory=LaneBalance)
    proposal: LaneChange | None = None  #: another assignment that is to be installed
    owning: SliceBalance = field(default_factory=SliceBalance)
    moving: OwnerChange | None = None  #: other owners among the same servers that are to be installed
    servers: int = 0  #: how many there should be
    sync: str = "exact"  #: how lanes should keep step
    only_exact: str = ""  #: what the script does that only `exact` has, as a clause
    modes: list[Reached] = field(default_factory=list)  #: how they have, the newest last
    begun: dict[int, int] = field(default_factory=dict)  #: serial of a mode -> the generation that it began with
    running: bool = False
    resumed: bool = False  #: it goes on with the state of a checkpoint
    ended: bool = False  #: it had come to its end before: the first worker that is ready may read other data
    over: bool = False  #: EndRun or FailRun was ordered
    first: Ready | None = None  #: the measure for all others
    first_ready: float = 0.0
    seeder: int | None = None  #: who fills the arena now
    seeded: bool = False
    refused: dict[int, WorkerRefusal] = field(default_factory=dict)  #: by worker, until the next scaling
    drain: str | None = None  #: why the run is to end at its next step
    signal: int = 0  #: the number of the signal that asked for that, if one did
    finished: dict[int, Result] = field(default_factory=dict)
    again: dict[int, dict[str, str]] = field(default_factory=dict)  #: whose script joins again -> its variables there
    lead: int | None = None  #: the worker that finished as the lead of its generation
    gather: float | None = None  #: when failures of the script are told
    failures: list[Failed] = field(default_factory=list)  #: what will be told then
    endings: dict[int, tuple[int, int, Ending]] = field(default_factory=dict)  #: worker -> version, step, how it ended
    ended_on: dict[int, int] = field(default_factory=dict)  #: finished worker -> its host
    bereft: str = ""  #: the last host that held the state and was lost, and why
    renew: str = ""  #: why there is to be a new generation, though with the same members; empty: there need not be
    unreached: dict[tuple[int, int], str] = field(default_factory=dict)  #: which host cannot reach which, and why
    judged: float = 0.0  #: when it is decided who goes for that
    summed: bool = False  #: somebody follows, or is to: steps are to be finished from sums
    lost: int = 0
    happened: list[str] = field(default_factory=list)
    follows: list[str] = field(default_factory=list)
    replacing: bool = False  #: whoever starts now takes somebody's place

    @property
    def hosts(self) -> Hosts:
        """The machines that are part of the run."""
        return self.crew.hosts

    @property
    def sizes(self) -> Sequence[int]:
        """Bytes of the bundles that the parameters are owned in; empty where nobody has said so."""
        return self.first.sizes if self.first is not None else ()

    @property
    def central(self) -> bool:
        """Does one host hold the state, and the others mirror it, because lanes need not keep step?"""
        return not parse(self.modes[-1].sync).exact

    @property
    def version(self) -> int:
        """The version that the run has come to, as far as is known. Where lanes keep step, each step makes one."""
        reached = self.modes[-1]
        return reached.version if self.central else self.blame.step + reached.version - reached.step

    @property
    def wanted(self) -> int:
        """How many workers there should be: what the hosts have room for, at most one a lane."""
        there = self.hosts.staying() or list(self.hosts.live.values())
        return min(sum(host.share for host in there), self.limits.lanes) if there else self.limits.workers

    def seeding(self) -> int | None:
        """The host whose arena is being filled with the first weights."""
        return self.crew.workers[self.seeder].host if self.seeder is not None else None

    def serving(self) -> int | None:
        """The host that servers are on: where the state is, if one host holds it; else where some are, or the first.

        None: there is none yet, or none that could have any.
        """
        able = sorted(host.number for host in self.hosts.staying() if host.refills and host.share)
        first = [self.crew.primary] if self.crew.generation else able[:1]
        if not self.central:
            first = [*(worker.host for worker in self.crew.active() if worker.server), *able]
        return next((number for number in first if number in able), None)

    def room(self) -> dict[int, int]:
        """How many workers each host should have at most; those that are to leave count while nobody else is there."""
        there = self.hosts.staying() or list(self.hosts.live.values())
        refused = Counter(refusal.host for refusal in self.refused.values())
        room = {host.number: max(min(host.share, self.limits.lanes) - refused[host.number], 0) for host in there}
        for host in there:
            if not host.refills:  # those who are there, and those who are still to come
                active = sum(w.host == host.number and not w.server for w in self.crew.active())
                room[host.number] = min(room[host.number], active + max(host.slots - host.started, 0))
        return room

    def learn_lanes(self, lanes: int) -> None:
        """The script has stated its number of lanes (0: it has not). With fewer lanes than workers, some will leave."""
        if lanes in (0, self.limits.lanes):
            return
        self.limits = replace(self.limits, lanes=lanes, workers=min(self.limits.workers, lanes))
        self.crew.limits = self.blame.limits = self.limits
        self.happened.append(f"the script has {lanes} lane{'s' * (lanes > 1)}")

    def end(self, command: EndRun | FailRun) -> None:
        """Order the end of the run, and nothing else any more."""
        self.over = True
        self.crew.out = [command]
        if isinstance(command, EndRun):
            more = "the script goes on to another training" if command.again else f"the run ends ({command.reason})"
            self.follows.append(more)
        else:
            self.follows.append(f"the run fails ({command.kind}: {command.message})")
