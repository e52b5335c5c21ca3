"""How long a host may be silent before it counts as lost. Pure: reports and elapsed time in, seconds out.

A host that dies is seen at once, by its closed connection; this is for one that is cut off without a word. The
limit follows from the run itself: where steps take long, a short silence costs little and a needless change costs
much. Time is what *we* listened: when the launcher itself was stopped, nobody ages.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from holdfast.config.limits import CONTROL, CrewConfig

__all__ = ["Silence", "StepPace", "silence_limit"]


def silence_limit(crew: CrewConfig, step_seconds: float) -> float:
    """How long a host may be silent, where a step takes `step_seconds` (0: not known yet).

    >>> [silence_limit(CrewConfig(), seconds) for seconds in (0.0, 0.05, 2.0, 60.0)]
    [1.5, 1.5, 8.0, 30.0]
    """
    return min(max(crew.silence_limit, crew.silence_factor * step_seconds), max(crew.silence_limit, crew.silence_most))


@dataclass(slots=True)
class StepPace:
    """What a step takes, from reports of how far the run is."""

    crew: CrewConfig
    told: float = 0.0  #: the limit that was last told
    _at: tuple[float, int] | None = None
    _seconds: deque[float] = field(default_factory=lambda: deque(maxlen=CONTROL.paced_steps))

    @property
    def step_seconds(self) -> float:
        """Seconds of a step: the median of the newest reports, so that one pause does not count. 0: not known yet."""
        return median(self._seconds) if self._seconds else 0.0

    @property
    def limit(self) -> float:
        """How long a host may be silent now."""
        return silence_limit(self.crew, self.step_seconds)

    def reached(self, step: int, now: float) -> None:
        """The run has come to `step`."""
        if self._at is None or step > self._at[1]:
            if self._at is not None:
                self._seconds.append((now - self._at[0]) / (step - self._at[1]))
            self._at = now, step

    def news(self) -> str:
        """A sentence about the limit, where it has become another one since it was last told."""
        limit = self.limit
        if self.told and max(limit, self.told) < 1.5 * min(limit, self.told):
            return ""  # a little more or less is no news
        self.told = limit
        measured = f"a step takes {self.step_seconds:.3g} s" if self._seconds else "no step has been measured yet"
        return (
            f"a host that is silent for {limit:.1f} s counts as lost ({measured}; {self.crew.silence_factor:g} steps, "
            f"at least {self.crew.silence_limit:g} s and at most {self.crew.silence_most:g} s)"
        )


@dataclass(slots=True)
class Silence:
    """How long one host has been silent."""

    silent: float = 0.0

    def beat(self) -> None:
        """Something was heard."""
        self.silent = 0.0

    def listened(self, elapsed: float) -> float:
        """Nothing was heard for `elapsed` seconds more; how long that makes."""
        self.silent += min(elapsed, CONTROL.heard_at_once)
        return self.silent
