"""What people see of a going run: the progress line, and what the lead worker prints."""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast.config.limits import SCREEN
from holdfast.control.membership.roster import CrewStatus, titled
from holdfast.control.shell.coordinator import Coordinator
from holdfast.observe.meter import Meter
from holdfast.observe.progress import line
from holdfast.observe.screen import Screen, Tail

__all__ = ["Display", "awaited", "heard"]


class Display:
    """Shows one run. `logs` is where the output of its workers comes in."""

    def __init__(self, screen: Screen, server: Coordinator, meter: Meter, logs: Path) -> None:
        self._screen, self._server, self._meter, self._logs = screen, server, meter, logs
        self._lead = -1
        self._tail: Tail | None = None
        self._held: list[str] = []
        server.before_generation = self.echo  # what another lead prints from now on counts, however soon it ends

    async def show(self) -> None:
        """Show it, until cancelled."""
        while True:
            self.echo()
            snapshot, now = self._server.snapshot(), self._server.now()
            if snapshot.generation:
                self._screen.progress(line(self._meter.view, self._screen.width), now)
            else:
                self._screen.progress(f"{now:.0f} s: {awaited(snapshot)}", now)
            await asyncio.sleep(SCREEN.update)

    def echo(self, *, last: bool = False) -> None:
        """Pass on what the lead worker printed."""
        lead = heard(self._server.snapshot(), last=last)
        if lead != self._lead:
            self._flush(last=True)
            # The first lead is heard from its beginning; a later one has said it all before.
            path = self._logs / f"worker-{lead}.log"
            self._tail, self._lead = Tail(path, from_end=self._lead >= 0), lead
        self._flush(last=last)

    def _flush(self, *, last: bool = False) -> None:
        """Say what was read last time, hold back what is read now: it may be the trace of a failure.

        A script that raises prints its trace, and reports it; the report is told at the end, once.
        """
        new = self._tail.lines(last=last) if self._tail else []
        if self._lead in self._server.failed:
            self._held = []
            return
        for text in [*self._held, *new] if last else self._held:
            self._screen.echo(text)
        self._held = [] if last else new


def heard(snapshot: CrewStatus, *, last: bool) -> int:
    """Whose output is shown: the lead's. In a run that has ended without a step, that of whose result counts; -1: none.

    Before the end nobody knows whether there will be a lead, and who.
    """
    if snapshot.lead is not None or not last:
        return -1 if snapshot.lead is None else snapshot.lead
    return min((person.worker for person in snapshot.people if person.stage == "finished"), default=-1)


def awaited(snapshot: CrewStatus) -> str:
    """Whom the first step waits for."""
    late = [person for person in snapshot.people if person.stage == "starting"]
    missing = snapshot.hosts_wanted - sum(not host.leaving for host in snapshot.hosts)
    more = " more" if snapshot.hosts else ""
    who = titled([p.worker for p in late], [p.worker for p in late if p.server])
    parts = [f"for {who} to reach the first step"] if late else []
    if missing > 0 or not parts:
        hosts = f"{max(missing, 1)}{more} host{'s' * (missing > 1)}"
        parts.append(f"for {hosts} to join")
    return f"waiting {' and '.join(parts)}"
