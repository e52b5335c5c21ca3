"""How a run ended: its exit code, its summary, and what is said last. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.config.run_config import SAID_BY_JOIN
from holdfast.control.protocol.commands import EndRun, FailRun
from holdfast.observe.meter import RunView
from holdfast.observe.progress import short_number
from holdfast.observe.stacks import user_frames

__all__ = ["Ending", "WentOnFrom", "last_line", "present", "summary"]

#: Of what is printed when a run fails; and of that, frames of the script.
_MOST_LINES, _MOST_FRAMES = 14, 4
#: Of each training, in the summary.
_OF_EACH = ("steps", "epochs", "samples", "weights_sha256", "loss", "lanes", "seed", "threads", "units")


class WentOnFrom(NamedTuple):
    """Where a run went on that had come to an end."""

    step: int
    samples: int
    checkpoint: str
    training: int = 1


@dataclass(slots=True)
class Ending:
    """How a run ended. `signal` is the number of the signal that asked for it, 0 if none did."""

    end: EndRun | FailRun
    signal: int = 0
    view: RunView = field(default_factory=RunView)
    generations: int = 0
    lost: int = 0
    story: int = 0
    trained: float = 0.0  #: seconds since the first generation began
    modes: Sequence[tuple[int, str]] = ()  #: (step, how lanes kept step from there on)
    resumed: WentOnFrom | None = None
    training: int = 1  #: of the script, the last one that was begun
    trainings: Sequence[Mapping[str, Any]] = ()  #: what those before it have led to

    @property
    def outcome(self) -> str:
        """ok, stopped or failed."""
        if isinstance(self.end, FailRun):
            return "stopped" if self.end.kind == "Stopped" else "failed"
        return "stopped" if self.signal else "ok"

    @property
    def goes_on(self) -> bool:
        """Another training follows."""
        return isinstance(self.end, EndRun) and bool(self.end.again) and not self.signal

    @property
    def exit_code(self) -> int:
        """By class of error; 128 + signal when a signal asked for the end."""
        if isinstance(self.end, FailRun) and self.outcome == "failed":
            return self.end.exit_code
        return 128 + self.signal if self.signal else 0


def summary(ending: Ending, record: dict[str, Any], seconds: float) -> dict[str, Any]:
    """What a script may rely on: see the design, section 4."""
    view, failed = ending.view, ending.end if isinstance(ending.end, FailRun) else None
    told: dict[str, Any] = {
        "outcome": ending.outcome,
        "reason": "" if isinstance(ending.end, FailRun) else ending.end.reason,
        "error": f"{failed.kind}: {failed.message}" if failed else None,
        "exit_code": ending.exit_code,
        "steps": view.step,
        "epochs": view.epochs,
        "samples": view.samples,
        "weights_sha256": None,
        "seconds": 0.0,
        "samples_per_second": 0.0,
        "generations": ending.generations,
        "workers_lost": ending.lost,
        "modes": [{"step": step, "sync": sync} for step, sync in ending.modes],
        "loss": view.loss,
        "story": ending.story,
        "host": record["host"],
        "started": record["started"],
    }
    result = {} if isinstance(ending.end, FailRun) else ending.end.result
    told.update(result)
    seen = result.get("staleness")
    if ending.view.ages.pushes > (sum(seen) if isinstance(seen, list) else 0):  # it failed, or hosts were lost
        told.update(view.ages.facts())
    # A worker that came late knows less about time than we do: all of it, and what of it was training.
    told["seconds"] = round(seconds, 3)
    if ending.trained > 0 and isinstance(told["samples"], int):
        went_on = ending.resumed
        before = went_on.samples if went_on is not None and went_on.training == ending.training else 0
        told["samples_per_second"] = round((told["samples"] - before) / ending.trained, 1)
    if ending.resumed is not None:
        told["resumed"] = {"step": ending.resumed.step, "checkpoint": ending.resumed.checkpoint}
    last = [] if failed else [told]
    told["trainings"] = [{name: one.get(name) for name in _OF_EACH} for one in (*ending.trainings, *last)]
    config = dict(record["config"])
    for name, default in SAID_BY_JOIN.items():  # the script may have stated its own
        if config.get(name, default) is None:
            config[name] = result.get(name, default)
    told["config"] = config
    return told


def last_line(facts: dict[str, Any], ending: Ending, directory: str) -> str:
    """What is said when a run has ended well, or early."""
    how = "done" if ending.outcome == "ok" else f"stopped ({facts['reason']})"
    rate = short_number(float(facts["samples_per_second"] or 0.0))
    lost = f", {ending.lost} workers lost" if ending.lost > 1 else ", 1 worker lost" if ending.lost else ""
    made = f"{facts['steps']} steps"
    if ending.training > 1:
        made = f"{ending.training} trainings, {made} in the last one, all"
    return (
        f"{how}: {made} in {facts['seconds']:.1f} s, {rate} samples/s{lost}; "
        f"weights_sha256 {facts['weights_sha256'] or 'unknown'}\nsummary: {directory}/summary.json"
    )


def present(kind: str, message: str, trace: str, directory: str) -> str:
    """What is said when a run fails: culprit first, the user's own lines only, under 15 lines.

    The whole message and trace are in `DIR/failure.txt`, so nothing is lost by being short here.
    """
    told = [line for line in message.splitlines() if line.strip()] or [kind]
    frames = user_frames(trace)[-_MOST_FRAMES:]
    tail = [f"  {frame}" for frame in frames]
    if kind == "Hang":
        tail.append(f"stacks: {directory}/hang-*.txt   output: {directory}/logs/")
    elif trace:
        tail.append(f"full trace: {directory}/failure.txt   output: {directory}/logs/")
    room = _MOST_LINES - len(tail)
    if len(told) > room:
        told = [*told[: room - 1], f"... and {len(told) - room + 1} more lines"]
    return "\n".join([f"holdfast: {told[0]}", *told[1:], *tail])
