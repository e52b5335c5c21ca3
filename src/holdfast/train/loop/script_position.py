"""The script's position: whether workers that wait for each other are at the same place of the script.

A script that does one thing on one worker and another on the next would wait for ever. The board shows the newest
operation that each has begun, so it is said instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol

from holdfast.config.limits import WORKER
from holdfast.control.membership.roster import titled
from holdfast.core.roles import Role
from holdfast.dataplane.memory.results import NESTED
from holdfast.errors import OutOfSync

__all__ = ["FINISHED", "NONE", "STEPS", "ScriptPosition", "ordinal"]

FINISHED = 1 << 60  #: beyond every operation
NONE = -NESTED  #: before the first operation
STEPS = -1  #: the kind of operation that a loop by steps is; 0: a plain loop, above: an evaluation of so many parts


def ordinal(op: int) -> int:
    """Which operation of the script this is, or is inside of."""
    return op // NESTED


class _Membership(Protocol):
    at: Role


class _Crew(Protocol):
    @property
    def member(self) -> _Membership: ...

    def ops(self) -> Iterator[tuple[int, int]]: ...

    def line(self, worker: int) -> int: ...


class ScriptPosition:
    """Looks for members that have gone on to another place of the script."""

    def __init__(self, crew: _Crew) -> None:
        self._crew = crew
        self._apart: tuple[tuple[int, ...], float] | None = None  # who of another host has gone on, and since when

    def check(self, mine: int, step: int, come: Callable[[], bool]) -> None:
        """Raise where a member that this worker waits for, in operation `mine`, has gone on to another one.

        Unless what it waits for has `come` meanwhile: then the other one has gone on rightly, a moment ago.
        It is asked last, because the other one shows its work before it goes on.
        """
        at = self._crew.member.at
        if at.following:
            return  # the crew is ahead, and waits for nobody here
        for worker, op in self._crew.ops():
            if op > mine and not come() and self._for_long(worker, (worker, op, mine, step)):
                line = self._crew.line(worker)
                there = "has ended the script" if op == FINISHED else f"is further on in the script (line {line})"
                who, me = (titled([number], at.servers) for number in (worker, at.worker))
                raise OutOfSync(
                    f"{who.capitalize()} {there}, while {me} waits for it at step "
                    f"{step}. Every worker must make the same loops over the loader and the same calls of "
                    "run.evaluate: leave loops on something all agree on, such as run.step, and use run.lead only to "
                    "print, save and plot."
                )

    def _for_long(self, worker: int, what: tuple[int, ...]) -> bool:
        """Has it been so for a while? What a worker of this host did is here before it goes on. From another host it
        may come by another way than the news that it went on, and a little later.
        """
        if worker in self._crew.member.at.on_host:
            return True
        now = time.monotonic()
        if self._apart is None or self._apart[0] != what:
            self._apart = what, now
        return now - self._apart[1] > WORKER.script_apart

    def check_kind(self, op: int, mine: int, theirs: int) -> None:
        """Raise where operation `op` is of one kind here, and of another where others have begun it."""
        if mine == theirs:
            return
        loops = {0: "a loop over the loader", STEPS: "a loop by steps"}
        kinds = [loops.get(kind, f"an evaluation of {kind} parts") for kind in (mine, theirs)]
        at = self._crew.member.at
        me = titled([at.worker], at.servers)
        raise OutOfSync(
            f"{me.capitalize()} begins {kinds[0]} where others began {kinds[1]} (operation {ordinal(op)} of the "
            "script). Every worker must make the same loops and evaluations: use run.lead only to print, save and plot."
        )
