"""What a version of a model has done since it began to answer: counts and times, for clients, people and Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["BUCKETS", "RECENT", "Duration", "Histogram", "Recent", "VersionStatistics"]

#: Seconds; the upper ends of a histogram's buckets.
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

#: Answers of which each one is remembered, to be shown.
RECENT = 120


class Recent(NamedTuple):
    """One answer, not long ago."""

    seconds: float  #: from the request's coming
    items: int  #: of the batch it was computed in
    version: int


@dataclass(slots=True)
class Duration:
    """How often something happened, and how long that took together."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        """It has happened again."""
        self.count += times
        self.seconds += seconds


@dataclass(slots=True)
class Histogram:
    """How long it took, in buckets; the last one has no end."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """It has happened again."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.seconds += seconds

    def quantile(self, share: float) -> float:
        """Within how many seconds this share of all lies, to the nearest bucket's end.

        >>> made = Histogram()
        >>> for seconds in (0.0001, 0.002, 0.002, 0.3):
        ...     made.add(seconds)
        >>> made.quantile(0.5), made.quantile(0.99)
        (0.0025, 0.5)
        """
        wanted, seen = share * sum(self.counts), 0
        for count, end in zip(self.counts, (*BUCKETS, BUCKETS[-1]), strict=True):
            seen += count
            if seen >= wanted and seen:
                return end
        return 0.0


@dataclass(slots=True)
class VersionStatistics:
    """Of one version."""

    succeeded: Duration = field(default_factory=Duration)  #: requests, from their coming to their answer
    failed: Duration = field(default_factory=Duration)
    queued: Duration = field(default_factory=Duration)  #: until a replica began
    computed: Duration = field(default_factory=Duration)  #: each request counts its batch's whole time
    refused: int = 0  #: requests that were not taken, or could not be begun
    cancelled: int = 0  #: whose client was gone before the answer
    timed_out: int = 0  #: whose time, as the client had set it, was over
    items: int = 0
    batches: dict[int, Duration] = field(default_factory=dict)  #: by their number of items
    latency: Histogram = field(default_factory=Histogram)
    queue_times: Histogram = field(default_factory=Histogram)
    compute_times: Histogram = field(default_factory=Histogram)
    last: float = 0.0  #: Unix time of the newest answer

    @property
    def executions(self) -> int:
        """Batches that were computed."""
        return sum(batch.count for batch in self.batches.values())
