"""Whose fault was it: bad luck, bad code or bad data. Each has its own budget.

Pure. `Blame` keeps the evidence; each of its methods takes one piece more and answers with the
`FailRun` that ends the run, or None: the worker is replaced and its work tried again.

* **Bad luck**: a worker was killed, left without a word, or had no memory outside of a unit. Forgiven, until
  `luck_budget` such losses came in a row without a step of progress. One stroke hits all who are there: a loss counts
  only if that worker was started after the last loss that counted.
* **Bad data**: one unit was lost `unit_attempts` times, whoever tried it. One that gave a NaN, or an infinity, is tried
  once more: a broken machine, or a race in somebody's code, may give one; data that does it does it again. In a plain
  loop a lost unit is not tried again, its samples join another one: there it is samples that were lost so often, with
  workers that were not killed from outside (`kill -9`, which is out of memory as well).
* **Bad code**: the script raised before any step was committed, or outside a unit, or at the same
  line in two different units with no progress between them. An exception inside a unit of a run
  that works is held for bad luck or bad data first, since a unit can simply be tried again.
* **Nothing to do**: a server, or a worker that came late, runs the whole script, and its loops may give it no batch.
  What it raises after such a loop (a mean over no batches) says nothing about the others: they go on without it.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

from holdfast import errors
from holdfast.control.membership.process_names import ProcessNames
from holdfast.control.membership.roster import CrewLimits
from holdfast.control.protocol.commands import FailRun
from holdfast.control.protocol.messages import Failed

__all__ = ["Blame", "lacks", "starved", "told", "told_let_go", "told_together"]

Unit = tuple[int, int]

_OURS = frozenset(
    name for name, item in vars(errors).items()
    if isinstance(item, type) and issubclass(item, errors.HoldfastError)
) - {"HoldfastError", "RunError", "ScriptFailed", "Stopped"}


@dataclass(slots=True)
class Blame:
    """The evidence so far."""

    limits: CrewLimits
    cast: ProcessNames
    step: int = 0  #: steps known to be committed
    _losses: list[str] = field(default_factory=list)  # since the last step of progress
    _struck: int = 0  # workers up to this number were there when the last loss was counted
    _attempts: dict[Unit, dict[int, str]] = field(default_factory=dict)  # unit -> worker -> how it ended
    _samples: dict[Unit, list[int]] = field(default_factory=dict)
    _crashed: dict[int, dict[int, str]] = field(default_factory=dict)  # sample -> worker that crashed with it -> how
    _hangs: dict[Unit, set[int]] = field(default_factory=dict)
    _unclean: dict[Unit, set[int]] = field(default_factory=dict)  # unit -> workers for which it was not finite
    _raised: dict[int, Failed] = field(default_factory=dict)  # since the last step of progress

    def progressed(self, step: int) -> bool:
        """All steps before `step` are committed. Progress forgives what came before it."""
        if step <= self.step:
            return False
        self.step = step
        self._losses.clear()
        self._raised.clear()
        for unit in [unit for unit in self._attempts if unit[0] < step]:
            del self._attempts[unit]
            self._samples.pop(unit, None)
        for evidence in (self._hangs, self._unclean):
            for unit in [unit for unit in evidence if unit[0] < step]:
                del evidence[unit]
        return True

    def lost(self, worker: int, how: str, started: int) -> FailRun | None:
        """A worker went without anybody's fault; `started` is how many workers were ever started."""
        if worker < self._struck:
            return None
        self._struck = started
        self._losses.append(f"{self.cast.placed(worker)} ({how})")
        if len(self._losses) <= self.limits.crew.luck_budget:
            return None
        shown, forgiven = "; ".join(self._losses[-4:]), self.limits.crew.luck_budget
        return FailRun(
            "CrewLost",
            f"Processes of the run were lost {len(self._losses)} times in a row without a step of progress (step "
            f"{self.step}); {forgiven} {'is' if forgiven == 1 else 'are'} forgiven. The last ones: {shown}. "
            f"Look at the end of {self.limits.logs}/worker-{worker}.log, and at the memory they need.",
        )

    def lost_unit(self, worker: int, unit: Unit, how: str, samples: list[int]) -> FailRun | None:
        """A worker went down, raised or hung in this unit."""
        tried = self._attempts.setdefault(unit, {})
        tried.setdefault(worker, how)
        if samples:
            self._samples[unit] = samples
        if len(tried) < self.limits.crew.unit_attempts:
            return self._crashed_again(worker, unit, how, samples)
        causes = list(dict.fromkeys(tried.values()))
        error = errors.BadUnit(unit[0], unit[1], self._samples.get(unit, []), self.cast.all(tried), "; ".join(causes))
        return FailRun("BadUnit", str(error), self._trace(tried))

    def _crashed_again(self, worker: int, unit: Unit, how: str, samples: list[int]) -> FailRun | None:
        if not how.startswith(("signal", "exit status")) or how == f"signal {signal.SIGKILL:d}":
            return None
        for sample in samples:
            self._crashed.setdefault(sample, {}).setdefault(worker, how)
        often = [s for s in samples if len(self._crashed[s]) >= self.limits.crew.unit_attempts]
        if not often:
            return None
        tried = self._crashed[often[0]]
        causes = "; ".join(dict.fromkeys(tried.values()))
        return FailRun("BadUnit", str(errors.BadUnit(*unit, often, self.cast.all(tried), causes)), self._trace(tried))

    def hung(self, worker: int, unit: Unit | None, seconds: float, where: str) -> FailRun | None:
        """A worker made no progress for `seconds`; in a unit that is forgiven once."""
        if unit is not None:
            hangs = self._hangs.setdefault(unit, set())
            hangs.add(worker)
            if len(hangs) < 2:
                return None
            place = f"in unit (step {unit[0]}, lane {unit[1]}), as {self.cast.all(hangs - {worker})} did before"
        else:
            place = "outside any unit"
        return FailRun(
            "Hang",
            f"{self.cast.placed(worker)} made no progress for {seconds:.1f} s {place}; it stands at {where}. "
            "Look at that line first: it waits for something that does not come.",
        )

    def raised(self, event: Failed) -> FailRun | bool:
        """The script raised in a worker: the end of the run, or whether it is held for bad code."""
        self.progressed(event.step)
        if event.kind == "NonFinite" and event.unit is not None:
            self._raised.setdefault(event.worker, event)
            verdict = self._not_finite(event, event.unit)
            return verdict or self.lost_unit(event.worker, event.unit, told(event), event.samples) or False
        if event.kind in _OURS:
            return FailRun(event.kind, event.message, event.trace)
        twin = any(
            (other.kind, other.where) == (event.kind, event.where) and other.unit != event.unit
            for other in self._raised.values() if other.worker != event.worker
        )
        self._raised.setdefault(event.worker, event)
        if self.step <= 0 or event.unit is None or twin:
            return True
        return self.lost_unit(event.worker, event.unit, told(event), event.samples) or False

    def _not_finite(self, event: Failed, unit: Unit) -> FailRun | None:
        tried = self._unclean.setdefault(unit, set())
        tried.add(event.worker)
        if len(tried) < 2:
            return None
        return FailRun("NonFinite", f"{event.message} It was so on {self.cast.all(tried)}.", event.trace)

    def untried(self) -> FailRun | None:
        """A unit was not finite, and nobody is left to compute it again."""
        for event in self._raised.values():
            if event.unit in self._unclean:
                return FailRun("NonFinite", f"{event.message} Nobody is left to compute it again.", event.trace)
        return None

    def failures(self) -> list[Failed]:
        """All that was raised since the last progress."""
        return list(self._raised.values())

    def failed(self, worker: int) -> bool:
        """Whether this worker's script raised since the last progress."""
        return worker in self._raised

    def _trace(self, workers: dict[int, str]) -> str:
        return next((self._raised[worker].trace for worker in workers if worker in self._raised), "")


