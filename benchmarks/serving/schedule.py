"""When requests are to be sent, and what came of them in figures. Pure: randomness and times are arguments."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from enum import IntEnum
from random import Random
from typing import Any, NamedTuple

__all__ = ["Outcome", "Sample", "Window", "figures", "fixed", "percentile", "poisson"]


class Outcome(IntEnum):
    """What came of a request."""

    OK = 0
    REFUSED = 1  #: 503 or 429: the server said that it would not, which is not a failure
    FAILED = 2  #: any other status, or a connection that broke
    WRONG = 3  #: answered, but not with what the model gives
    UNANSWERED = 4  #: given up after the client's patience was at its end, be it sent or still waiting to be


class Sample(NamedTuple):
    """One request. Times are seconds of `time.monotonic`."""

    intended: float
    sent: float  #: later than intended when no connection was free, or the generator was late
    done: float
    outcome: int
    version: int = -1  #: of the model that answered, where answers are checked for it


class Window(NamedTuple):
    """The stretch of time that counts."""

    begin: float
    end: float


def fixed(rate: float, seconds: float) -> list[float]:
    """Moments at equal distances, from 0.

    >>> fixed(4, 1)
    [0.0, 0.25, 0.5, 0.75]
    """
    return [number / rate for number in range(math.floor(rate * seconds + 1e-9))]


def poisson(rate: float, seconds: float, random: Random) -> list[float]:
    """Moments as of many clients who know nothing of each other: distances are exponential."""
    moments, at = [], random.expovariate(rate)
    while at < seconds:
        moments.append(at)
        at += random.expovariate(rate)
    return moments


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The least value that `percent` of all are not above (nearest rank); NaN of none.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 50), percentile([1.0, 2.0, 3.0, 4.0], 99)
    (2.0, 4.0)
    """
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(percent / 100 * len(ordered) - 1e-9) - 1)]


def figures(samples: Sequence[Sample], window: Window, objective: float) -> dict[str, Any]:
    """What a measurement found. Milliseconds; rates a second.

    Latencies are of the right answers to requests that were intended in the window. Rates are of answers that came in
    it, for whenever their request was intended: what a server gets done does not depend on how long others waited.
    """
    seconds = window.end - window.begin
    mine = [sample for sample in samples if window.begin <= sample.intended < window.end]
    came = [sample for sample in samples if window.begin <= sample.done < window.end]
    right = [sample for sample in came if sample.outcome == Outcome.OK]
    latencies = sorted(1e3 * (s.done - s.intended) for s in mine if s.outcome == Outcome.OK)
    behind = sorted(1e3 * (s.sent - s.intended) for s in mine if s.sent > 0)
    refusals = sorted(1e3 * (s.done - s.intended) for s in mine if s.outcome == Outcome.REFUSED)
    outcomes = Counter(Outcome(sample.outcome) for sample in mine)
    return {
        "intended": len(mine), "intended_rate": len(mine) / seconds, "rate": len(right) / seconds,
        "goodput": sum(s.done - s.intended <= objective for s in right) / seconds, "objective_ms": 1e3 * objective,
        **{f"p{name}": percentile(latencies, float(name)) for name in ("50", "90", "99", "99.9")},
        "max": latencies[-1] if latencies else math.nan,
        "sent_late_p99": percentile(behind, 99), "refusal_p99": percentile(refusals, 99),
        **{outcome.name.lower(): outcomes[outcome] for outcome in Outcome},
    }  # fmt: skip
