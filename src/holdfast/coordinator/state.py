"""What the machine knows about a run. Data only; `machine` fills it in, `intent` acts on it.

Besides the facts it holds what one event leads to: the commands (`crew.out`), and the sentence for the
story in two halves, what happened and what follows from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from holdfast.coordinator.commands import EndRun, FailRun
from holdfast.coordinator.crew import Crew
from holdfast.coordinator.failures import Blame
from holdfast.coordinator.messages import Failed, Ready
from holdfast.coordinator.policy import Balance, Proposal
from holdfast.coordinator.roster import CrewLimits

__all__ = ["Result", "RunState"]

Result = dict[str, str | int | float | bool | None]


@dataclass(slots=True)
class RunState:
    """Everything that is known."""

    limits: CrewLimits
    crew: Crew
    blame: Blame
    wanted: int
    balance: Balance = field(default_factory=Balance)
    proposal: Proposal | None = None  #: another assignment that is to be installed
    running: bool = False
    over: bool = False  #: EndRun or FailRun was ordered
    first: Ready | None = None  #: the measure for all others
    first_ready: float = 0.0
    seeder: int | None = None  #: who fills the arena now
    seeded: bool = False
    refused: dict[int, tuple[str, str]] = field(default_factory=dict)  #: worker -> (error, why), until the next scaling
    drain: str | None = None  #: why the run is to end at its next step
    finished: dict[int, Result] = field(default_factory=dict)
    lead: int | None = None  #: the worker that finished as the lead of its generation
    gather: float | None = None  #: when failures of the script are told
    failures: list[Failed] = field(default_factory=list)  #: what will be told then
    lost: int = 0
    happened: list[str] = field(default_factory=list)
    follows: list[str] = field(default_factory=list)
    replacing: bool = False  #: whoever starts now takes somebody's place

    def learn_lanes(self, lanes: int) -> None:
        """The script has stated its number of lanes (0: it has not). With fewer lanes than workers, some will leave."""
        if lanes in (0, self.limits.lanes):
            return
        self.wanted = min(self.wanted, lanes)
        self.limits = replace(self.limits, lanes=lanes, workers=min(self.limits.workers, lanes))
        self.crew.limits = self.blame.limits = self.limits
        self.happened.append(f"the script has {lanes} lane{'s' * (lanes > 1)}")

    def end(self, command: EndRun | FailRun) -> None:
        """Order the end of the run, and nothing else any more."""
        self.over = True
        self.crew.out = [command]
        if isinstance(command, EndRun):
            self.follows.append(f"the run ends ({command.reason})")
        else:
            self.follows.append(f"the run fails ({command.kind}: {command.message})")