def told(event: Failed) -> str:
    """What a worker raised, in one line."""
    message = event.message.strip().splitlines()[0] if event.message.strip() else ""
    if message.endswith("."):  # sentences, as our own errors have: the place would look like part of the last one
        return f"{event.kind} at {event.where}: {message.rstrip('.')}"
    return f"{event.kind}{': ' + message if message else ''} at {event.where}"


def idled(event: Failed) -> bool:
    """Whether the script raised for want of a batch, as far as one can tell; an error of ours tells another tale."""
    return event.idle and event.unit is None and event.kind not in _OURS


def lacks(event: Failed) -> bool:
    """Whether this worker's script cannot go on for what it has missed by coming late, and the others' can."""
    return idled(event) or event.kind == "NotKept"


def starved(event: Failed, made: int) -> bool:
    """Whether there was no memory for a process that was not in a unit, of a run that has made so many steps.

    A script that has no memory before the run's first step needs too much; and a unit may be what needs it.
    """
    return event.kind == "MemoryError" and event.unit is None and max(event.step, made) > 0


def told_idle(event: Failed, title: str) -> str:
    """That, as a sentence."""
    return (
        f"{title} had no batch in its last loop over the loader, and failed after it, at step {event.step}, with "
        f"{told(event)}"
    )


def cure(*, server: bool) -> str:
    """What to do about a script that raises where it had no batch."""
    if server:
        return "servers run the code after a loop too: use run.loss, or `if run.lead:` around what needs a batch"
    return (
        "loops that are over give a worker that comes late no batch: use run.epochs in place of range, and run.loss, "
        "or `if run.lead:` around what needs a batch"
    )


def told_let_go(event: Failed, title: str, *, server: bool) -> tuple[str, str]:
    """(why nobody takes its place, what the story says) of a worker whose script lacks what it has missed."""
    if event.kind == "NotKept":
        return event.message, f"{title} is let go, and the run goes on without it: {event.message.rstrip('.')}"
    why, advice = told_idle(event, title), cure(server=server)
    return f"{why}; {advice}", f"{why}; the run goes on without it; {advice}"


def told_together(failures: list[Failed], cast: ProcessNames, logs: str) -> FailRun:
    """One error for many failures: the first in full, the same ones grouped, others in a line each."""
    groups: dict[tuple[str, str], list[Failed]] = {}
    for failure in failures:
        groups.setdefault((failure.kind, failure.where), []).append(failure)
    lines = []
    for first, *same in groups.values():
        unit = "" if first.unit is None else f" in unit (step {first.unit[0]}, lane {first.unit[1]})"
        others = f"; {cast.all([failure.worker for failure in same])} the same" if same else ""
        title = cast.placed(first.worker)
        what = f"{title} failed{unit} with {told(first)}"
        lines.append((told_idle(first, title) if idled(first) else what) + others)
    lead = failures[0]
    output = f"the whole output is in {logs}/worker-{lead.worker}.log."
    if lead.kind == "MemoryError":
        lines[0] += (
            ". There was not enough memory: start fewer workers or servers, make the model or the batch smaller, or "
            f"use a machine that has more; {output}"
        )
        return FailRun("ResourceError", "\n".join(lines), lead.trace)
    hint = f": {cure(server=cast.serves(lead.worker))}" if idled(lead) else ""
    lines[0] += f". Fix the script at {lead.where}{hint}; {output}"
    return FailRun("ScriptFailed", "\n".join(lines), lead.trace)
